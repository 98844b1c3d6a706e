"""Augmentations of whole batches where the images are: crop, flip, cut-out and mixup. All randomness is one
tensor of uniform numbers, so that a seed gives the same batch on each call."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .cifar import CLASSES, SIDE

SHIFT, CUT = 4, 8  # pixels: of the crop, and the side of the square that is cut out
SMOOTHING = 0.1
#: Uniform numbers that one image takes.
NUMBERS = 7


def standardised(x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Returns pixels uint8 [images, 3, side, side] as float32 of mean 0 and deviation 1 in each channel."""
    return (x.float() - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)


def batch(x: Tensor, y: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Returns augmented images and their soft labels [images, 10].

    Args:
        x: standardised images [images, 3, 32, 32]; outside of them they are taken as their mean, 0.
        y: labels [images].
        u: uniform numbers [images, NUMBERS]; the first row also decides on mixup, with the next image of the
            batch and one share for all, in half of the batches.
    """
    mixed, share = u[0, 5] < 0.5, u[0, 6]
    x = _cut(_moved(x, u[:, :3]), u[:, 3:5])
    labels = F.one_hot(y, CLASSES).float() * (1 - SMOOTHING) + SMOOTHING / CLASSES
    share = torch.where(mixed, share, torch.ones_like(share))
    return share * x + (1 - share) * x.roll(1, 0), share * labels + (1 - share) * labels.roll(1, 0)


def _moved(x: Tensor, u: Tensor) -> Tensor:
    """Moves each image by whole pixels, and flips half of them."""
    places = torch.arange(SIDE, device=x.device)
    steps = torch.floor(u[:, :2] * (2 * SHIFT + 1)).long() + places[:, None, None]
    rows, columns = steps[..., 0].t(), steps[..., 1].t()  # [images, side], in the padded image
    columns = torch.where(u[:, 2:] < 0.5, columns.flip(1), columns)
    padded = F.pad(x, (SHIFT,) * 4)
    image = torch.arange(len(x), device=x.device)[:, None, None]
    # two indices around a slice put the channels last
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _cut(x: Tensor, u: Tensor) -> Tensor:
    """Sets a square to the mean; its centre lies anywhere in the image."""
    places = torch.arange(SIDE, device=x.device)
    begin = torch.floor(u * SIDE) - CUT // 2
    inside = (places >= begin[..., None]) & (places < begin[..., None] + CUT)  # [images, 2, side]
    return x.masked_fill((inside[:, 0, :, None] & inside[:, 1, None, :])[:, None], 0)

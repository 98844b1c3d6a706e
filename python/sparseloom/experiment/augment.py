"""Augmentations of whole batches where the images are: crop, flip, small affine maps, colours, cut-out and
mixup. All randomness is one tensor of uniform numbers, so that a seed gives the same batch on each call."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .cifar import CLASSES, SIDE

SHIFT, CUT = 4, 8  # pixels: of the crop, and the side of the square that is cut out
ANGLE, SHEAR, ZOOM = math.radians(15), 0.15, 0.15  # for half of the images
COLOUR = 0.4  # change of brightness, contrast and saturation, for half of the images
SMOOTHING = 0.1
#: Uniform numbers that one image takes.
NUMBERS = 14


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
    mixed, share = u[0, 12] < 0.5, u[0, 13]
    x = _cut(_coloured(_moved(x, u), u), u)
    labels = F.one_hot(y, CLASSES).float() * (1 - SMOOTHING) + SMOOTHING / CLASSES
    share = torch.where(mixed, share, torch.ones_like(share))
    return share * x + (1 - share) * x.roll(1, 0), share * labels + (1 - share) * labels.roll(1, 0)


def _centred(u: Tensor, size: float) -> Tensor:
    return (2 * u - 1) * size


def _moved(x: Tensor, u: Tensor) -> Tensor:
    """Crop and flip, and a small rotation, shear and zoom where u[:, 3] says so, in one interpolation."""
    steps = torch.floor(u[:, :2] * (2 * SHIFT + 1)) - SHIFT
    flip = torch.where(u[:, 2] < 0.5, -1.0, 1.0)
    some = (u[:, 3] < 0.5).float()
    angle, shear = some * _centred(u[:, 4], ANGLE), some * _centred(u[:, 5], SHEAR)
    zoom = 1 + some * _centred(u[:, 6], ZOOM)
    cos, sin = zoom * angle.cos(), zoom * angle.sin()
    theta = torch.stack(
        [
            torch.stack([flip * cos, shear * cos - sin, steps[:, 0] * 2 / SIDE], 1),
            torch.stack([flip * sin, shear * sin + cos, steps[:, 1] * 2 / SIDE], 1),
        ],
        1,
    )
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _coloured(x: Tensor, u: Tensor) -> Tensor:
    some = (u[:, 7] < 0.5).float().view(-1, 1, 1, 1)
    brightness, contrast, saturation = (
        (some * _centred(u[:, at].view(-1, 1, 1, 1), COLOUR)) for at in (8, 9, 10)
    )
    x = x + brightness
    x = x + contrast * (x - x.mean((1, 2, 3), keepdim=True))
    return x + saturation * (x - x.mean(1, keepdim=True))


def _cut(x: Tensor, u: Tensor) -> Tensor:
    """Sets a square to the mean; its centre lies anywhere in the image."""
    places = torch.arange(SIDE, device=x.device)
    # one number gives both coordinates: its first digits to the base SIDE
    row = torch.floor(u[:, 11] * SIDE)
    column = torch.floor((u[:, 11] * SIDE - row) * SIDE)

    def near(centre: Tensor) -> Tensor:
        return (places - centre[:, None] + CUT // 2).div(CUT, rounding_mode="floor") == 0

    return x.masked_fill((near(row)[:, :, None] & near(column)[:, None, :])[:, None], 0)

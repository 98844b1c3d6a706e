"""The networks of `sparseloom experiment pixelcnn`: a gated PixelCNN (van den Oord et al. 2016) whose layers
are dense, or block-diagonal behind a channel shuffle and as many times deeper as there are groups.

No tap is masked: the vertical stack's filters see the row above and their own, padded at the top, after a
first filter that is moved down by a row; the horizontal stack's see the left, padded there, after a first one
that is moved right by a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparseloom import pattern as patterns
from sparseloom.nn import BlockSparseConv2d

from .mixture import PARAMETERS


@dataclass(frozen=True)
class Size:
    """Channels of a stack, gated layers of the dense network, and the side of the images in pixels."""

    width: int = 128
    depth: int = 3
    side: int = 16


#: A million parameters: with Adam's moments a checkpoint has 13 MB.
SMALL = Size()

#: arm -> groups of channels; a layer of g groups has 1 / g of the weights, and there are g times the layers.
ARMS = {"dense": 1, "groups-2": 2, "groups-4": 4}


class Layer(nn.Module):
    """A gated layer of both stacks, each beside a residual; every convolution is sparse alike."""

    def __init__(self, size: Size, groups: int) -> None:
        super().__init__()
        width, self.groups = size.width, groups
        # two blocks of `width` for each group: with one, a group would see itself alone for ever, and more
        # are small and slow on a GPU
        block = width // (2 * groups)
        self.vertical = _conv(width, 2 * width, (2, 3), block, groups)
        self.horizontal = _conv(width, 2 * width, (1, 2), block, groups)
        self.across = _conv(2 * width, 2 * width, (1, 1), block, groups)
        self.out = _conv(width, width, (1, 1), block, groups)

    def forward(self, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Maps both stacks [images, width, side, side] to the same shape."""
        above = self.vertical(F.pad(v, (1, 1, 1, 0)))
        left = self.horizontal(F.pad(h, (1, 0))) + self.across(above)
        return v + _gated(above, self.groups), h + self.out(_gated(left, self.groups))


class PixelCNN(nn.Module):
    """Maps pixels to the parameters of the mixture of each, from the pixels before it alone."""

    def __init__(self, size: Size, groups: int = 1) -> None:
        super().__init__()
        self.size, self.groups = size, groups
        # four channels in, and the last two layers, are dense in every arm
        self.first_vertical = nn.Conv2d(4, size.width, (2, 3))
        self.first_horizontal = nn.Conv2d(4, size.width, (1, 2))
        self.layers = nn.ModuleList(Layer(size, groups) for _ in range(size.depth * groups))
        self.mixed = nn.Conv2d(size.width, size.width, 1)
        self.head = nn.Linear(size.width, PARAMETERS)  # not by cuDNN, which would round to TF32

    def forward(self, x: Tensor) -> Tensor:
        """Maps pixels [images, 3, side, side] from -1 to 1 to [images, PARAMETERS, side, side], in float32
        under autocast too."""
        # a channel of ones tells the padding from grey
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1).contiguous(memory_format=torch.channels_last)
        v = self.first_vertical(F.pad(x, (1, 1, 2, 0))[:, :, :-1])
        h = v + self.first_horizontal(F.pad(x, (2, 0))[:, :, :, :-1])
        for layer in self.layers:
            v, h = layer(v, h)
        h = F.elu(self.mixed(F.elu(h)))
        # in bf16 a mean near 1 would be rounded to 1 / 256, half the distance of two colours
        with torch.autocast(h.device.type, enabled=False):
            parameters: Tensor = self.head(h.movedim(1, -1).float())
        return parameters.movedim(-1, 1)


def _conv(inputs: int, outputs: int, kernel: tuple[int, int], block: int, groups: int) -> nn.Module:
    """Returns a convolution of that many groups, whose inputs come from all groups in turn."""
    if groups == 1:
        return nn.Conv2d(inputs, outputs, kernel)
    pattern = patterns.block_diagonal(outputs, inputs, block, groups, shuffle=True)
    return BlockSparseConv2d(inputs, outputs, kernel, pattern=pattern)


def _gated(x: Tensor, groups: int) -> Tensor:
    """Multiplies the first half of each group by the gates in its second half. Were all gates the second half
    of all channels, shuffles of four groups would join only one half of the channels with itself."""
    value, gate = x.unflatten(1, (groups, 2, -1)).unbind(2)
    return (torch.tanh(value) * torch.sigmoid(gate)).flatten(1, 2)

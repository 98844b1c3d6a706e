"""Edges: a learned gain and bias for outputs with taps outside of x, the edge bias of OpenAI's blocksparse
(blocksparse/conv.py, ConvEdgeBias).

A tap outside multiplies with zero, so an output at the border is smaller than one inside. Each set of taps
outside, such as "the upper row and the left column", has a gain and a bias for each channel: y becomes
y * gain + bias. That library counted the sets of one extent of x. A layer here takes any extent, so it has a
row for each set that any extent can produce, also those of an x smaller than the kernel. For a transposed
convolution with a stride, that library called nearly every output an edge, since most taps meet no x; here a
set is the number of taps outside on each side of each axis, counting only taps that can meet an x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...errors import Error


class Side(NamedTuple):
    """One spatial axis: its taps, and how many of them may lie before the first and after the last x."""

    kernel: int
    stride: int
    padding: int  # before
    dilation: int
    before: int
    after: int
    transposed: bool

    @staticmethod
    def of_conv(kernel: int, stride: int, sides: tuple[int, int], dilation: int) -> Side:
        """Returns the Side of a convolution with padding (before, after)."""
        before, after = (min(kernel, -(-side // dilation)) for side in sides)
        return Side(kernel, stride, sides[0], dilation, before, after, False)

    @staticmethod
    def of_transposed(kernel: int, stride: int, padding: int, output_padding: int, dilation: int) -> Side:
        """Returns the Side of a transposed convolution. An output has only the taps that are a multiple of
        the stride away from an x; the taps between meet no x anywhere and do not count as outside."""
        apart = stride // math.gcd(stride, dilation)
        outside = (kernel - 1 - reach // dilation for reach in (padding, padding - output_padding))
        before, after = (-(-min(kernel, max(taps, 0)) // apart) for taps in outside)
        return Side(kernel, stride, padding, dilation, before, after, True)

    @property
    def sets(self) -> int:
        """The number of different codes."""
        return (self.before + 1) * (self.after + 1)

    def codes(self, of_x: int, of_y: int, device: torch.device) -> Tensor:
        """Returns a number for each output along the axis, 0 where no tap lies outside: int64 [of_y]."""
        outputs = torch.arange(of_y, device=device)[:, None]
        taps = torch.arange(self.kernel, device=device) * self.dilation
        if self.transposed:
            at, last = outputs + self.padding - taps, (of_x - 1) * self.stride
            counts = at % self.stride == 0
            outside = (at < 0) & counts, (at > last) & counts
        else:
            at = outputs * self.stride - self.padding + taps
            outside = at < 0, at >= of_x
        before, after = (mask.sum(1) for mask in outside)
        # output_size may bring more taps after the last x than output_padding does
        return before.clamp(max=self.before) * (self.after + 1) + after.clamp(max=self.after)


class Edges(nn.Module):
    """Parameters: ``gain`` and ``bias`` [sets, channels], ones and zeros at first, so that nothing changes.

    Raises Error where no output has a tap outside.
    """

    def __init__(self, sides: Sequence[Side], channels: int) -> None:
        super().__init__()
        self.sides = tuple(sides)
        sets = math.prod(side.sets for side in self.sides) - 1  # the empty set has no row
        if not sets:
            raise Error("edge_bias", "taps that reach over the border", "none", "pad x, or leave it off")
        self.gain = nn.Parameter(torch.empty(sets, channels))
        self.bias = nn.Parameter(torch.empty(sets, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Writes ones and zeros."""
        nn.init.ones_(self.gain), nn.init.zeros_(self.bias)

    def forward(self, y: Tensor, of_x: Sequence[int]) -> Tensor:
        """Maps y [images, channels, *space], of x with these extents, to a tensor of the same shape."""
        codes = torch.zeros((), dtype=torch.int64, device=y.device)
        for side, x, extent in zip(self.sides, of_x, y.shape[2:], strict=True):
            codes = codes[..., None] * side.sets + side.codes(x, extent, y.device)
        gain, bias = (
            torch.cat([parameter.new_full((1, y.shape[1]), inside), parameter])[codes]
            .movedim(-1, 0)
            .to(y.dtype)
            for parameter, inside in ((self.gain, 1.0), (self.bias, 0.0))
        )
        return torch.addcmul(bias, y, gain)

    def extra_repr(self) -> str:
        return f"{self.gain.shape[0]} sets of taps, {self.gain.shape[1]} channels"

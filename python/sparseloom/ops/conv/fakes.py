"""Fake kernels of the convolution operators, for compilers."""

import math
from typing import Any

from torch import Tensor

from ..fakes import fake


@fake("conv_pack")
def _conv_pack_fake(weight: Tensor, index: Tensor, blocks: int, bm: int, bn: int) -> Tensor:
    return weight.new_empty((blocks, weight.shape[1], bm, bn))


@fake("conv_unpack")
def _conv_unpack_fake(values: Tensor, index: Tensor, rows: int, cols: int) -> Tensor:
    return values.new_empty((rows, values.shape[1], cols))


@fake("bsr_conv")
def _conv_fake(
    x: Tensor, values: Tensor, index: Tensor, out_channels: int, *window: Any,
    **named: Any,
) -> Tensor:  # fmt: skip
    axes = zip(x.shape[1:-1], *window[:4], strict=True)
    space = [
        (extent + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for extent, kernel, stride, padding, dilation in axes
    ]
    return x.new_empty((x.shape[0], *space, out_channels))


@fake("bsr_conv_dx")
def _conv_dx_fake(
    dy: Tensor, values: Tensor, index: Tensor, in_channels: int, depth: int, height: int, width: int,
    *window: Any, **named: Any,
) -> Tensor:  # fmt: skip
    space = (depth, height, width)[5 - dy.dim() :]
    return dy.new_empty((dy.shape[0], *space, in_channels))


@fake("bsr_conv_dw")
def _conv_dw_fake(
    dy: Tensor, x: Tensor, index: Tensor, blocks: int, block_rows: int, block_cols: int, kernel: list[int],
    *window: Any, **named: Any,
) -> Tensor:  # fmt: skip
    return x.new_empty((blocks, math.prod(kernel), block_rows, block_cols))

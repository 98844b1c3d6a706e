"""Block-sparse transposed convolutions as a function: y is the dX of a convolution, so the rows of bsr_conv
run them with forward and dX exchanged.

W [rows, cols, *kernel] has the outputs as rows, as everywhere here; the convolution whose dX this is has them
as columns. Each call makes a transposed copy of the values: it has the size of the weight, while the
activations are many times as large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import Error
from .. import operators
from ..autograd import require_residual_of
from ..index import SEGMENT, UNKNOWN, Index
from ..operators import ACTIVATIONS
from ..verbs import Weight, multiply
from . import product
from .product import Window

_TORCHS = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def extents_of(extents: tuple[int, ...], window: Window, output_padding: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the extents of the result for those of x. Raises Error if the result would be empty."""
    smallest = window.least(extents)
    sizes = tuple(size + padding for size, padding in zip(smallest, output_padding, strict=True))
    if any(size < 1 for size in sizes) or any(extent < 1 for extent in extents):
        remedy = "pass a larger x, or less padding"
        raise Error("conv_transpose", "a result of at least one element along each axis", str(sizes), remedy)
    return sizes


def conv_transpose(
    x: Tensor, values: Tensor, index: Index, bias: Tensor | None, window: Window,
    output_padding: tuple[int, ...], strict: bool = False, turned_index: Callable[[], Index] | None = None,
    activation: str | None = None, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Returns act(conv_transpose(x, W) + bias) + residual [images, rows, *space] of x [images, cols, *space],
    bias [rows] and a residual of the result's shape and dtype.

    ``turned_index`` returns ``turned(index)``, for a caller that caches it. The choice of kernels and the
    Errors are those of ``product.conv``.
    """
    extents = extents_of(tuple(x.shape[2:]), window, output_padding)
    if not product.is_planned(x):
        if strict:
            raise product.no_row("conv_transpose", x)
        weight = product.dense(values, index, window.kernel)
        return product.finished(by_weight(x, weight, bias, window, output_padding), activation, residual)
    # Output padding of at least a stride needs an x after the last one: we append zeros.
    extra = [count // stride for count, stride in zip(output_padding, window.stride, strict=True)]
    if any(extra):
        x = F.pad(x, [side for count in reversed(extra) for side in (0, count)])
    slots = index.slot.long()
    pixels, weight = x.movedim(1, -1), values[slots].transpose(-1, -2).contiguous()
    arguments = turned(index) if turned_index is None else turned_index(), window, extents
    watched = torch.is_grad_enabled() and any(
        operand is not None and operand.requires_grad for operand in (x, values, bias, residual)
    )
    if watched or not x.is_cuda:  # in dX, rows on the CPU fuse only a bias
        y = multiply(pixels, weight, bias, TransposedWeight(*arguments, strict))
        return product.finished(y.movedim(-1, 1), activation, residual)
    if residual is not None:
        require_residual_of(residual, (x.shape[0], index.rows, *extents), x.dtype, "conv")
        residual = residual.movedim(1, -1)
    return _by_dx(pixels, weight, bias, *arguments, strict, activation, residual).movedim(-1, 1)


def by_weight(
    x: Tensor, weight: Tensor, bias: Tensor | None, window: Window, output_padding: tuple[int, ...]
) -> Tensor:
    """Returns torch's transposed convolution of x [images, cols, *space] with a dense W [rows, cols,
    *kernel]."""
    if weight.requires_grad and product.dw_loses_digits(weight, window.kernel):
        weight, window = F.pad(weight, (1, 1, 1, 1)), product.in_seven_by_seven(window)
    _, stride, padding, dilation = window
    torchs: Any = _TORCHS[len(window.kernel) - 1]
    y: Tensor = torchs(x, weight.transpose(0, 1), bias, stride, padding, output_padding, 1, dilation)
    return y


def turned_sizes(index: Index) -> Index:
    """Returns an index with the sizes of ``turned(index)``, whose lists must not be read."""
    return index._replace(rows=index.cols, cols=index.rows, bm=index.bn, bn=index.bm, digest=UNKNOWN)


def turned(index: Index) -> Index:
    """Returns the index of the transposed pattern, whose blocks are in the order of ``slot``, on the index's
    device, without waiting for it."""
    crow, col, ccol, row, slot = index.lists()
    order = torch.arange(index.blocks, dtype=torch.int32, device=slot.device)
    inverse = torch.empty_like(slot).scatter(0, slot.long(), order)
    lists = [F.pad(entries, (0, -len(entries) % SEGMENT)) for entries in (ccol, row, crow, col)]
    return Index(
        torch.cat([*lists, inverse]), index.blocks, index.cols, index.rows, index.bn, index.bm, UNKNOWN
    )


def _by_dx(
    x: Tensor, values: Tensor, bias: Tensor | None, index: Index, window: Window, extents: tuple[int, ...],
    strict: bool, activation: str | None = None, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Returns dX of the convolution of ``index`` with dY = x, and its epilogue."""
    extents_3d = (*(1,) * (3 - len(extents)), *extents)
    epilogue = bias, ACTIVATIONS[activation], residual
    numbers = index.cols, *extents_3d, *window, *epilogue, *product.call_options(x, index, strict)
    return operators.run(product.CONV_DX, x, values, index.packed, *numbers)


class TransposedWeight(Weight):
    """The blocks, [channels of x, channels of y], of the convolution whose dX the result is; x and y are
    [images, *space, channels]; ``extents``: the spatial extents of y."""

    _op, _once = "conv_transpose", True

    def __init__(self, index: Index, window: Window, extents: tuple[int, ...], strict: bool) -> None:
        self.index, self.window, self.extents, self.strict = index, window, extents, strict

    def linear(self, x: Tensor, values: Tensor, bias: Tensor | None, *fused: Any) -> Tensor:
        return _by_dx(x, values, bias, self.index, self.window, self.extents, self.strict)

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        return product._forward(dy, values, None, self.index, self.window, strict=False)

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        return product._dvalues(x, dy, self.index, self.window)

"""Block-sparse transposed convolutions as a function: y is what dX is of a convolution, so the rows of
bsr_conv run them with forward and dX in turned places.

W [rows, cols, *kernel] has the outputs as rows, as everywhere here; the convolution whose dX this is has them
as columns. Its values are a turned copy, made in each call: no more elements than the weight has, where the
activations have many times as many.
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
    """Returns the extents of the result of x with these. Raises Error where nothing would be left."""
    least = window.least(extents)
    found = tuple(each + more for each, more in zip(least, output_padding, strict=True))
    if any(each < 1 for each in found) or any(extent < 1 for extent in extents):
        remedy = "pass a larger x, or less padding"
        raise Error("conv_transpose", "a result of at least one element along each axis", str(found), remedy)
    return found


def conv_transpose(
    x: Tensor, values: Tensor, index: Index, bias: Tensor | None, window: Window,
    output_padding: tuple[int, ...], strict: bool = False, turned_index: Callable[[], Index] | None = None,
    activation: str | None = None, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Returns act(conv_transpose(x, W) + bias) + residual [images, rows, *space] of x [images, cols, *space],
    bias [rows] and a residual of the result's shape and dtype.

    ``turned_index`` returns ``turned(index)``, for a caller that keeps it. What runs, and what raises Error,
    is as for ``product.conv``.
    """
    extents = extents_of(tuple(x.shape[2:]), window, output_padding)
    sizes = turned_sizes(index)
    if not product.by_rows("dx", x, extents, sizes, window, strict):
        if strict:
            raise product.no_row("conv_transpose", x)
        weight = product.dense(values, index, window.kernel)
        return product.finished(by_weight(x, weight, bias, window, output_padding), activation, residual)
    # Padding of at least a stride asks for outputs that an x after the last would have: zeros are put there.
    more = [each // stride for each, stride in zip(output_padding, window.stride, strict=True)]
    if any(more):
        x = F.pad(x, [side for each in reversed(more) for side in (0, each)])
    slots = index.slot.long()
    pixels, weight = x.movedim(1, -1), values[slots].transpose(-1, -2).contiguous()
    how = turned(index) if turned_index is None else turned_index(), window, extents
    watched = torch.is_grad_enabled() and any(
        each is not None and each.requires_grad for each in (x, values, bias, residual)
    )
    if watched or not x.is_cuda:  # rows of the CPU add no more than a bias where dX is computed
        y = multiply(pixels, weight, bias, TransposedWeight(*how))
        return product.finished(y.movedim(-1, 1), activation, residual)
    if residual is not None:
        require_residual_of(residual, (x.shape[0], index.rows, *extents), x.dtype, "conv")
        residual = residual.movedim(1, -1)
    return _by_dx(pixels, weight, bias, *how, activation, residual).movedim(-1, 1)


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
    """Returns the index with the sizes of ``turned(index)``, whose lists are not read."""
    return index._replace(rows=index.cols, cols=index.rows, bm=index.bn, bn=index.bm, digest=UNKNOWN)


def turned(index: Index) -> Index:
    """Returns the index of the transposed pattern, whose blocks lie in the order of ``slot``, on the index's
    device; nothing waits."""
    crow, col, ccol, row, slot = index.lists()
    order = torch.arange(index.blocks, dtype=torch.int32, device=slot.device)
    back = torch.empty_like(slot).scatter(0, slot.long(), order)
    lists = [F.pad(each, (0, -len(each) % SEGMENT)) for each in (ccol, row, crow, col)]
    return Index(torch.cat([*lists, back]), index.blocks, index.cols, index.rows, index.bn, index.bm, UNKNOWN)


def _by_dx(
    x: Tensor, values: Tensor, bias: Tensor | None, index: Index, window: Window, extents: tuple[int, ...],
    activation: str | None = None, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Returns dX of the convolution of ``index`` for a dY of x, and its epilogue."""
    three = (*(1,) * (3 - len(extents)), *extents)
    epilogue = bias, ACTIVATIONS[activation], residual
    numbers = index.cols, *three, *window, *epilogue, *product._any_row(x, index)
    return operators.run(operators.conv_dx, x, values, index.packed, *numbers)


class TransposedWeight(Weight):
    """The blocks, [channels of x, channels of y], of the convolution whose dX the result is; x and y are
    [images, *space, channels]; ``extents``: y's of space."""

    _op, _once = "conv_transpose", True

    def __init__(self, index: Index, window: Window, extents: tuple[int, ...]) -> None:
        self.index, self.window, self.extents = index, window, extents

    def linear(self, x: Tensor, values: Tensor, bias: Tensor | None, *fused: Any) -> Tensor:
        return _by_dx(x, values, bias, self.index, self.window, self.extents)

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        return product._forward(dy, values, None, self.index, self.window)

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        return product._dvalues(x, dy, self.index, self.window)

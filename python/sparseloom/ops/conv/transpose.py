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
from ..index import UNKNOWN, Index
from ..once import differentiable_once
from ..products import SEGMENT
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
) -> Tensor:  # fmt: skip
    """Returns the transposed convolution [images, rows, *space] of x [images, cols, *space] with W, plus bias
    [rows].

    ``turned_index`` returns ``turned(index)``, for a caller that keeps it. What runs, and what raises Error,
    is as for ``product.conv``.
    """
    extents = extents_of(tuple(x.shape[2:]), window, output_padding)
    sizes = turned_sizes(index)
    if not product.by_rows("dx", x, extents, sizes, window, strict):
        if strict:
            raise product.no_row("conv_transpose", x)
        return by_weight(x, product.dense(values, index, window.kernel), bias, window, output_padding)
    # Padding of at least a stride asks for outputs that an x after the last would have: zeros are put there.
    more = [each // stride for each, stride in zip(output_padding, window.stride, strict=True)]
    if any(more):
        x = F.pad(x, [side for each in reversed(more) for side in (0, each)])
    slots = index.slot.long()
    y = _Transposed.apply(
        x.movedim(1, -1),
        values[slots].transpose(-1, -2).contiguous(),
        turned(index) if turned_index is None else turned_index(),
        window,
        extents,
    )
    return (y if bias is None else y + bias).movedim(-1, 1)


def by_weight(
    x: Tensor, weight: Tensor, bias: Tensor | None, window: Window, output_padding: tuple[int, ...]
) -> Tensor:
    """Returns torch's transposed convolution of x [images, cols, *space] with a dense W [rows, cols,
    *kernel]."""
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


class _Transposed(torch.autograd.Function):
    """The rows' products of the convolution whose dX the result is; x and y are [images, *space, channels],
    ``values`` and ``index`` of [channels of x, channels of y]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, index: Index, window: Window, extents: tuple[int, ...]
    ) -> Tensor:
        ctx.how = index, window
        need_x, need_values, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x if need_values else None, values if need_x else None)
        three = (*(1,) * (3 - len(extents)), *extents)
        how = index.packed, index.cols, *three, *window, *product._any_row(x, index)
        return product._called(operators.conv_dx, x, values, *how)

    @staticmethod
    @differentiable_once("conv_transpose")
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, values), (index, window) = ctx.saved_tensors, ctx.how
        need_x, need_values, *_ = ctx.needs_input_grad
        dx = dvalues = None
        if need_x:
            dx = product._forward(dy, values, None, index, window)
        if need_values:
            dvalues = product._dvalues(x, dy, index, window)
        return dx, dvalues, None, None, None

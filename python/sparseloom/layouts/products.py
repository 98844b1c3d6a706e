"""A layout's products with their gradients, and the check that its three methods agree."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import Error
from .layout import Layout


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, values: Tensor, bias: Tensor | None, layout: Layout) -> Tensor:
        return layout.linear(x, values, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Layout], output: Tensor) -> None:
        x, values, _, ctx.layout = inputs
        # Each is kept only where the other's gradient needs it: frozen values cost no copy of x.
        ctx.save_for_backward(x if values.requires_grad else None, values if x.requires_grad else None)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, values = ctx.saved_tensors
        needs_x, needs_values, needs_bias, _ = ctx.needs_input_grad
        return (
            ctx.layout.dx(dy, values) if needs_x else None,
            ctx.layout.dw(dy, x) if needs_values else None,
            dy.sum(0) if needs_bias else None,
            None,
        )


def linear(x: Tensor, values: Tensor, bias: Tensor | None, layout: Layout) -> Tensor:
    """Returns x [..., cols] W^T + bias as [..., rows], with gradients of x, the values and the bias by the
    layout's own ``dx`` and ``dw``. Operands are of one dtype and on one device."""
    y = _Product.apply(x.reshape(-1, layout.cols), values, bias, layout)
    return y if x.dim() == 2 else y.reshape(*x.shape[:-1], layout.rows)


def require_consistent(op: str, layout: Layout, values: Tensor) -> None:
    """Raises Error unless the layout's ``pack`` undoes its ``to_dense`` on ``values``, and every one of them
    that is not zero has a place of its own in W: of an index that names one place twice, or one outside of
    the matrix, some values do not come back. Makes W twice; does nothing on meta."""
    if any(each.is_meta for each in (values, *layout.tensors().values())):
        return
    try:
        with torch.no_grad():
            # Numbers that differ and that every dtype holds exactly would be too few: the check is in fp64.
            told_apart = torch.arange(1.0, values.numel() + 1, dtype=torch.float64, device=values.device)
            dense = layout.to_dense(told_apart.view(values.shape))
            back = layout.pack(dense)
    except (RuntimeError, IndexError) as error:
        got = str(error).splitlines()[0]
        raise Error(op, f"values and an index of layout {layout.name}", got, _REMEDY) from error
    shape = (layout.rows, layout.cols)
    if tuple(dense.shape) != shape or back.shape != values.shape:
        got = f"W {list(dense.shape)} and values {list(back.shape)} back from it"
        raise Error(op, f"W {list(shape)} and values {list(values.shape)}", got, _REMEDY)
    lost = (back.flatten() != told_apart) & (values.flatten() != 0)
    if bool(lost.any()):
        got = f"{int(lost.sum())} values without one, the first at {int(lost.nonzero()[0])}"
        raise Error(op, "a place of its own in W for every value that is not zero", got, _REMEDY)


_REMEDY = "pack the weight again with from_dense, and take index and values from one file"

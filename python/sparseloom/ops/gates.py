"""Connects gates of stored blocks to autograd: see ops.gated_linear."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import operators
from .autograd import in_rows
from .index import MOVING, Index
from .once import differentiable_once
from .operators import PLAN_CHOOSES, tf32_of


def _of_some(digest: int) -> int:
    """Returns the digest of an index with some of the blocks of another: Facts::digest in plan.h."""
    return -1 - digest if digest > 1 else MOVING


class Gated(torch.autograd.Function):
    """Multiplies with the blocks whose gates are not zero (gate_blocks), forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, gates: Tensor, bias: Tensor | None, options: tuple[Index, bool]
    ) -> Tensor:
        index, strict = ctx.options = options
        opened, scaled, place = operators.gate_blocks(values, index.packed, gates, index.rows, index.cols)
        need_x, need_values, need_gates, *_ = ctx.needs_input_grad
        weight = need_values or need_gates
        ctx.save_for_backward(
            *((x, values) if weight else (None, None)), gates, opened, scaled if need_x else None, place
        )
        tf32 = x.is_cuda and tf32_of(x)
        return operators.linear(
            x, scaled, opened, index.rows, bias, 0, None, PLAN_CHOOSES, strict, tf32, _of_some(index.digest)
        )

    @staticmethod
    @differentiable_once("gated_linear")
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, values, gates, opened, scaled, place), (index, strict) = ctx.saved_tensors, ctx.options
        need_x, need_values, need_gates, need_bias, _ = ctx.needs_input_grad
        dy = in_rows(dy)
        dx, gradient, dbias = operators.linear_backward(
            dy, None, x, scaled, opened, index.cols, index.blocks, index.bm, index.bn, None,
            need_bias, 0, strict, tf32_of(dy), _of_some(index.digest),
        )  # fmt: skip
        dvalues = dgates = None
        if values is not None:
            dvalues, dgates = operators.gate_gradients(
                gradient, values, gates, place, need_values, need_gates
            )
        return (
            dx if need_x else None,
            dvalues if need_values else None,
            dgates if need_gates else None,
            dbias if need_bias else None,
            None,
        )

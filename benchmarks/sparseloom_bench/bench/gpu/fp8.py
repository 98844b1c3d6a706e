"""Runs e4m3 products with one scale per operand and bf16 results: our own, and torch's dense one with and
without fast accumulation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparseloom import ops

#: The operands' scales are powers of two, so that the exact result is the product of the stored values times
#: both scales, in any order.
X_SCALE, W_SCALE = 0.5, 0.25
OUT = torch.bfloat16


def scales(device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns both scales as fp32 tensors of one element, the form that our op and torch's both take."""
    return torch.full((1,), X_SCALE, device=device), torch.full((1,), W_SCALE, device=device)


def sparse(
    x: Tensor, values: Tensor, index: ops.Index, scale: tuple[Tensor, Tensor], kernel: str, fast: bool
) -> Tensor:
    """Multiplies x [m, k] e4m3 by the blocks values [blocks, bm, bn] e4m3; returns bf16 [m, n].

    `fast` keeps the sums in the tensor cores' shorter accumulators.
    """
    return ops.scaled_linear(x, values, index, *scale, out_dtype=OUT, kernel=kernel, use_fast_accum=fast)


def dense(x: Tensor, weight: Tensor, scale: tuple[Tensor, Tensor], fast: bool = False) -> Tensor:
    """Multiplies x [m, k] by weight^T, weight [n, k], both e4m3; returns bf16 [m, n]. `fast` as above."""
    options: dict[str, Any] = {
        "scale_a": scale[0],
        "scale_b": scale[1],
        "out_dtype": OUT,
        "use_fast_accum": fast,
    }
    return torch._scaled_mm(x, weight.t(), **options)  # type: ignore[no-any-return]

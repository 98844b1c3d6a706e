"""e4m3 products with one scale for each operand and bf16 results: ours, and torch's dense one in both ways of
adding up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import ops

#: The operands' scales, powers of two: the exact result is then the product of the stored values times these,
#: in any order.
X_SCALE, W_SCALE = 0.5, 0.25
OUT = torch.bfloat16


def scales(device: torch.device) -> tuple[Tensor, Tensor]:
    """fp32, one element each: the form that both sides take."""
    return torch.full((1,), X_SCALE, device=device), torch.full((1,), W_SCALE, device=device)


def sparse(
    x: Tensor, values: Tensor, index: ops.Index, scale: tuple[Tensor, Tensor], kernel: str, fast: bool
) -> Tensor:
    """x [m, k] e4m3, values [blocks, bm, bn] e4m3 -> bf16 [m, n]. `fast`: sums stay in the tensor cores'
    shorter accumulators."""
    return ops.scaled_linear(x, values, index, *scale, out_dtype=OUT, kernel=kernel, use_fast_accum=fast)


def dense(x: Tensor, weight: Tensor, scale: tuple[Tensor, Tensor], fast: bool = False) -> Tensor:
    """x [m, k], weight [n, k], both e4m3 -> bf16 [m, n]. `fast` as above."""
    options: dict[str, Any] = {
        "scale_a": scale[0],
        "scale_b": scale[1],
        "out_dtype": OUT,
        "use_fast_accum": fast,
    }
    return torch._scaled_mm(x, weight.t(), **options)  # type: ignore[no-any-return]

"""The operators of CSR weights as functions: products of matrices, and plans.

W [rows, cols] is given by ``values`` [stored], ``crow`` int32 [rows + 1] and ``col`` int32 [stored]. On a GPU
dX also needs ``by_column``, what ``layouts.entries.columns_of`` returns of the index.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import operators
from .operators import PLAN_CHOOSES, activation_code, row_of, run
from .plans import asked, dtype_name, ordinal


def linear(
    x: Tensor, values: Tensor, crow: Tensor, col: Tensor, bias: Tensor | None, strict: bool = False,
    activation: str | None = None, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Returns act(x W^T + bias) + residual as [..., rows] of x [..., cols]; without gradients, as the other
    products here. ``strict`` forbids the dense and reference kernels of each."""
    how = bias, activation_code("linear", activation), residual, PLAN_CHOOSES, strict
    made: Tensor = run(operators.csr_linear, x, values, crow, col, *how)
    return made


def dx(
    dy: Tensor, values: Tensor, crow: Tensor, col: Tensor, cols: int, by_column: Tensor | None = None,
    strict: bool = False,
) -> Tensor:  # fmt: skip
    """Returns dY W as [..., cols] of dy [..., rows]."""
    made: Tensor = run(operators.csr_dx, dy, values, crow, col, by_column, cols, PLAN_CHOOSES, strict)
    return made


def dw(dy: Tensor, x: Tensor, crow: Tensor, col: Tensor, strict: bool = False) -> Tensor:
    """Returns dY^T X at the stored elements, [stored]."""
    made: Tensor = run(operators.csr_dw, dy, x, crow, col, PLAN_CHOOSES, strict)
    return made


def plan(
    direction: str,
    dtype: torch.dtype,
    m: int,
    shape: tuple[int, int],
    stored: int,
    bias: bool,
    device: torch.device | str | int,
    kernel: str = "",
    strict: bool = False,
    activation: str | None = None,
    residual: bool = False,
) -> dict[str, Any]:
    """Returns the plan of a product of m tokens with a weight of that shape; see ops.plan for its keys."""
    what = (*shape, stored), direction, dtype_name("plan", dtype), m, ordinal(device)
    return asked(
        "csr_linear", *what, (bias, activation_code("plan", activation), residual), row_of(kernel), strict
    )

"""The operators of CSR weights as functions: products of matrices, and plans.

W [rows, cols] is given by ``values`` [stored], ``crow`` int32 [rows + 1] and ``col`` int32 [stored]. On a GPU
dX also needs ``by_column``, what ``layouts.entries.columns_of`` returns of the index.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from . import flops, operators
from .fakes import fake
from .operators import activation_code, row_of, run
from .plans import asked, dtype_name, ordinal

_LINEAR = operators.overload("csr_linear")
_DX = operators.overload("csr_dx")
_DW = operators.overload("csr_dw")


def linear(
    x: Tensor, values: Tensor, crow: Tensor, col: Tensor, bias: Tensor | None, strict: bool = False,
    activation: str | None = None, residual: Tensor | None = None, kernel: str = "",
) -> Tensor:  # fmt: skip
    """Returns act(x W^T + bias) + residual as [..., rows] of x [..., cols]; without gradients, as the other
    products here. Of each, ``strict`` forbids the dense and reference kernels, and ``kernel`` forces a
    candidate by name."""
    options = bias, activation_code("linear", activation), residual, row_of(kernel), strict
    y: Tensor = run(_LINEAR, x, values, crow, col, *options)
    return y


def dx(
    dy: Tensor, values: Tensor, crow: Tensor, col: Tensor, cols: int, by_column: Tensor | None = None,
    strict: bool = False, kernel: str = "",
) -> Tensor:  # fmt: skip
    """Returns dY W as [..., cols] of dy [..., rows]."""
    result: Tensor = run(_DX, dy, values, crow, col, by_column, cols, row_of(kernel), strict)
    return result


def dw(dy: Tensor, x: Tensor, crow: Tensor, col: Tensor, strict: bool = False, kernel: str = "") -> Tensor:
    """Returns dY^T X at the stored elements, [stored]."""
    gradient: Tensor = run(_DW, dy, x, crow, col, row_of(kernel), strict)
    return gradient


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
    problem = (*shape, stored), direction, dtype_name("plan", dtype), m, ordinal(device)
    return asked(
        "csr_linear", *problem, (bias, activation_code("plan", activation), residual), row_of(kernel), strict
    )


def _dw_flops(
    dy: flops.Shape, x: flops.Shape, crow: flops.Shape, col: flops.Shape, *rest: Any, **named: Any
) -> int:
    return 2 * prod(col) * prod(dy[:-1])


@fake("csr_linear", flops.of_values)
def _csr_linear_fake(x: Tensor, values: Tensor, crow: Tensor, *rest: Any, **named: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], crow.shape[0] - 1))


@fake("csr_dx", flops.of_values)
def _csr_dx_fake(
    dy: Tensor, values: Tensor, crow: Tensor, col: Tensor, by_column: Tensor | None, cols: int,
    *rest: Any, **named: Any,
) -> Tensor:  # fmt: skip
    return dy.new_empty((*dy.shape[:-1], cols))


@fake("csr_dw", _dw_flops)
def _csr_dw_fake(dy: Tensor, x: Tensor, crow: Tensor, col: Tensor, *rest: Any, **named: Any) -> Tensor:
    return dy.new_empty(col.shape)

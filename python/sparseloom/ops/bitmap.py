"""The operators of bitmap weights as functions: products of matrices on the CPU, and plans.

W [rows, cols] is given by ``values`` [stored], ``bits`` uint8 [rows, ceil(cols / 8)] and ``crow`` int32
[rows + 1]; include/sparseloom/bitmap.h describes them.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from ..errors import Error
from . import flops, operators
from .fakes import fake
from .operators import activation_code, row_of, run
from .plans import asked, dtype_name, planned_dtype
from .transforms import differentiated

_LINEAR = operators.overload("bitmap_linear")
_DX, _DW = operators.overload("bitmap_dx"), operators.overload("bitmap_dw")
_PACK, _UNPACK = operators.overload("bitmap_pack"), operators.overload("bitmap_unpack")
_SCALED_LINEAR = operators.overload("bitmap_scaled_linear")


def linear(
    x: Tensor, values: Tensor, bits: Tensor, crow: Tensor, bias: Tensor | None, strict: bool = False,
    activation: str | None = None, residual: Tensor | None = None, kernel: str = "",
) -> Tensor:  # fmt: skip
    """Returns act(x W^T + bias) + residual as [..., rows] of x [..., cols]; without gradients. ``strict``
    forbids the dense and reference kernels; ``kernel`` forces a candidate by name."""
    options = bias, activation_code("linear", activation), residual, row_of(kernel), strict
    y: Tensor = run(_LINEAR, x, values, bits, crow, *options)
    return y


def dx(
    dy: Tensor, values: Tensor, bits: Tensor, crow: Tensor, cols: int, strict: bool = False, kernel: str = ""
) -> Tensor:
    """Returns dY W as [..., cols] of dy [..., rows]."""
    result: Tensor = run(_DX, dy, values, bits, crow, cols, row_of(kernel), strict)
    return result


def dw(
    dy: Tensor, x: Tensor, bits: Tensor, crow: Tensor, stored: int, strict: bool = False, kernel: str = ""
) -> Tensor:
    """Returns the ``stored`` elements of dY^T X, of dy [tokens, rows] and x [tokens, cols]."""
    gradient: Tensor = run(_DW, dy, x, bits, crow, stored, row_of(kernel), strict)
    return gradient


def pack(dense: Tensor, bits: Tensor, crow: Tensor, stored: int) -> Tensor:
    """Returns the ``stored`` elements of ``dense`` [rows, cols], of any dtype that layers have, by rows;
    without gradients."""
    values: Tensor = run(_PACK, dense, bits, crow, stored)
    return values


def unpack(values: Tensor, bits: Tensor, crow: Tensor, cols: int) -> Tensor:
    """Returns W [rows, cols] with zeros where nothing is stored; without gradients."""
    dense: Tensor = run(_UNPACK, values, bits, crow, cols)
    return dense


def scaled_linear(
    x: Tensor, values: Tensor, bits: Tensor, crow: Tensor, x_scale: Tensor | None, w_scale: Tensor,
    bias: Tensor | None = None, *, out_dtype: torch.dtype, activation: str | None = None,
    strict: bool = False, kernel: str = "",
) -> Tensor:  # fmt: skip
    """Returns act(x_scale w_scale (x W^T) + bias) of 8-bit operands as [..., rows] of ``out_dtype``, on the
    CPU; scales, what x may be, exactness and errors are those of ops.scaled_linear. There are no
    gradients."""
    named = {"x": x, "x_scale": x_scale, "w_scale": w_scale, "bias": bias}
    asked_of = next((name for name, each in named.items() if each is not None and differentiated(each)), "")
    if asked_of:
        remedy = "call it in torch.no_grad(), or train the float layer"
        raise Error("scaled_linear", "operands without gradients", f"{asked_of} that requires one", remedy)
    operands = x, values, bits, crow, x_scale, w_scale, out_dtype
    how = bias, activation_code("scaled_linear", activation), row_of(kernel), strict
    y: Tensor = run(_SCALED_LINEAR, *operands, *how)
    return y


def plan(
    direction: str,
    dtype: torch.dtype,
    m: int,
    sizes: tuple[int, int, int],
    bias: bool = False,
    kernel: str = "",
    strict: bool = False,
    activation: str | None = None,
    residual: bool = False,
) -> dict[str, Any]:
    """Returns the plan of a product of m tokens on the CPU; ``sizes``: rows, cols, stored. See ops.plan for
    its keys."""
    epilogue = bias, activation_code("plan", activation), residual
    problem = sizes, direction, dtype_name("plan", dtype), m, -1
    return asked("bitmap_linear", *problem, epilogue, row_of(kernel), strict)


def scaled_plan(
    dtype: torch.dtype,
    m: int,
    sizes: tuple[int, int, int],
    bias: bool,
    activation: str | None,
    out_dtype: torch.dtype,
    strict: bool = False,
    kernel: str = "",
) -> dict[str, Any]:
    """Returns the plan of ``scaled_linear`` for m tokens and a weight of those sizes; see ``plan``."""
    what = sizes, "forward", planned_dtype(dtype, out_dtype), m, -1
    epilogue = bias, activation_code("plan", activation), False
    return asked("bitmap_linear", *what, epilogue, row_of(kernel), strict)


@fake("bitmap_scaled_linear", flops.of_values)
def _bitmap_scaled_linear_fake(
    x: Tensor, values: Tensor, bits: Tensor, crow: Tensor, x_scale: Tensor | None, w_scale: Tensor,
    out_dtype: torch.dtype, *rest: Any, **named: Any,
) -> Tensor:  # fmt: skip
    return x.new_empty((*x.shape[:-1], crow.shape[0] - 1), dtype=out_dtype)


@fake("bitmap_linear", flops.of_values)
def _bitmap_linear_fake(
    x: Tensor, values: Tensor, bits: Tensor, crow: Tensor, *rest: Any, **named: Any
) -> Tensor:
    return x.new_empty((*x.shape[:-1], crow.shape[0] - 1))


@fake("bitmap_pack")
def _bitmap_pack_fake(dense: Tensor, bits: Tensor, crow: Tensor, stored: int) -> Tensor:
    return dense.new_empty(stored)


@fake("bitmap_unpack")
def _bitmap_unpack_fake(values: Tensor, bits: Tensor, crow: Tensor, cols: int) -> Tensor:
    return values.new_empty((crow.shape[0] - 1, cols))


@fake("bitmap_dx", flops.of_values)
def _bitmap_dx_fake(
    dy: Tensor, values: Tensor, bits: Tensor, crow: Tensor, cols: int, *rest: Any, **named: Any
) -> Tensor:
    return dy.new_empty((*dy.shape[:-1], cols))


def _dw_flops(
    dy: flops.Shape,
    x: flops.Shape,
    bits: flops.Shape,
    crow: flops.Shape,
    stored: int,
    *rest: Any,
    **named: Any,
) -> int:
    return 2 * stored * prod(dy[:-1])


@fake("bitmap_dw", _dw_flops)
def _bitmap_dw_fake(
    dy: Tensor, x: Tensor, bits: Tensor, crow: Tensor, stored: int, *rest: Any, **named: Any
) -> Tensor:
    return dy.new_empty(stored)

"""The operators of weights of dense, 2:4 and absent tiles as functions: the table, the products, and plans.

W [rows, cols] is given by ``values`` [stored], ``table`` int32 [groups, units, 4] and ``positions`` uint8
[2:4 tiles * side, side / 8]; include/sparseloom/tiles.h describes them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import flops, operators
from .fakes import fake
from .operators import activation_code, call, row_of, run
from .plans import asked, dtype_name, ordinal

_LINEAR = operators.overload("tiles_linear")
_DX = operators.overload("tiles_dx")


def table(kinds: Tensor, rows: int, cols: int, side: int) -> Tensor:
    """Returns the table of tiles of these kinds, uint8 [tile rows, tile columns] on the CPU: 0 absent, 1 2:4,
    2 dense. Raises Error for other kinds, shapes and sides."""
    made: Tensor = call("tiles_table", kinds, rows, cols, side)
    return made


def order(positions: Tensor, side: int) -> Tensor:
    """Returns the positions in the order in which the tensor cores of their GPU take them, uint8; made once
    for a weight on a GPU and never saved. Raises Error on the CPU."""
    metadata: Tensor = call("tiles_order", positions, side)
    return metadata


def linear(
    x: Tensor, values: Tensor, table: Tensor, positions: Tensor, metadata: Tensor | None, rows: int,
    side: int, bias: Tensor | None = None, activation: str | None = None, residual: Tensor | None = None,
    strict: bool = False, kernel: str = "",
) -> Tensor:  # fmt: skip
    """Returns act(x W^T + bias) + residual as [..., rows] of x [..., cols]; without gradients. ``metadata``:
    what ``order`` made of the positions; without it, a call on a GPU makes it anew.
    ``strict`` forbids the dense and reference kernels; ``kernel`` forces a candidate by name. Raises Error
    when an operand does not fit, and where no kernel can run (`plan` says so before)."""
    options = bias, activation_code("linear", activation), residual, row_of(kernel), strict
    y: Tensor = run(_LINEAR, x, values, table, positions, metadata, rows, side, *options)
    return y


def dx(
    dy: Tensor, values: Tensor, table: Tensor, positions: Tensor, cols: int, side: int,
    strict: bool = False, kernel: str = "",
) -> Tensor:  # fmt: skip
    """Returns dY W as [..., cols] of dy [..., rows], on the CPU; without gradients. ``strict``, ``kernel``
    and errors are those of ``linear``."""
    operands = dy, values, table, positions, cols, side
    dx: Tensor = run(_DX, *operands, row_of(kernel), strict)
    return dx


def plan(
    direction: str, dtype: torch.dtype, m: int, sizes: tuple[int, int, int, int, int],
    device: torch.device | str | int, bias: bool = False, activation: str | None = None,
    residual: bool = False, strict: bool = False, kernel: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Returns the plan of a product of m tokens; ``sizes``: rows, cols, side, dense tiles, 2:4 tiles. See
    ops.plan for its keys. Raises Error when no candidate can run."""
    epilogue = bias, activation_code("plan", activation), residual
    problem = sizes, direction, dtype_name("plan", dtype), m, ordinal(device)
    return asked("tiles_linear", *problem, epilogue, row_of(kernel), strict)


@fake("tiles_linear", flops.of_values)
def _tiles_linear_fake(
    x: Tensor, values: Tensor, table: Tensor, positions: Tensor, metadata: Tensor | None, rows: int,
    *rest: Any, **named: Any,
) -> Tensor:  # fmt: skip
    return x.new_empty((*x.shape[:-1], rows))


@fake("tiles_dx", flops.of_values)
def _tiles_dx_fake(
    dy: Tensor, values: Tensor, table: Tensor, positions: Tensor, cols: int, *rest: Any, **named: Any
) -> Tensor:
    return dy.new_empty((*dy.shape[:-1], cols))


@fake("tiles_order")
def _tiles_order_fake(positions: Tensor, side: int) -> Tensor:
    return positions.new_empty(positions.shape[0] // 64 * (side // 64) * 512)

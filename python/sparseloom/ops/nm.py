"""The operators of n:m and n:m:g weights as functions: choice, copies, and the product of n:m:g.

include/sparseloom/nm.h and nmg.h describe the tensors. Except for the choice, the operators run on the CPU
only; on other devices the layouts do the same with torch.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from ..errors import Error
from . import flops, operators
from .fakes import fake
from .operators import ACTIVATIONS, PLAN_CHOOSES, call, row_of, run
from .plans import NO_EPILOGUE, asked, dtype_name

_LINEAR = operators.overload("nmg_linear")
_DX, _DW = operators.overload("nmg_dx"), operators.overload("nmg_dw")
_NM_PACK = operators.overload("nm_pack")
_NM_UNPACK = operators.overload("nm_unpack")
_NMG_PACK = operators.overload("nmg_pack")
_NMG_UNPACK = operators.overload("nmg_unpack")


def require_weight(op: str, weight: object) -> Tensor:
    """Returns the weight without its gradient. Raises Error unless it is a strided matrix with values."""
    if (
        not isinstance(weight, Tensor)
        or weight.layout != torch.strided
        or weight.dim() != 2
        or weight.is_meta
    ):
        got = f"{weight.layout} {list(weight.shape)}" if isinstance(weight, Tensor) else repr(weight)
        got += " on the meta device" if isinstance(weight, Tensor) and weight.is_meta else ""
        raise Error(op, "a strided weight [out_features, in_features] with values", got, "pass layer.weight")
    return weight.detach()


def largest_positions(weight: Tensor, n: int, m: int) -> Tensor:
    """Returns the positions of the n largest of each m elements, on the weight's device."""
    mask = call("sparsifier_mask", weight, "per_block_nm", 0.0, n, m, 0)
    return positions(mask, n, m)


def positions(mask: Tensor, n: int, m: int) -> Tensor:
    """Returns the positions of the true elements of a mask. Raises Error that names the first group with more
    than n."""
    result: Tensor = call("nm_positions", mask.cpu(), n, m)
    return result.to(mask.device)


def order(weight: Tensor, n: int, m: int, g: int) -> Tensor:
    """Returns the order of an n:m:g weight, on the weight's device."""
    result: Tensor = call("nmg_order", weight.cpu(), n, m, g)
    return result.to(weight.device)


def pattern_places(n: int, m: int) -> Tensor:
    """Returns the places of all patterns of n in m: uint8 [patterns, n], on the CPU."""
    places: Tensor = call("nmg_places", n, m)
    return places


def require_valid(op: str, validate: str, index: Tensor, *sizes: int) -> None:
    """Raises Error, in the name of ``op``, unless the operator ``validate`` takes the index."""
    try:
        call(validate, index.cpu(), *sizes)
    except Error as error:
        raise Error(op, error.expected, error.actual, error.remedy) from None


def on_host(*tensors: Tensor) -> bool:
    """Returns whether all tensors are on the CPU, which the operators need."""
    return all(tensor.device.type == "cpu" for tensor in tensors)


def linear(
    x: Tensor, values: Tensor, order: Tensor, bias: Tensor | None, *sizes: int,
    row: str = "", strict: bool = False,
) -> Tensor:  # fmt: skip
    """Returns x W^T + bias; ``sizes``: rows, cols, n, m, g. ``strict`` forbids the dense and reference
    kernels."""
    options = bias, ACTIVATIONS[None], None, row_of(row), strict
    y: Tensor = run(_LINEAR, x, values, order, *sizes, *options)
    return y


def dx(dy: Tensor, values: Tensor, order: Tensor, *sizes: int, row: str = "", strict: bool = False) -> Tensor:
    """Returns dY W as [..., cols] of dy [..., rows]; ``sizes`` and ``strict`` as above."""
    result: Tensor = run(_DX, dy, values, order, *sizes, row_of(row), strict)
    return result


def dw(dy: Tensor, x: Tensor, order: Tensor, *sizes: int, row: str = "", strict: bool = False) -> Tensor:
    """Returns dY^T X [out, in] at the stored elements, in the shape of the values; zero as padding."""
    gradient: Tensor = run(_DW, dy, x, order, *sizes, row_of(row), strict)
    return gradient


def nm_pack(dense: Tensor, positions: Tensor, m: int) -> Tensor:
    values: Tensor = run(_NM_PACK, dense, positions, m)
    return values


def nm_unpack(values: Tensor, positions: Tensor, cols: int, m: int) -> Tensor:
    dense: Tensor = run(_NM_UNPACK, values, positions, cols, m)
    return dense


def nmg_pack(dense: Tensor, order: Tensor, n: int, m: int, g: int) -> Tensor:
    values: Tensor = run(_NMG_PACK, dense, order, n, m, g)
    return values


def nmg_unpack(values: Tensor, order: Tensor, *sizes: int) -> Tensor:
    """Returns W; ``sizes``: rows, cols, n, m, g."""
    dense: Tensor = run(_NMG_UNPACK, values, order, *sizes)
    return dense


def plan(
    sizes: tuple[int, ...], direction: str, dtype: torch.dtype, m: int, bias: bool, strict: bool = False
) -> dict[str, Any]:
    """Returns the plan of a product of m tokens on the CPU; see ops.plan for its keys."""
    dtype_text = dtype_name("plan", dtype)
    bare = bias, *NO_EPILOGUE[1:]
    return asked("nmg_linear", sizes, direction, dtype_text, m, -1, bare, PLAN_CHOOSES, strict)


@fake("nm_positions")
def _nm_positions_fake(mask: Tensor, n: int, m: int) -> Tensor:
    return mask.new_empty((mask.shape[0], -(-mask.shape[1] // m), n), dtype=torch.uint8)


@fake("nm_pack")
def _nm_pack_fake(dense: Tensor, positions: Tensor, m: int) -> Tensor:
    return dense.new_empty(positions.shape)


@fake("nm_unpack")
def _nm_unpack_fake(values: Tensor, positions: Tensor, cols: int, m: int) -> Tensor:
    return values.new_empty((values.shape[0], cols))


@fake("nmg_pack")
def _nmg_pack_fake(dense: Tensor, order: Tensor, n: int, m: int, g: int) -> Tensor:
    return dense.new_empty((*order.shape, n))


@fake("nmg_unpack")
def _nmg_unpack_fake(values: Tensor, order: Tensor, rows: int, cols: int, *rest: Any) -> Tensor:
    return values.new_empty((rows, cols))


@fake("nmg_dx", flops.of_values)
def _nmg_dx_fake(dy: Tensor, values: Tensor, order: Tensor, rows: int, cols: int, *rest: Any) -> Tensor:
    return dy.new_empty((*dy.shape[:-1], cols))


def _dw_flops(
    dy: flops.Shape, x: flops.Shape, order: flops.Shape, rows: int, cols: int, n: int, *rest: Any
) -> int:
    return 2 * prod(order) * n * prod(dy[:-1])


@fake("nmg_dw", _dw_flops)
def _nmg_dw_fake(dy: Tensor, x: Tensor, order: Tensor, rows: int, cols: int, n: int, *rest: Any) -> Tensor:
    return dy.new_empty((*order.shape, n))


@fake("nmg_linear", flops.of_values)
def _nmg_linear_fake(x: Tensor, values: Tensor, order: Tensor, rows: int, *rest: Any, **named: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows))

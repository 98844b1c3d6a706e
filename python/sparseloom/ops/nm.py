"""The operators of n:m and n:m:g weights as functions: choice, copies, and the product of n:m:g.

include/sparseloom/nm.h and nmg.h say what the tensors hold. But for the choice, the operators work on the
CPU; on other devices the layouts do the same with torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import Error
from . import operators
from .operators import ACTIVATIONS, PLAN_CHOOSES, call, row_of, run
from .plans import NO_EPILOGUE, asked, dtype_name


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
    made: Tensor = call("nm_positions", mask.cpu(), n, m)
    return made.to(mask.device)


def order(weight: Tensor, n: int, m: int, g: int) -> Tensor:
    """Returns the order of an n:m:g weight, on the weight's device."""
    made: Tensor = call("nmg_order", weight.cpu(), n, m, g)
    return made.to(weight.device)


def pattern_places(n: int, m: int) -> Tensor:
    """Returns the places of all patterns of n in m: uint8 [patterns, n], on the CPU."""
    made: Tensor = call("nmg_places", n, m)
    return made


def require_valid(op: str, validate: str, index: Tensor, *sizes: int) -> None:
    """Raises Error, in the name of ``op``, unless the operator ``validate`` takes the index."""
    try:
        call(validate, index.cpu(), *sizes)
    except Error as error:
        raise Error(op, error.expected, error.actual, error.remedy) from None


def on_host(*tensors: Tensor) -> bool:
    """Returns whether the operators take these tensors."""
    return all(each.device.type == "cpu" for each in tensors)


def linear(
    x: Tensor, values: Tensor, order: Tensor, bias: Tensor | None, *sizes: int,
    row: str = "", strict: bool = False,
) -> Tensor:  # fmt: skip
    """Returns x W^T + bias; ``sizes``: rows, cols, n, m, g. ``strict`` forbids the dense and reference
    kernels."""
    how = bias, ACTIVATIONS[None], None, row_of(row), strict
    made: Tensor = run(operators.nmg_linear, x, values, order, *sizes, *how)
    return made


def nm_pack(dense: Tensor, positions: Tensor, m: int) -> Tensor:
    made: Tensor = run(operators.nm_pack, dense, positions, m)
    return made


def nm_unpack(values: Tensor, positions: Tensor, cols: int, m: int) -> Tensor:
    made: Tensor = run(operators.nm_unpack, values, positions, cols, m)
    return made


def nmg_pack(dense: Tensor, order: Tensor, n: int, m: int, g: int) -> Tensor:
    made: Tensor = run(operators.nmg_pack, dense, order, n, m, g)
    return made


def nmg_unpack(values: Tensor, order: Tensor, *sizes: int) -> Tensor:
    """Returns W; ``sizes``: rows, cols, n, m, g."""
    made: Tensor = run(operators.nmg_unpack, values, order, *sizes)
    return made


def plan(
    sizes: tuple[int, ...], direction: str, dtype: torch.dtype, m: int, bias: bool, strict: bool = False
) -> dict[str, Any]:
    """Returns the plan of a product of m tokens on the CPU; see ops.plan for its keys."""
    dtype_text = dtype_name("plan", dtype)
    bare = bias, *NO_EPILOGUE[1:]
    return asked("nmg_linear", sizes, direction, dtype_text, m, -1, bare, PLAN_CHOOSES, strict)

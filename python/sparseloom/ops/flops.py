"""Defines what torch.utils.flop_counter.FlopCounterMode counts for the operators: two flops for each
multiply-add with an element of a stored block."""

from __future__ import annotations

from math import prod
from typing import Any

# takes 2 ms: torch itself has imported what it needs
from torch.utils.flop_counter import register_flop_formula

Shape = tuple[int, ...]


def _forward(x: Shape, values: Shape, *rest: Any, **named: Any) -> int:
    return 2 * prod(values) * prod(x[:-1])


def _dw(
    dy: Shape, x: Shape, index: Shape, blocks: int, block_rows: int, block_cols: int, *rest: Any, **named: Any
) -> int:
    return 2 * blocks * block_rows * block_cols * prod(dy[:-1])


def _dw_add(dvalues: Shape, dy: Shape, *rest: Any, **named: Any) -> int:
    return 2 * prod(dvalues) * prod(dy[:-1])


def _backward(
    dy: Shape,
    saved: Shape | None,
    x: Shape | None,
    values: Shape | None,
    index: Shape,
    in_features: int,
    blocks: int,
    block_rows: int,
    block_cols: int,
    *rest: Any,
    **named: Any,
) -> int:
    return ((x is not None) + (values is not None)) * 2 * blocks * block_rows * block_cols * prod(dy[:-1])


def _csr_dw(dy: Shape, x: Shape, crow: Shape, col: Shape, *rest: Any, **named: Any) -> int:
    return 2 * prod(col) * prod(dy[:-1])


def _gradient_norms(grad_output: Shape, input: Shape, *rest: Any, **named: Any) -> int:
    return 2 * prod(grad_output) * input[-1]


def register(operators: Any) -> None:
    """Registers the flop formula of each product in ``operators``."""
    for name in (
        "bsr_linear",
        "bsr_linear_train",
        "bsr_linear_dx",
        "bsr_scaled_linear",
        "semi24_linear",
        "semi24_scaled_linear",
        "semi24_dx",
        "csr_linear",
        "csr_dx",
        "nmg_linear",
    ):
        register_flop_formula(getattr(operators, name))(_forward)
    for name, formula in (
        ("bsr_linear_dw", _dw),
        ("bsr_linear_dw_add", _dw_add),
        ("csr_dw", _csr_dw),
        ("block_gradient_norms", _gradient_norms),
        ("bsr_linear_backward", _backward),
    ):
        register_flop_formula(getattr(operators, name))(formula)

"""The flops of the operators for torch.utils.flop_counter.FlopCounterMode: two for each multiply-add with a
stored element."""

from __future__ import annotations

from math import prod
from typing import Any

Shape = tuple[int, ...]


def of_values(x: Shape, values: Shape, *rest: Any, **named: Any) -> int:
    return 2 * prod(values) * prod(x[:-1])


def of_glu(x: Shape, values: Shape, index: Shape, factor_values: Shape, *rest: Any, **named: Any) -> int:
    return of_values(x, values) + of_values(x, factor_values)


def of_dw(
    dy: Shape, x: Shape, index: Shape, blocks: int, block_rows: int, block_cols: int, *rest: Any, **named: Any
) -> int:
    return 2 * blocks * block_rows * block_cols * prod(dy[:-1])


def of_dw_add(dvalues: Shape, dy: Shape, *rest: Any, **named: Any) -> int:
    return 2 * prod(dvalues) * prod(dy[:-1])


def of_backward(
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


def of_gradient_norms(grad_output: Shape, input: Shape, *rest: Any, **named: Any) -> int:
    return 2 * prod(grad_output) * input[-1]

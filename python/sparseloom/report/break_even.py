"""Finds the density above which dense is faster, from the plans of balanced patterns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .. import ops
from .. import pattern as patterns
from ..nn.held.state import build_index

LADDER = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)  # densities between which the crossing is interpolated
#: Candidates that are not sparse kernels. The second is the dense one on a GPU for layouts other than blocks.
FALLBACKS = ("dense", "dense_on_device", "reference")


class Size(NamedTuple):
    """The arguments of a prediction, besides block and density."""

    shape: tuple[int, int]  # out features, in features
    tokens: int
    dtype: torch.dtype
    device: torch.device
    bias: bool


def predicted(
    size: Size, block: tuple[int, int], density: float, directions: Sequence[str]
) -> tuple[float | None, dict[str, str]]:
    """Returns the predicted microseconds of the sparse kernels that a balanced pattern would run, all
    directions together, and the kernels' names by direction; (None, {}) where every sparse kernel refuses a
    direction."""
    index = build_index(patterns.balanced(*size.shape, block, density, 0))
    total, kernels = 0.0, {}
    for direction in directions:
        fastest = fastest_sparse(_plan(index, size, direction))
        if fastest is None:
            return None, {}
        kernels[direction] = str(fastest["kernel"])
        total += float(fastest["predicted_us"])
    return total, kernels


def chosen(size: Size, block: tuple[int, int], density: float, directions: Sequence[str]) -> dict[str, str]:
    """Returns the kernels that the plans themselves choose for a balanced pattern, dense and reference ones
    included."""
    index = build_index(patterns.balanced(*size.shape, block, density, 0))
    return {direction: str(_plan(index, size, direction)["kernel"]) for direction in directions}


def _plan(index: ops.Index, size: Size, direction: str) -> dict[str, Any]:
    bias = size.bias and direction == "forward"
    return ops.plan(index, direction, size.dtype, size.tokens, bias, device=size.device)


def fastest_sparse(plan: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the plan's fastest candidate by prediction, without dense and reference kernels; None where
    every other one refuses."""
    sparse = [row for row in plan["candidates"] if not row["refusal"] and row["kernel"] not in FALLBACKS]
    return min(sparse, key=lambda row: float(row["predicted_us"]), default=None)


def break_even(
    size: Size, block: tuple[int, int], directions: Sequence[str], dense_us: float, scale: float = 1.0
) -> float | None:
    """Returns the density at which the predicted time, times ``scale``, meets dense; None when dense is
    faster everywhere."""
    curve = [(density, predicted(size, block, density, directions)[0]) for density in LADDER]
    return crossing([(density, None if us is None else scale * us) for density, us in curve], dense_us)


def crossing(curve: Sequence[tuple[float, float | None]], dense_us: float) -> float | None:
    """Returns the density where a line through (density, us) meets dense; None when dense is faster
    everywhere."""
    points = [(density, us) for density, us in curve if us is not None]
    if not points or points[0][1] >= dense_us:
        return None
    for (low, fast), (high, slow) in itertools.pairwise(points):
        if slow >= dense_us:
            return low + (high - low) * (dense_us - fast) / (slow - fast)
    return points[-1][0]

"""How fast signals spread through patterns: mixing, distances, and the figures of small worlds."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .. import ops
from .._arguments import named_arguments
from .._checks import whole
from ..errors import Error
from .pattern import Pattern


@dataclass(frozen=True)
class SmallWorld:
    """Figures of a pattern's graph: its nodes are the lines of a square grid, and two different ones are
    joined where either of their two blocks is present.

    ``path_length`` and ``diameter`` are the mean and the largest number of steps between two nodes, infinite
    when a pair is not joined at all. ``clustering`` is the mean share of a node's pairs of neighbours that
    are joined. ``figure`` compares both with a random graph of as many edges: (clustering / (k / n)) /
    (path_length / (ln n / ln k)) for n nodes of k edges (Humphries & Gurney 2008). Above 1 is a small world,
    and 0 stands where it is not defined.
    """

    nodes: int
    edges: int
    degree_min: int
    degree_max: int
    degree_mean: float
    path_length: float
    diameter: float
    clustering: float
    figure: float


@named_arguments
def mixing(patterns: Pattern | Sequence[Pattern], steps: int | None = None) -> list[float]:
    """Returns the shares of (input block, output block) pairs that a path joins after 1, 2, .. steps.

    Step t goes through ``patterns[t]``, [out features, in features] as a weight; after the last pattern the
    first follows again. Without ``steps`` there is one step per pattern; a single Pattern is repeated until
    the share no longer rises. Raises Error where a pattern does not take the outputs of the one before it.
    """
    list_of_patterns = [patterns] if isinstance(patterns, Pattern) else patterns
    if not isinstance(list_of_patterns, Sequence) or not all(
        isinstance(pattern, Pattern) for pattern in list_of_patterns
    ):
        got = type(patterns).__name__
        raise Error("pattern_mixing", "a Pattern, or a list of them", got, "pass [layer.pattern, ..]")
    if steps is None:
        steps = 0 if isinstance(patterns, Pattern) else len(list_of_patterns)
    else:
        steps = whole("pattern_mixing", "steps", steps, 1)
    sizes = [size for pattern in list_of_patterns for size in pattern._arguments[1:]]
    shares: list[float] = ops.call(
        "pattern_mixing", [p._bits for p in list_of_patterns], sizes, steps
    ).tolist()
    return shares


@named_arguments
def distances(pattern: Pattern, start: int) -> Tensor:
    """Returns the number of steps that a signal takes from block ``start`` to each block of a square pattern:
    int64 [block rows], -1 where none leads there."""
    _require("pattern_distances", pattern)
    start = whole("pattern_distances", "start", start, None)
    steps: Tensor = ops.call("pattern_distances", *pattern._arguments, start)
    return steps


@named_arguments
def small_world(pattern: Pattern) -> SmallWorld:
    """Returns path length, clustering and the small-world figure of a square pattern."""
    _require("pattern_small_world", pattern)
    answer = json.loads(ops.call("pattern_small_world", *pattern._arguments))
    # Figures that are not counts may be infinite, which JSON cannot write.
    figures = ("degree_mean", "path_length", "diameter", "clustering", "figure")
    reals = {name: math.inf if answer[name] is None else float(answer[name]) for name in figures}
    return SmallWorld(**(answer | reals))


def _require(op: str, pattern: object) -> None:
    if not isinstance(pattern, Pattern):
        raise Error(op, "a Pattern", type(pattern).__name__, "see sparseloom.pattern")

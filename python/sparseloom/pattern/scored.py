"""Patterns by the scores of their blocks: the best of a layer, or of each block row."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import ops
from .._numbers import share, whole
from .._scores import block_scores
from ..errors import Error
from .pattern import Block, Pattern, block_shape, require_sides

#: scope -> the operator that compares scores within that scope.
_SCOPES = {"layer": "pattern_top_k", "row": "pattern_top_k_by_row"}


def _chosen(op: str, rows: int, cols: int, block: Block, scores: Tensor, count: int) -> Pattern:
    """Returns the pattern that an operator makes from scores."""
    shape = block_shape(op, block)
    return Pattern(rows, cols, shape, ops.call(op, scores, rows, cols, *shape, count))


def top_k(rows: int, cols: int, block: Block, scores: Tensor, count: int, scope: str = "layer") -> Pattern:
    """Takes the blocks with the ``count`` highest scores [block rows, block columns]; ties go to the lowest
    index, and NaN raises Error.

    ``scope``: "layer" compares all scores with each other; "row" gives every block row the floor or ceiling
    of its share of the count, so that block rows with small scores keep blocks too.
    """
    scores = _strided("pattern_top_k", "scores", scores).detach().to("cpu", torch.float32).contiguous()
    count = whole("pattern_top_k", "count", count)
    return _chosen(require_scope("pattern_top_k", scope), rows, cols, block, scores, count)


def from_dense(
    weight: Tensor, block: Block, density: float, norm: str = "l1", scope: str = "layer"
) -> Pattern:
    """Takes the round(density * grid) blocks of weight [rows, cols] with the largest ``norm``: "l1" (the sum
    of |w|), "l2" or "max". ``scope`` and ties are as in top_k.

    The blocks of a weight on a GPU are scored there: only the scores are copied to the host.
    """
    bm, bn = block_shape("pattern_from_dense", block)
    if _strided("pattern_from_dense", "weight", weight).dim() != 2:
        raise Error(
            "pattern_from_dense",
            "a weight [rows, cols]",
            str(list(weight.shape)),
            "flatten it to a matrix first",
        )
    rows, cols = weight.shape
    require_sides("pattern_from_dense", bm, bn)
    count = block_count("pattern_from_dense", rows, cols, (bm, bn), density)
    op = require_scope("pattern_from_dense", scope)
    return _chosen(op, rows, cols, (bm, bn), block_scores(weight, (bm, bn), norm), count)


def _strided(op: str, name: str, tensor: Any) -> Tensor:
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_nested:
        got = str(tensor.layout) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise Error(op, f"{name} as a strided tensor", got, "convert it with torch.as_tensor or .to_dense()")
    return tensor


def block_count(op: str, rows: int, cols: int, block: tuple[int, int], density: float) -> int:
    """Returns the number of blocks at that density of the grid, with halves rounded away from zero as in C++.
    Raises Error for a density outside [0, 1]."""
    density = share(op, density)
    if not 0 <= density <= 1:
        raise Error(op, "density in [0, 1]", str(density), "density is the share of blocks that stay")
    return math.floor(density * (-(-rows // block[0]) * -(-cols // block[1])) + 0.5)


def require_scope(op: str, scope: str) -> str:
    """Returns the operator that compares scores within a scope. Raises Error for an unknown scope."""
    if scope not in tuple(_SCOPES):
        listed = " or ".join(repr(name) for name in _SCOPES)
        raise Error(
            op, f"scope to be {listed}", repr(scope), 'pass scope="row" for the same share in every block row'
        )
    return _SCOPES[scope]

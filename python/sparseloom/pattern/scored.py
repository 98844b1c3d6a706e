"""Patterns by the scores of their blocks: the best blocks of a layer, of each block row or of each head."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import ops
from .._arguments import named_arguments
from .._checks import share, whole
from ..errors import Error
from ..ops.scores import block_scores, scores_on_device
from .heads import Head, folded, head_shape, unfolded
from .pattern import Block, Pattern, block_shape, require_sides

#: scope -> the operator that compares scores within that scope.
_SCOPES = {"layer": "pattern_top_k", "row": "pattern_top_k_by_row"}
_REMEDY = 'pass scope="row" for the same share in every block row'


def _chosen(op: str, rows: int, cols: int, block: Block, scores: Tensor, count: int) -> Pattern:
    """Returns the pattern that an operator makes from scores."""
    shape = block_shape(op, block)
    return Pattern(rows, cols, shape, ops.call(op, scores, rows, cols, *shape, count))


@named_arguments
def top_k(
    rows: int,
    cols: int,
    block: Block,
    scores: Tensor,
    count: int,
    scope: str = "layer",
    head: Head | None = None,
) -> Pattern:
    """Takes the blocks with the ``count`` highest scores [block rows, block columns]; ties go to the lowest
    index, and NaN raises Error.

    ``scope``: "layer" compares all scores with each other; "row" gives every block row the floor or ceiling
    of its share of the count, so that block rows with small scores keep blocks too; "head" gives every head
    of an attention the floor or ceiling of its share. ``head`` is (out features, in features) of one head:
    (64, None) or 64 in the projections to query, key and value, (None, 64) in the one behind the attention.
    Raises Error where heads do not divide the weight, or blocks lie across them.
    """
    scores = _strided("pattern_top_k", "scores", scores).detach().to("cpu", torch.float32).contiguous()
    count = whole("pattern_top_k", "count", count)
    return _best("pattern_top_k", rows, cols, block, scores, count, scope, head)


def _best(
    op: str, rows: int, cols: int, block: Block, scores: Tensor, count: int, scope: str, head: Head | None
) -> Pattern:
    if scope != "head":
        return _chosen(require_scope(op, scope, head), rows, cols, block, scores, count)
    sides = block_shape(op, block)
    at = head_shape(op, head)
    lines = folded(op, (rows, cols), sides, at, scores)
    of_heads = ops.call(_SCOPES["row"], lines, 8 * lines.shape[0], 8 * lines.shape[1], 8, 8, count)
    return Pattern(rows, cols, sides, unfolded(of_heads, at, scores))


@named_arguments
def from_nonzero(weight: Tensor, block: Block) -> Pattern:
    """Takes the blocks of weight [rows, cols] that hold an element other than zero; NaN is one."""
    sides = block_shape("pattern_from_nonzero", block)
    if _strided("pattern_from_nonzero", "weight", weight).dim() != 2:
        got, remedy = str(list(weight.shape)), "flatten it to a matrix first"
        raise Error("pattern_from_nonzero", "a weight [rows, cols]", got, remedy)
    require_sides("pattern_from_nonzero", *sides)
    rows, cols = weight.shape
    mask = scores_on_device((weight.detach() != 0).float(), sides, "max") > 0
    return Pattern(rows, cols, sides, mask)


@named_arguments
def from_dense(
    weight: Tensor,
    block: Block,
    density: float,
    norm: str = "l1",
    scope: str = "layer",
    head: Head | None = None,
) -> Pattern:
    """Takes the round(density * grid) blocks of weight [rows, cols] with the largest ``norm``: "l1" (the sum
    of |w|), "l2" or "max". ``scope``, ``head`` and ties are as in top_k.

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
    scores = block_scores(weight, (bm, bn), norm)
    return _best("pattern_from_dense", rows, cols, (bm, bn), scores, count, scope, head)


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
        raise Error(op, "density in [0, 1]", str(density), "pass the share of blocks to keep: density=0.25")
    return math.floor(density * (-(-rows // block[0]) * -(-cols // block[1])) + 0.5)


def require_scope(op: str, scope: str, head: Head | None = None) -> str:
    """Returns the operator that compares scores within a scope other than "head". Raises Error for an unknown
    scope, and for the size of a head beside it."""
    if scope not in tuple(_SCOPES):
        listed = " or ".join(repr(name) for name in _SCOPES)
        raise Error(op, f"scope to be {listed}", repr(scope), _REMEDY)
    if head is not None:
        got, remedy = f"head={head!r} with scope={scope!r}", 'pass scope="head", or leave head out'
        raise Error(op, "the size of a head for a choice by heads", got, remedy)
    return _SCOPES[scope]


def require_any_scope(op: str, scope: str, head: Head | None) -> None:
    """Raises Error for a scope other than "layer", "row" and "head", and for a value that is not the size of
    a head. With "head", None means that the size is found later."""
    if scope == "head":
        if head is not None:
            head_shape(op, head)
    elif scope in tuple(_SCOPES):
        require_scope(op, scope, head)
    else:
        listed = ", ".join(repr(name) for name in (*_SCOPES, "head"))
        raise Error(op, f"scope to be one of {listed}", repr(scope), _REMEDY)

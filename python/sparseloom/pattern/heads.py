"""Cuts an attention's weight into the parts of its heads, so that blocks can be chosen for each head."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

from .._checks import whole
from ..errors import Error

#: (out features, in features) of one head; one of them is None, for all features. An int counts out features.
Head: TypeAlias = int | tuple[int | None, int | None]


def head_shape(op: str, head: Head | None) -> tuple[int, int]:
    """Returns the axis along which heads follow one another, 0 for out and 1 for in features, and the
    features of one head. Raises Error for anything that is not the size of a head."""
    pair = head if isinstance(head, tuple) else (head, None)
    axes = [axis for axis, size in enumerate(pair) if size is not None]
    if len(pair) != 2 or len(axes) != 1:
        remedy = (
            "pass head=(64, None) for query, key and value, or head=(None, 64) for what follows attention"
        )
        raise Error(
            op, "head as (out features, in features) of one head, one of them None", repr(head), remedy
        )
    return axes[0], whole(op, "head", pair[axes[0]], 1)


def folded(
    op: str, shape: tuple[int, int], block: tuple[int, int], head: tuple[int, int], scores: Tensor
) -> Tensor:
    """Returns scores [block rows, block columns] with all blocks of a head in one line: [heads, blocks of a
    head]. Where a block holds several heads, their line is the block row's. Raises Error where heads do not
    divide the features, or a block would lie in parts of two heads."""
    axis, size = head
    features, side = shape[axis], block[axis]
    named = ("out features", "in features")[axis]
    if features % size:
        expected = f"heads that divide the {features} {named}"
        raise Error(op, expected, f"heads of {size}", "pass the features of one head: head_dim")
    if size % side and side % size:
        expected = f"blocks that divide a head of {size} {named}, or hold whole heads"
        raise Error(op, expected, f"blocks of {side}", 'choose such a block, or scope="row"')
    return _along(scores, axis).reshape(-1, max(1, size // side) * scores.shape[1 - axis]).contiguous()


def unfolded(chosen: Tensor, head: tuple[int, int], like: Tensor) -> Tensor:
    """Returns a choice among ``folded`` scores in the shape of the scores, ``like``."""
    axis, _ = head
    return _along(chosen.reshape(_along(like, axis).shape), axis)


def heads_without_blocks(mask: Tensor, block: tuple[int, int], head: tuple[int, int]) -> tuple[int, int]:
    """Returns how many heads have none of the blocks of ``mask``, bool [block rows, block columns], and how
    many heads there are; (0, 0) where blocks lie across heads."""
    axis, size = head
    side = block[axis]
    lines = _along(mask, axis)
    blocks_per_head = max(1, size // side)
    if (size % side and side % size) or lines.shape[0] % blocks_per_head:
        return 0, 0
    filled = lines.reshape(-1, blocks_per_head * lines.shape[1]).any(1)
    in_a_line = max(1, side // size)
    return int((~filled).sum()) * in_a_line, filled.numel() * in_a_line


def _along(of_blocks: Tensor, axis: int) -> Tensor:
    return of_blocks if axis == 0 else of_blocks.t()

"""Calls the operators of attention over kept blocks; sparseloom.attention checks the arguments."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from .. import operators
from . import fakes as fakes

ATTENTION = operators.overload("block_attention")
BACKWARD = operators.overload("block_attention_backward")
TRANSPOSE = operators.overload("block_attention_transpose")
LISTS = operators.overload("block_attention_lists")


class Call(NamedTuple):
    """The arguments of the operator block_attention after q, k and v, in its order."""

    counts: Tensor
    indices: Tensor
    q_block: int
    kv_block: int
    causal: bool
    scale: float
    key_counts: Tensor | None = None
    key_indices: Tensor | None = None
    q_starts: Tensor | None = None
    kv_starts: Tensor | None = None
    max_q: int = 0
    max_kv: int = 0
    q_documents: Tensor | None = None
    kv_documents: Tensor | None = None
    row: int = operators.PLAN_CHOOSES
    strict: bool = False


def transpose(counts: Tensor, indices: Tensor, key_blocks: int) -> tuple[Tensor, Tensor]:
    """Returns the lists of keys that belong to lists of queries: counts [.., key_blocks] and indices [..,
    key_blocks, lists], of which the first ``counts`` are written."""
    to_counts, to_indices = operators.run(TRANSPOSE, counts, indices, key_blocks)
    return to_counts, to_indices


def lists_of_map(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Returns counts [batch, heads, q blocks] and indices [.., kv blocks] of a map [batch, heads, q blocks,
    kv blocks], bool or uint8: 0 absent, 1 whole, 2 partial."""
    counts, indices = operators.run(LISTS, codes)
    return counts, indices

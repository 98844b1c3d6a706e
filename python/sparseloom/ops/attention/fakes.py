"""Fake kernels and flops of the operators of attention, for compilers."""

from typing import Any

import torch
from torch import Tensor

from ..fakes import fake

Shape = tuple[int, ...]


def _pairs(q: Shape, indices: Shape, q_block: int, kv_block: int) -> int:
    """Counts the pairs of queries and keys that the lists have room for, times the head size. The counts are
    on the device, so their padding is counted, too: exact for lists that were trimmed."""
    batch = q[0] if len(q) == 4 else max(1, indices[0])
    queries = batch * q[1] * indices[-2] * q_block
    return queries * indices[-1] * kv_block * q[-1]


def of_forward(
    q: Shape, k: Shape, v: Shape, counts: Shape, indices: Shape, q_block: int, kv_block: int, *rest: Any,
    **named: Any,
) -> int:  # fmt: skip
    return 4 * _pairs(q, indices, q_block, kv_block)


def of_backward(
    dout: Shape, dlse: Shape | None, q: Shape, k: Shape, v: Shape, out: Shape, lse: Shape, counts: Shape,
    indices: Shape, key_counts: Shape, key_indices: Shape, q_block: int, kv_block: int, *rest: Any,
    **named: Any,
) -> int:  # fmt: skip
    return 10 * _pairs(q, indices, q_block, kv_block)


def _result_like(x: Tensor) -> Tensor:
    """Has tokens or heads outermost in memory, as x has: result_like in bindings/torch/attention.cpp."""
    if x.dim() != 4 or x.stride(1) >= x.stride(2):
        return x.new_empty(x.shape)
    batch, heads, tokens, head_dim = x.shape
    return x.new_empty((batch, tokens, heads, head_dim)).transpose(1, 2)


@fake("block_attention", of_forward)
def _attention_fake(q: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, Tensor]:
    sizes = q.shape[:-1] if q.dim() == 4 else (q.shape[1], q.shape[0])
    return _result_like(q), q.new_empty(sizes, dtype=torch.float32)


@fake("block_attention_backward", of_backward)
def _attention_backward_fake(
    dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **named: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _result_like(q), _result_like(k), _result_like(v)


@fake("block_attention_transpose")
def _transpose_fake(counts: Tensor, indices: Tensor, lists: int) -> tuple[Tensor, Tensor]:
    sizes = (*counts.shape[:-1], lists)
    return counts.new_empty(sizes), indices.new_empty((*sizes, counts.shape[-1]))


@fake("block_attention_lists")
def _lists_fake(map: Tensor) -> tuple[Tensor, Tensor]:
    return map.new_empty(map.shape[:-1], dtype=torch.int32), map.new_empty(map.shape, dtype=torch.int32)

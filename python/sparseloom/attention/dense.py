"""Attention over all keys by torch's scaled_dot_product_attention: the dense twin of a call."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..errors import Error
from .call import Asked


def dense(asked: Asked) -> Tensor:
    """Returns what a call would give if its pattern kept every block. Raises Error for sequences of several
    lengths in one tensor."""
    q, k, v, causal = asked.q, asked.k, asked.v, asked.causal
    if asked.ragged:
        raise Error("attention", "sequences of one length for a dense twin", "cu_seqlens", "time them apart")
    grouped, mask = q.shape[1] != k.shape[1], _mask(asked)
    is_causal = causal and mask is None
    return scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale=asked.scale, enable_gqa=grouped)


def _mask(asked: Asked) -> Tensor | None:
    """Returns the mask of documents, and of causal order where torch's own aligns the first tokens."""
    (m, n), pattern = (asked.q.shape[2], asked.k.shape[2]), asked.pattern
    documents, kept = pattern.q_documents, None
    if documents is not None and pattern.kv_documents is not None:
        kept = (documents[:, :m, None] == pattern.kv_documents[:, None, :n])[:, None]
    if asked.causal and (kept is not None or m != n):
        before = torch.ones(m, n, dtype=torch.bool, device=asked.q.device).tril(n - m)
        kept = before if kept is None else kept & before
    return kept

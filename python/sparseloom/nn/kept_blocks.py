"""Attention over kept blocks as nn.MultiheadAttention is called, with its masks."""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention.call import attention
from ..attention.pattern import AttentionPattern
from ..errors import Error

_OP = "attention"


def attend(
    q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, padding: Tensor | None, mask: Tensor | None,
    is_causal: bool, need_weights: bool, dropout: float,
) -> Tensor:  # fmt: skip
    """Returns the attention of q, k and v [batch, heads, tokens, head size] over the blocks of the pattern.

    ``padding`` [batch, keys] and ``mask`` [queries, keys] are as in nn.MultiheadAttention: true, or -inf,
    where attention is forbidden. Raises Error for weights, dropout, and a mask that is not causal order. No
    mask on a GPU is read: causal order is what ``is_causal`` says, and padding in numbers has 0 and -inf.
    """
    if need_weights:
        remedy = "call it with need_weights=False, as torch's encoder layers do"
        raise Error(_OP, "a call without attention weights", "need_weights=True", remedy)
    if dropout:
        raise Error(_OP, "attention without dropout", f"dropout {dropout}", "set the module's dropout to 0")
    if mask is not None:
        _require_causal(mask, is_causal)
        if q.shape[2] != k.shape[2]:
            got = f"{q.shape[2]} and {k.shape[2]}"
            remedy = "torch's mask aligns the first tokens, kernels here the last ones"
            raise Error(_OP, "as many queries as keys beside a causal mask", got, remedy)
    if padding is not None:
        pattern = pattern.to(padding.device).where_keys(_kept(padding))
    return attention(q, k, v, pattern, causal=mask is not None)


def _require_causal(mask: Tensor, is_causal: bool) -> None:
    if is_causal:  # torch's own promise
        return
    remedy = "give the pattern what the mask says; a causal one may come with is_causal=True"
    if mask.device.type != "cpu" or torch.compiler.is_compiling() or mask.dim() != 2:
        got = f"{list(mask.shape)} on {mask.device}"
        raise Error(_OP, "no attn_mask, or a causal one with is_causal=True", got, remedy)
    forbidden = torch.ones_like(mask, dtype=torch.bool).triu(1)
    if not torch.equal(_forbidden(mask), forbidden):
        raise Error(_OP, "an attn_mask of causal order", "another one", remedy)


def _kept(padding: Tensor) -> Tensor:
    if padding.device.type == "cpu" and not torch.compiler.is_compiling():
        return ~_forbidden(padding)
    return ~padding if padding.dtype == torch.bool else padding == 0


def _forbidden(mask: Tensor) -> Tensor:
    """Returns where a mask on the CPU forbids attention. Raises Error for one that adds other numbers."""
    if mask.dtype == torch.bool:
        return mask
    forbidden = mask == -torch.inf
    if not ((mask == 0) | forbidden).all():
        remedy = "kernels here add nothing to the scores; use dense attention for a bias"
        raise Error(_OP, "a mask of 0 and -inf", "one with other numbers", remedy)
    return forbidden

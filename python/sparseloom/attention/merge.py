"""Puts partial results of one attention together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .._arguments import named_arguments
from ..errors import Error


@named_arguments
def merge(parts: Sequence[tuple[Tensor, Tensor]], base2: bool = False) -> tuple[Tensor, Tensor]:
    """Returns out and lse of attention over all keys, of (out, lse) over parts of them: what a context
    parallel or a split attention exchanges. Differentiable; sums are in float32.

    out is [batch, heads, tokens, head size] with lse [batch, heads, tokens], or, of calls with cu_seqlens,
    [tokens, heads, head size] with [heads, tokens]. ``base2``: the lse are, and the result's is, in base 2.
    """
    if not parts:
        raise Error("attention.merge", "one (out, lse) or more", "none", "pass the results of the parts")
    factor = math.log(2) if base2 else 1.0
    lses = torch.stack([lse.float() * factor for _, lse in parts])
    total = torch.logsumexp(lses, 0)
    # A row that no part has keys for is -inf in all: it stays zero and -inf, with a gradient of zero.
    empty = total == -math.inf
    shares = (lses - total.masked_fill(empty, 0.0)).exp()
    out = None
    for (each, _), share in zip(parts, shares, strict=True):
        weight = (share.transpose(-1, -2) if each.dim() == 3 else share).unsqueeze(-1)
        term = each.float() * weight
        out = term if out is None else out + term
    assert out is not None
    return out.to(parts[0][0].dtype), total / factor

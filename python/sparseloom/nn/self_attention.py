"""BlockSparseSelfAttention: self-attention over kept blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .._checks import require_bool, whole
from ..attention.call import attention
from ..attention.pattern import AttentionPattern
from ..attention.plans import planned
from ..errors import Error
from .arguments import added, drawing, like_of
from .held.options import WithOptions

#: A pattern for one number of tokens, or a function of the tokens that returns one.
Source: TypeAlias = "AttentionPattern | Callable[[int], AttentionPattern]"


class BlockSparseSelfAttention(WithOptions):
    """Projects x to queries, keys and values, attends over the kept blocks, and projects the result.

    Args:
        embed_dim: the features of x [batch, tokens, embed_dim].
        num_heads: the heads of queries; embed_dim / num_heads is the head size.
        pattern: an AttentionPattern for one number of tokens, which moves with the module; or a function of
            the number of tokens, asked in each call.
        kv_heads: the heads of keys and values, a divisor of num_heads; None: num_heads.
        bias, causal: as their names say. seed: an int or a torch.Generator, for the projections.

    The pattern is no part of state_dict; the projections are dense nn.Linear modules, ``qkv`` and
    ``out_proj``, which sparsify_ takes as any other. ``strict = True`` forbids the reference kernel.
    """

    pattern: Source
    strict: bool = False

    def __init__(
        self, embed_dim: int, num_heads: int, *, pattern: Source, kv_heads: int | None = None,
        bias: bool = True, causal: bool = False, device: Any = None, dtype: torch.dtype | None = None,
        seed: torch.Generator | int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        op = "BlockSparseSelfAttention"
        self.embed_dim, self.num_heads = (
            whole(op, "embed_dim", embed_dim, 1),
            whole(op, "num_heads", num_heads, 1),
        )
        self.kv_heads = self.num_heads if kv_heads is None else whole(op, "kv_heads", kv_heads, 1)
        require_bool(op, "causal", causal)
        if self.embed_dim % self.num_heads or self.num_heads % self.kv_heads:
            got = f"{embed_dim}, {num_heads} and {self.kv_heads}"
            expected = "embed_dim a multiple of num_heads, and that one of kv_heads"
            raise Error(op, expected, got, "choose heads that divide them")
        if not isinstance(pattern, AttentionPattern) and not callable(pattern):
            remedy = "see sparseloom.attention.patterns"
            raise Error(op, "an AttentionPattern, or a function of tokens", type(pattern).__name__, remedy)
        self.head_dim = self.embed_dim // self.num_heads
        self.pattern, self.causal = pattern, causal
        width = (self.num_heads + 2 * self.kv_heads) * self.head_dim
        with drawing(op, seed, like_of(op, device, dtype).device):
            self.qkv = nn.Linear(self.embed_dim, width, bias, device, dtype)
            self.out_proj = nn.Linear(self.embed_dim, self.embed_dim, bias, device, dtype)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Maps x [batch, tokens, embed_dim] to that shape, and adds the ``residual`` of that shape."""
        if x.dim() != 3 or x.shape[-1] != self.embed_dim:
            expected = f"x [batch, tokens, {self.embed_dim}]"
            remedy = "add a dimension of batches"
            raise Error("BlockSparseSelfAttention", expected, str(list(x.shape)), remedy)
        heads = self.num_heads, self.kv_heads, self.kv_heads
        q, k, v = self.qkv(x).unflatten(-1, (sum(heads), self.head_dim)).transpose(1, 2).split(heads, 1)
        out = attention(q, k, v, self._pattern_at(x), causal=self.causal, strict=self.strict)
        return added(self.out_proj(out.transpose(1, 2).flatten(2)), residual)

    def plan(
        self,
        x_shape: Sequence[int] = (),
        direction: str = "forward",
        dtype: torch.dtype | None = None,
        *,
        shape: Sequence[int] | None = None,
        **unknown: Any,
    ) -> dict[str, Any]:
        """Returns what the attention of x [batch, tokens, embed_dim] runs, and why: ``kernel``,
        ``predicted_us``, ``candidates``, each with its refusal, and ``text``. The projections have plans of
        their own where they are sparse.

        ``direction`` is forward, or dx for the gradient. ``dtype`` is the module's own by default; its device
        is asked (on meta: the CPU). ``shape`` is another name of x_shape. Raises Error for another direction
        or shape, and where nothing runs."""
        if direction not in ("forward", "dx"):
            raise Error("plan", "a direction of forward, dx", repr(direction), "choose one of them")
        x_shape = x_shape if shape is None else shape
        if unknown or not isinstance(x_shape, Sequence) or len(x_shape) != 3 or x_shape[-1] != self.embed_dim:
            expected = f"x_shape [batch, tokens, {self.embed_dim}]"
            got = f"{', '.join(unknown)}=" if unknown else repr(x_shape)
            raise Error("plan", expected, got, f"pass layer.plan([1, 128, {self.embed_dim}]), for example")
        (batch, tokens, _), weight = x_shape, self.qkv.weight
        pattern = self._pattern_of(tokens)
        q, k = ([batch, heads, tokens, self.head_dim] for heads in (self.num_heads, self.kv_heads))
        of = q, k, dtype or weight.dtype, weight.device, pattern.indices.shape[-1], pattern.block
        causal, documents = self.causal or pattern.causal, pattern.q_documents is not None
        return planned(*of, causal, documents, backward=direction == "dx", strict=self.strict)

    def _pattern_of(self, tokens: int) -> AttentionPattern:
        return self.pattern if isinstance(self.pattern, AttentionPattern) else self.pattern(tokens)

    def _pattern_at(self, x: Tensor) -> AttentionPattern:
        """Returns the pattern for x, on meta where x is. Raises Error for one that was made on meta."""
        pattern = self._pattern_of(x.shape[1])
        if x.is_meta:
            return pattern.to(x.device)
        if pattern.counts.is_meta:
            got = "one that was made on meta, where nothing is stored"
            remedy = "set layer.pattern to one that is made outside of torch.device('meta')"
            raise Error("BlockSparseSelfAttention", "a pattern with lists", got, remedy)
        return pattern

    def extra_repr(self) -> str:
        return (
            f"heads={self.num_heads}, kv_heads={self.kv_heads}, causal={self.causal}, pattern={self.pattern}"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Applies .to(), .cuda(), .to_empty() and their like. The pattern, which no state dict has, goes to
        the device of the result, and stays where it is where that is meta."""
        if isinstance(self.pattern, AttentionPattern) and not self.pattern.counts.is_meta:
            device = fn(self.pattern.counts.new_empty(0)).device
            self.pattern = self.pattern if device.type == "meta" else self.pattern.to(device)
        return super()._apply(fn, recurse)

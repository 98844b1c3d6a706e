"""BlockSparseMultiheadAttention: an nn.MultiheadAttention with sparse layers as projections."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy

from ..attention.serving import pattern_of
from ..errors import Error
from .arguments import recorded_by_fx
from .held.options import WithOptions
from .held.pruned_entries import accept_pruned
from .held.sparse_weight import SparseWeight, held, held_descriptions, is_sparse
from .kept_blocks import attend
from .linear import BlockSparseLinear
from .masked.linear import MaskedLinear
from .semi24.linear import Semi24Linear

#: Projection -> (its Parameter in an nn.MultiheadAttention, the suffix of its name in sparsify_).
PROJECTIONS = {"in_proj": ("in_proj_weight", "in_proj"), "out_proj": ("out_proj.weight", "out_proj")}


class BlockSparseMultiheadAttention(WithOptions):
    """Replaces an nn.MultiheadAttention that has one embed_dim for query, key and value, and is called in the
    same way.

    Args:
        dense: the module that it replaces; its biases, and each projection that is not given, stay the same
            Parameters.
        in_proj: the query, key and value projections in one, [3 embed_dim, embed_dim]; None keeps the dense
            one.
        out_proj: the output projection [embed_dim, embed_dim]; None keeps the dense one.

    With a pattern (sparseloom.attention.use_pattern) its attention meets the kept blocks alone.

    In evaluation, torch's own modules take a fused path that bypasses nn.MultiheadAttention; they never
    bypass this module. A dense projection has torch's names in a state dict, in_proj_weight and in_proj_bias.
    """

    def __init__(
        self,
        dense: nn.MultiheadAttention,
        in_proj: BlockSparseLinear | Semi24Linear | None,
        out_proj: BlockSparseLinear | Semi24Linear | None,
    ) -> None:
        super().__init__()
        if not isinstance(dense, nn.MultiheadAttention):
            got, remedy = f"a {type(dense).__name__}", "sparsify_ makes these layers of a model"
            raise Error("BlockSparseMultiheadAttention", "an nn.MultiheadAttention", got, remedy)
        self.embed_dim, self.num_heads, self.head_dim = dense.embed_dim, dense.num_heads, dense.head_dim
        self.dropout, self.batch_first, self.add_zero_attn = (
            dense.dropout,
            dense.batch_first,
            dense.add_zero_attn,
        )
        self.kdim, self.vdim = dense.kdim, dense.vdim
        # torch.nn.TransformerEncoderLayer reads this before it hands the projections' weights to a fused
        # operator.
        self._qkv_same_embed_dim = False
        assert dense.in_proj_weight is not None
        self.in_proj: nn.Module = in_proj or _linear_of(dense.in_proj_weight, dense.in_proj_bias)
        self.out_proj: nn.Module = out_proj or _linear_of(dense.out_proj.weight, dense.out_proj.bias)
        self.bias_k, self.bias_v = dense.bias_k, dense.bias_v
        self.register_load_state_dict_pre_hook(_attention_entries)
        self.register_state_dict_post_hook(_name_as_torch)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Takes the arguments and returns the results of nn.MultiheadAttention.forward, with the same shapes.
        ``is_causal`` is a hint that needs attn_mask, as there; without it, raises Error."""
        if isinstance(query, Proxy):
            masks = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
            flags = {
                "need_weights": need_weights,
                "average_attn_weights": average_attn_weights,
                "is_causal": is_causal,
            }
            return recorded_by_fx(self, query, key=key, value=value, **masks, **flags)  # type: ignore[no-any-return]
        if is_causal and attn_mask is None:
            remedy = "pass the causal mask too, as nn.MultiheadAttention wants it"
            raise Error("attention", "attn_mask with the hint is_causal", "None", remedy)
        batched = query.dim() == 3
        if not batched:
            query, key, value = _each(lambda x: x.unsqueeze(0), query, key, value)
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = _each(lambda x: x.transpose(0, 1), query, key, value)
        q, k, v = self._projected(query, key, value)
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.to(k.dtype).expand(len(k), 1, -1)], 1)
            v = torch.cat([v, self.bias_v.to(v.dtype).expand(len(v), 1, -1)], 1)
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        added = k.shape[1] - key.shape[1]  # positions that every query sees
        q, k, v = (x.reshape(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2) for x in (q, k, v))
        pattern = pattern_of(self, q.shape[2], k.shape[2])
        if pattern is None:
            mask = _mask(attn_mask, key_padding_mask, added, self.num_heads, q)
            y, weights = self._attend(q, k, v, mask, need_weights)
        else:
            how = is_causal, need_weights, self.dropout if self.training else 0.0
            y, weights = attend(q, k, v, pattern, key_padding_mask, attn_mask, *how), None
        y = self.out_proj(y.transpose(1, 2).flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return y.squeeze(0), None if weights is None else weights.squeeze(0)
        return y if self.batch_first else y.transpose(0, 1), weights

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("in_proj_weight", "in_proj_bias"):  # loaders set entries of the state dict by their names
            setattr(self.in_proj, name.removeprefix("in_proj_"), value)
        else:
            super().__setattr__(name, value)

    @property
    def in_proj_weight(self) -> Tensor:
        """The weight of the projection inside, for code that initialises it; a sparse projection gives what
        BlockSparseLinear.weight is."""
        weight = self.in_proj.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def in_proj_bias(self) -> nn.Parameter | None:
        """The bias of the projection inside."""
        projection: Any = self.in_proj
        bias: nn.Parameter | None = projection.bias  # a quantized projection has it among its buffers
        return bias

    def to_dense(self) -> nn.Module:
        """Returns the nn.MultiheadAttention with the same values in their places and zero elsewhere (copied).
        Those of a dense projection are the same Parameters, so that an optimizer continues with them."""
        modules = self.in_proj, self.out_proj
        projections = [p.to_dense() if is_sparse(p) or isinstance(p, MaskedLinear) else p for p in modules]
        in_linear, out_linear = projections
        if isinstance(in_linear, nn.Sequential) or isinstance(out_linear, nn.Sequential):
            remedy = "set the projection's activation = None"
            raise Error("to_dense", "projections without an activation", "one with it", remedy)
        assert isinstance(in_linear, nn.Linear) and isinstance(out_linear, nn.Linear)
        dense = nn.MultiheadAttention(
            *(self.embed_dim, self.num_heads, self.dropout, in_linear.bias is not None),
            add_zero_attn=self.add_zero_attn, batch_first=self.batch_first, device="meta",
        )  # fmt: skip
        dense.register_parameter("in_proj_weight", in_linear.get_parameter("weight"))
        dense.register_parameter(
            "in_proj_bias", None if in_linear.bias is None else in_linear.get_parameter("bias")
        )
        dense.out_proj.weight, dense.out_proj.bias = out_linear.weight, out_linear.bias
        dense.bias_k, dense.bias_v = self.bias_k, self.bias_v
        return dense.train(self.training)

    def sparse_weights(self) -> dict[str, SparseWeight]:
        """Returns the weights of the sparse projections; sparsify_ matches them as name.in_proj and
        name.out_proj."""
        return held(self, PROJECTIONS)

    def describe(self) -> dict[str, dict[str, Any]]:
        """Returns the data that rebuild the sparse projections; see SparseModule."""
        return held_descriptions(self, PROJECTIONS)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Computes one product for self-attention; otherwise the whole projection of each input, of which a
        third is used."""
        if query is key and key is value:
            q, k, v = self.in_proj(query).chunk(3, -1)
            return q, k, v
        q = self.in_proj(query).chunk(3, -1)[0]
        _, k, v = self.in_proj(key).chunk(3, -1)
        return q, k, v if key is value else self.in_proj(value).chunk(3, -1)[2]

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        dropout = self.dropout if self.training else 0.0
        if not need_weights:
            return F.scaled_dot_product_attention(q, k, v, mask, dropout), None
        scores = (q / math.sqrt(self.head_dim)) @ k.transpose(-1, -2)
        weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
        return weights @ v, weights


def _each(
    view: Callable[[Tensor], Tensor], query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Applies ``view`` to all three. Arguments that are the same tensor stay the same, so that self-attention
    keeps its single product."""
    q = view(query)
    k = q if key is query else view(key)
    return q, k, k if value is key else view(value)


def _linear_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Returns an nn.Linear that holds these Parameters."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], False, device="meta")
    assert isinstance(weight, nn.Parameter)
    linear.weight = weight
    linear.register_parameter("bias", bias if isinstance(bias, nn.Parameter) else None)
    return linear


def _mask(attn: Tensor | None, padding: Tensor | None, added: int, heads: int, q: Tensor) -> Tensor | None:
    """Combines both masks (True or -inf where attention is forbidden) into one additive bias [batch or 1,
    heads or 1, queries, keys]."""
    bias = None
    if attn is not None:
        bias = _summand(attn, q.dtype)
        bias = bias.reshape(-1, heads, *bias.shape[1:]) if bias.dim() == 3 else bias[None, None]
        bias = F.pad(bias, (0, added))
    if padding is not None:
        padding_bias = F.pad(_summand(padding, q.dtype), (0, added))[:, None, None]
        bias = padding_bias if bias is None else bias + padding_bias
    return bias


def _summand(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)


def _name_as_torch(module: nn.Module, tensors: dict[str, Any], prefix: str, *_: Any) -> None:
    """Gives a dense in_proj the names that nn.MultiheadAttention has for it, so that either loads the other's
    state dict."""
    if type(module.in_proj) is nn.Linear:
        for kind in ("weight", "bias"):
            if f"{prefix}in_proj.{kind}" in tensors:
                tensors[f"{prefix}in_proj_{kind}"] = tensors.pop(f"{prefix}in_proj.{kind}")


def _attention_entries(module: nn.Module, tensors: dict[str, Any], prefix: str, *_: Any) -> None:
    """Renames a dense checkpoint's in_proj entries to those of the layer inside."""
    accept_pruned(tensors, prefix, "in_proj_weight")
    for kind in ("weight", "bias"):
        if f"{prefix}in_proj_{kind}" in tensors:
            tensors[f"{prefix}in_proj.{kind}"] = tensors.pop(f"{prefix}in_proj_{kind}")

"""How other libraries call attention: transformers by ``attn_implementation="sparseloom"``, serving stacks by
a function.

>>> import sparseloom.hf
>>> model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sparseloom")
>>> use_pattern(model, lambda q, kv: patterns.sliding_window(q, 1024, causal=True))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from torch import Tensor, nn

from .._arguments import named_arguments
from .._checks import warn
from ..errors import Error
from . import patterns
from .call import Kept, attention
from .pattern import AttentionPattern

NAME = "sparseloom"
_ATTRIBUTE = "sparseloom_pattern"

#: A pattern for one number of tokens, or a function of (queries, keys) that returns one, or None where all
#: blocks are to be met.
Source: TypeAlias = "AttentionPattern | Callable[[int, int], AttentionPattern | None]"


@named_arguments
def serve(
    q: Tensor, k: Tensor, v: Tensor, params: Kept, is_causal: bool = False, softmax_scale: float | None = None
) -> Tensor:
    """Returns attention of q, k and v [batch, tokens, heads, head size], in that layout: the signature of
    serving stacks. ``params``: the pattern of the call, as sparseloom.attention takes it."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    out = attention(q, k, v, params, causal=is_causal, scale=softmax_scale)
    return out.transpose(1, 2)


#: What lets modules of other packages have a pattern: sparseloom.patch adds torch's nn.MultiheadAttention.
#: Each returns how many modules of a model it knows.
TAKING: list[Callable[[nn.Module], int]] = []


@named_arguments
def use_pattern(model: nn.Module, source: Source | None) -> None:
    """Gives the attention layers of a model their pattern; None: all blocks. The layers are transformers',
    of a model with attn_implementation="sparseloom", and every nn.MultiheadAttention, those of torch's
    encoder and decoder layers among them.

    A pattern serves calls with its numbers of tokens, and every other call, such as one for a single new
    token, meets all keys. A function is asked in each call; cache what it returns.

    An nn.MultiheadAttention is replaced by a BlockSparseMultiheadAttention with the same Parameters and names
    in the state dict, which takes padding masks and causal order, needs need_weights=False, and refuses other
    masks and dropout. With None it stays one, and computes what torch's does; densify_ puts torch's back.
    Call sparsify_ before. Raises Error for one with add_bias_kv, add_zero_attn, keys of another size or
    weights that are computed, and for another source; warns where subclasses, or all of a model, take none.
    """
    if source is not None:
        if not isinstance(source, AttentionPattern) and not callable(source):
            remedy = "pass lambda queries, keys: patterns.sliding_window(queries, 1024, kv_tokens=keys)"
            raise Error("use_pattern", "an AttentionPattern, a function, or None", repr(source), remedy)
        found = 0
        for take in TAKING:
            found += take(model)
        if not found and not any(map(_is_served, model.modules())):
            text = f"use_pattern: no attention of {type(model).__name__} takes a pattern; transformers' need "
            warn(text + f'attn_implementation="{NAME}"')
    for module in model.modules():
        setattr(module, _ATTRIBUTE, source)


def _is_served(module: nn.Module) -> bool:
    """Returns whether transformers calls ``forward`` below for a module."""
    return getattr(getattr(module, "config", None), "_attn_implementation", None) == NAME


def forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None, **options: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention as transformers calls it: q [batch, heads, tokens, head size], and a padding mask [batch,
    keys] or None. Raises Error for what the kernels do not compute: dropout, softcap, position biases,
    attention sinks, and windows by elements."""
    refused = {
        "dropout": dropout > 0,
        "softcap": options.get("softcap") is not None,
        "position_bias": options.get("position_bias") is not None,
        "s_aux": options.get("s_aux") is not None,
        "cache": options.get("cache") is not None,
        "sliding_window": (options.get("sliding_window") or key.shape[2]) < key.shape[2],
    }
    for name, found in refused.items():
        if found:
            remedy = "set it to its neutral value in the config, or use attn_implementation='sdpa'"
            raise Error("attention", f"a model without {name} in its attention", name, remedy)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    tokens, keys = query.shape[2], key.shape[2]
    pattern = (pattern_of(module, tokens, keys) or _full(tokens, keys)).to(query.device)
    if attention_mask is not None:
        pattern = pattern.where_keys(_padding(attention_mask, keys))
    out = attention(query, key, value, pattern, causal=causal, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


def _padding(mask: Tensor, keys: int) -> Tensor:
    if mask.dim() != 2:
        remedy = "call the model with a padding mask, or use attn_implementation='sdpa'"
        raise Error("attention", "a padding mask [batch, keys]", str(list(mask.shape)), remedy)
    return mask[:, -keys:].bool()


def pattern_of(module: nn.Module, tokens: int, keys: int) -> AttentionPattern | None:
    """Returns the pattern that use_pattern gave to a module, for so many queries and keys; None for all
    blocks."""
    source: Source | None = getattr(module, _ATTRIBUTE, None)
    if not isinstance(source, AttentionPattern):
        return None if source is None else source(tokens, keys)
    q_block, kv_block = source.block
    here = -(-tokens // q_block), -(-keys // kv_block)
    fits = source.counts.shape[-1] == here[0] and source.kv_blocks in (None, here[1])
    return source if fits else None


@lru_cache(maxsize=64)
def _full(tokens: int, keys: int) -> AttentionPattern:
    return patterns.full(tokens, kv_tokens=keys)


def register() -> None:
    """Makes ``attn_implementation="sparseloom"`` known to transformers; sparseloom.hf calls it."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

    AttentionInterface.register(NAME, forward)
    # FlashAttention's masks: none, or that of padding.
    AttentionMaskInterface.register(NAME, flash_attention_mask)

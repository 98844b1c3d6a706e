"""Models of transformers with fewer attention heads than their own configs can say: config.kept_heads is
[KV heads, query heads for each].

sparseloom.shrink_ made the model. This file lies beside its weights and needs transformers alone:
from_pretrained(folder, trust_remote_code=True). Narrow<Name> is transformers' class of that name.
"""

from __future__ import annotations

from typing import Any

import transformers
from torch import nn


def __getattr__(name: str) -> type:
    base = getattr(transformers, name.removeprefix("Narrow"), None) if name.startswith("Narrow") else None
    if not isinstance(base, type):
        raise AttributeError(name)

    def __init__(self: Any, config: Any, *arguments: Any, **keywords: Any) -> None:
        base.__init__(self, config, *arguments, **keywords)  # type: ignore[misc]
        narrow_(self, *config.kept_heads)

    made = type(name, (base,), {"__init__": __init__, "__module__": __name__})
    globals()[name] = made
    return made


def narrow_(model: nn.Module, groups: int, queries: int) -> None:
    """Gives all attentions that many KV heads, and query heads for each, of the same size; with new
    weights."""
    heads = groups * queries
    attentions: list[Any] = list(model.modules())
    for module in attentions:
        inner: Any = getattr(module, "self", None)
        if hasattr(inner, "all_head_size") and hasattr(module, "output"):  # BERT and its kind
            width = heads * inner.attention_head_size
            inner.num_attention_heads, inner.all_head_size = heads, width
            for name in ("query", "key", "value"):
                _resize(inner, name, out=width)
            _resize(module.output, "dense", inner=width)
        elif hasattr(module, "c_attn") and hasattr(module, "split_size"):  # GPT-2
            module.num_heads, module.split_size = heads, heads * module.head_dim
            _resize(module, "c_attn", out=3 * module.split_size)
            _resize(module, "c_proj", inner=module.split_size)
        elif hasattr(module, "o_proj") and hasattr(module, "head_dim"):  # Llama and its kind
            _resize(module, "q_proj", out=heads * module.head_dim)
            _resize(module, "k_proj", out=groups * module.head_dim)
            _resize(module, "v_proj", out=groups * module.head_dim)
            _resize(module, "o_proj", inner=heads * module.head_dim)
            counts = {"num_key_value_groups": queries, "num_attention_heads": heads, "num_heads": heads}
            for name, number in (counts | {"num_key_value_heads": groups}).items():
                if name in vars(module):
                    setattr(module, name, number)


def _resize(holder: Any, name: str, out: int | None = None, inner: int | None = None) -> None:
    old = getattr(holder, name)
    if isinstance(old, nn.Linear):
        sizes = inner or old.in_features, out or old.out_features
        made = nn.Linear(*sizes, bias=old.bias is not None, dtype=old.weight.dtype)
    else:
        made = type(old)(out or old.nf, inner or old.nx).to(old.weight.dtype)
    setattr(holder, name, made.train(old.training))

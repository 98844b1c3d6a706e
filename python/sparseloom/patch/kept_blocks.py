"""Lets torch's nn.MultiheadAttention keep blocks of keys, for sparseloom.attention.use_pattern."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from .._checks import warn
from ..attention import serving
from ..errors import Error
from ..nn import BlockSparseMultiheadAttention
from .exchange import Exchange
from .forms.attention import AttentionForm
from .hooks import carry_hooks


def take_patterns(model: nn.Module) -> int:
    """Replaces every nn.MultiheadAttention of a model, in encoder and decoder layers too, by a
    BlockSparseMultiheadAttention with the same Parameters, which can keep blocks, and returns how many there
    are. Raises Error, before anything changes, for one that has what the kernels do not compute, or weights
    that are computed. Warns of subclasses, which stay as they are."""
    found, others = dict[str, nn.MultiheadAttention](), dict[str, str]()
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            if type(module) is nn.MultiheadAttention or is_parametrized(module):
                found[name] = module
            else:
                others[name] = type(module).__name__
    for name, module in found.items():
        refused = {
            "keys or values of another size than embed_dim": not module._qkv_same_embed_dim,
            "add_bias_kv": module.bias_k is not None,
            "add_zero_attn": module.add_zero_attn,
        }
        refused["a parametrized weight"] = any(map(is_parametrized, (module, module.out_proj)))
        why = next((option for option, has in refused.items() if has), "")
        if why := why or AttentionForm().refusal(module, in_place=True):
            remedy = "leave this model's attention dense"
            raise Error(
                "use_pattern", "attention of plain queries, keys and values", f"{name}: {why}", remedy
            )
    if "" in found:
        remedy = "put it into an nn.ModuleList, or call BlockSparseMultiheadAttention(module, None, None)"
        raise Error("use_pattern", "a module that holds the attention", "the attention itself", remedy)
    if found:
        made = [(each, BlockSparseMultiheadAttention(each, None, None)) for each in found.values()]
        for old, new in made:
            new.train(old.training)
            carry_hooks(old, new)
            carry_hooks(old.out_proj, new.out_proj)
        Exchange(model, list(made)).put()
    if others:
        listed = ", ".join(f"{name} ({kind})" for name, kind in others.items())
        text = f"use_pattern: subclasses of nn.MultiheadAttention stay as they are: {listed}"
        warn(text)
    return len(others) + sum(type(each) is BlockSparseMultiheadAttention for each in model.modules())


serving.TAKING.append(take_patterns)

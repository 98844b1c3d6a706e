"""Lets torch's nn.MultiheadAttention keep blocks of keys, for sparseloom.attention.use_pattern."""

from __future__ import annotations

from torch import nn

from ..attention import serving
from ..errors import Error
from ..nn import BlockSparseMultiheadAttention
from .exchange import Exchange


def take_patterns(model: nn.Module) -> None:
    """Replaces every nn.MultiheadAttention of a model, in encoder and decoder layers too, by a
    BlockSparseMultiheadAttention with the same Parameters, which can keep blocks. Raises Error, before
    anything changes, for one that has what the kernels do not compute."""
    found = {name: each for name, each in model.named_modules() if type(each) is nn.MultiheadAttention}
    for name, module in found.items():
        refused = {
            "keys or values of another size than embed_dim": not module._qkv_same_embed_dim,
            "add_bias_kv": module.bias_k is not None,
            "add_zero_attn": module.add_zero_attn,
        }
        if why := next((option for option, has in refused.items() if has), ""):
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
        Exchange(model, list(made)).put()


serving.TAKING.append(take_patterns)

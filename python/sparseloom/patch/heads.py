"""Finds the size of the heads of an attention that holds a projection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from .forms import Site

#: Attribute names for the features of one head, in transformers, timm and torch.
_SIZES = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim", "dim_head")
#: Attribute names for the number of heads.
_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
#: Names of the output projection, which reads the result of all heads.
_BEHIND = ("o_proj", "out_proj", "c_proj", "dense", "proj", "o", "wo", "out_lin", "to_out")


def head_of(site: Site) -> tuple[int | None, int | None] | None:
    """Returns (out features, in features) of one head, one of which is None, for a projection of an
    attention; None if no module around it is an attention, or none has the size."""
    rows, cols = site.shape
    name = site.weight.rpartition(".")[0] or next(
        (part for part in reversed(site.name.split(".")) if not part.isdigit()), ""
    )
    follows_heads = name in _BEHIND
    for module in (site.module, *site.around[:2]):
        if "att" not in type(module).__name__.lower():
            continue
        # in BERT the output projection and the heads are siblings
        for holder in (module, *module.children()):
            size = _size_in(holder, cols)
            if size is not None and (cols if follows_heads else rows) % size == 0:
                return (None, size) if follows_heads else (size, None)
    return None


def _size_in(module: nn.Module, inputs: int) -> int | None:
    size = next((number for name in _SIZES if (number := _whole(module, name))), None)
    if size is not None:
        return size
    count = next((number for name in _COUNTS if (number := _whole(module, name))), None)
    return inputs // count if count is not None and inputs % count == 0 else None


def _whole(module: nn.Module, name: str) -> int | None:
    number = getattr(module, name, None)
    return number if isinstance(number, int) and number > 0 else None

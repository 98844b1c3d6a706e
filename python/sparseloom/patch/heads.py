"""Finds the size of the heads of an attention that holds a projection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from .forms import Site

#: What attention modules call the features of one head, in transformers, timm and torch.
_SIZES = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim", "dim_head")
#: And what they call the number of heads.
_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
#: Names of the projection that reads what all heads computed.
_BEHIND = ("o_proj", "out_proj", "c_proj", "dense", "proj", "o", "wo", "out_lin", "to_out")


def head_of(site: Site) -> tuple[int | None, int | None] | None:
    """Returns (out features, in features) of one head, one of which is None, for a projection of an
    attention; None where no module round it is one, or none says the size."""
    rows, cols = site.shape
    name = site.weight.rpartition(".")[0] or next(
        (part for part in reversed(site.name.split(".")) if not part.isdigit()), ""
    )
    behind = name in _BEHIND
    for module in (site.module, *site.around[:2]):
        if "att" not in type(module).__name__.lower():
            continue
        for holder in (module, *module.children()):  # BERT's output projection lies beside its heads
            size = _size_in(holder, cols)
            if size is not None and (cols if behind else rows) % size == 0:
                return (None, size) if behind else (size, None)
    return None


def _size_in(module: nn.Module, inputs: int) -> int | None:
    size = next((each for name in _SIZES if (each := _whole(module, name))), None)
    if size is not None:
        return size
    count = next((each for name in _COUNTS if (each := _whole(module, name))), None)
    return inputs // count if count is not None and inputs % count == 0 else None


def _whole(module: nn.Module, name: str) -> int | None:
    found = getattr(module, name, None)
    return found if isinstance(found, int) and found > 0 else None

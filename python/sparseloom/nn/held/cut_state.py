"""Saves and loads the state dict of a cut layer in the order of the whole weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ...errors import Error
from . import moments, state
from .sharded import is_sharded, local, take_

if TYPE_CHECKING:
    from .indexed import IndexedModule

#: Every live cut layer; optimizers look up the order of their Parameters here.
cut_layers: WeakSet[nn.Module] = WeakSet()


def in_order(layer: Any, name: str, parts: Any) -> Any:
    """Returns a tensor laid out as the Parameter ``values`` or ``bias`` (the Parameter or its moment) as an
    entry in the order of the whole weight."""
    from .sharded_rows import ShardedRows

    cut = layer._cut
    if name == "values":
        return ShardedRows.of(parts, cut.place_of_blocks, cut.part, cut.places)
    if name == "bias" and cut.dim == 0:
        return ShardedRows.of(parts, cut.place_of_features, cut.part, max(cut.widths))
    return parts


def entries(layer: IndexedModule) -> dict[str, Any]:
    """Returns the state dict of a cut layer."""
    cut = layer._cut
    assert cut is not None
    crow, col = (part.to(layer.packed_index.device) for part in cut.pattern.index())
    parameters = {name: layer._parameters[name] for name in ("values", "bias")}
    tensors = {
        name: in_order(layer, name, each.detach()) for name, each in parameters.items() if each is not None
    }
    return {**tensors, "crow": crow, "col": col}


def load(
    layer: IndexedModule, tensors: Mapping[str, Any], prefix: str, missing: list[str], unexpected: list[str]
) -> None:
    """Loads a cut layer from entries in the order of the whole weight, sharded or whole. Raises Error before
    anything changes if they do not fit."""
    own_entries = entries(layer)
    loaded = {name: tensors[prefix + name] for name in own_entries if prefix + name in tensors}
    missing += [prefix + name for name in own_entries if name not in loaded]
    unexpected += [
        name for name in tensors if name.startswith(prefix) and name[len(prefix) :] not in own_entries
    ]
    if loaded and layer.values.is_meta:
        raise Error("load", "a cut layer with memory", "one on meta", "call to_empty() on the model first")
    weights = {
        name: _checked(layer, name, own_entries[name], entry)
        for name, entry in loaded.items()
        if name not in state.INDEX_ENTRIES
    }
    _take_pattern(layer, loaded | weights, prefix)
    own_entries = entries(layer)
    with torch.no_grad():
        for name, entry in weights.items():
            if is_sharded(entry):
                own_entries[name].copy_(entry)
            else:
                take_(own_entries[name], entry)


def _checked(layer: IndexedModule, name: str, own_entry: Tensor, entry: Any) -> Tensor:
    """Returns the entry, sharded like the layer's own or gathered to a whole tensor. Raises Error unless it
    has the right shape and order."""
    if is_sharded(entry) and type(entry) is not type(own_entry):
        if local(entry).data_ptr() == local(layer.get_parameter(name)).data_ptr():
            # set_model_state_dict(full_state_dict=True) wrote the whole tensor as if it had the parts' order
            remedy = "load with torch.distributed.checkpoint, sparseloom.load or load_state_dict"
            raise Error("load", f"{name} in the order of the whole weight", "the parts' order", remedy)
        entry = entry.full_tensor()
    if not isinstance(entry, Tensor) or (name != "values" and entry.shape != own_entry.shape):
        got = str(list(entry.shape)) if isinstance(entry, Tensor) else type(entry).__name__
        raise Error("load", f"{name} {list(own_entry.shape)} of the whole layer", got, "save the whole model")
    return entry


def _take_pattern(layer: IndexedModule, entries_read: Mapping[str, Any], prefix: str) -> None:
    """Raises Error unless values and index belong together. The layer takes a new pattern if each part keeps
    its number of blocks and the values have not been loaded in place for the old pattern."""
    cut = layer._cut
    assert cut is not None
    in_place = entries_read.get("values") if is_sharded(entries_read.get("values")) else None
    tensors = {prefix + name: entry for name, entry in entries_read.items()}
    shape = (cut.pattern.rows, cut.pattern.cols)
    pattern = state.read_entries(shape, layer.block, in_place, tensors, prefix)
    if pattern is None or pattern == cut.pattern:
        return
    new_cut = replace(cut, pattern=pattern)
    if in_place is not None or new_cut.counts != cut.counts:
        expected = f"the pattern that was cut, with {list(cut.counts)} blocks in the parts"
        got = f"another one, with {list(new_cut.counts)}"
        raise Error("load", expected, got, "load into the whole model, then parallelize_module")
    old_pattern, new_pattern = cut.own_pattern, new_cut.own_pattern
    layer._cut = new_cut
    layer._set_index(new_pattern, layer.packed_index.device)
    sizes = old_pattern.blocks, new_pattern.blocks
    moments.follow(layer, lambda: moments.Way.of_blocks(old_pattern, new_pattern, sizes))

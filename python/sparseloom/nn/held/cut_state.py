"""The state dict of a cut layer, in the order of the whole weight: what it saves, and how it loads."""

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

#: Every cut layer, for optimizers that find their Parameters' places here.
cut_layers: WeakSet[nn.Module] = WeakSet()


def in_order(layer: Any, name: str, parts: Any) -> Any:
    """Returns a tensor of the layout of the Parameter ``values`` or ``bias``, the Parameter itself or a
    moment of it, as an entry in the order of the whole weight."""
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
    held = {name: layer._parameters[name] for name in ("values", "bias")}
    tensors = {name: in_order(layer, name, each.detach()) for name, each in held.items() if each is not None}
    return {**tensors, "crow": crow, "col": col}


def load(
    layer: IndexedModule, tensors: Mapping[str, Any], prefix: str, missing: list[str], unexpected: list[str]
) -> None:
    """Fills a cut layer from entries in the order of the whole weight: its own ones, or whole tensors. Raises
    Error where they do not fit, before anything changes."""
    mine = entries(layer)
    given = {name: tensors[prefix + name] for name in mine if prefix + name in tensors}
    missing += [prefix + name for name in mine if name not in given]
    unexpected += [name for name in tensors if name.startswith(prefix) and name[len(prefix) :] not in mine]
    if given and layer.values.is_meta:
        raise Error("load", "a cut layer with memory", "one on meta", "call to_empty() on the model first")
    weights = {
        name: _checked(layer, name, mine[name], entry)
        for name, entry in given.items()
        if name not in state.INDEX_ENTRIES
    }
    _take_pattern(layer, given | weights, prefix)
    mine = entries(layer)
    with torch.no_grad():
        for name, entry in weights.items():
            if is_sharded(entry):
                mine[name].copy_(entry)
            else:
                take_(mine[name], entry)


def _checked(layer: IndexedModule, name: str, mine: Tensor, given: Any) -> Tensor:
    """Returns an entry that is sharded as the layer's own one, or whole. Raises Error unless it has the right
    shape and order."""
    if is_sharded(given) and type(given) is not type(mine):
        if local(given).data_ptr() == local(layer.get_parameter(name)).data_ptr():
            # set_model_state_dict(full_state_dict=True) wrote the whole tensor as if it had the parts' order
            remedy = "load with torch.distributed.checkpoint, sparseloom.load or load_state_dict"
            raise Error("load", f"{name} in the order of the whole weight", "the parts' order", remedy)
        given = given.full_tensor()
    if not isinstance(given, Tensor) or (name != "values" and given.shape != mine.shape):
        got = str(list(given.shape)) if isinstance(given, Tensor) else type(given).__name__
        raise Error("load", f"{name} {list(mine.shape)} of the whole layer", got, "save the whole model")
    return given


def _take_pattern(layer: IndexedModule, given: Mapping[str, Any], prefix: str) -> None:
    """Raises Error unless values and index belong together. Another pattern becomes that of the layer, where
    it has as many blocks in each part, and the values have not been read into the places of this one."""
    cut = layer._cut
    assert cut is not None
    in_place = given.get("values") if is_sharded(given.get("values")) else None
    tensors = {prefix + name: entry for name, entry in given.items()}
    shape = (cut.pattern.rows, cut.pattern.cols)
    pattern = state.read_entries(shape, layer.block, in_place, tensors, prefix)
    if pattern is None or pattern == cut.pattern:
        return
    other = replace(cut, pattern=pattern)
    if in_place is not None or other.counts != cut.counts:
        expected = f"the pattern that was cut, with {list(cut.counts)} blocks in the parts"
        got = f"another one, with {list(other.counts)}"
        raise Error("load", expected, got, "load into the whole model, then parallelize_module")
    mine, theirs = cut.own_pattern, other.own_pattern
    layer._cut = other
    layer._set_index(theirs, layer.packed_index.device)
    sizes = mine.blocks, theirs.blocks
    moments.follow(layer, lambda: moments.Way.of_blocks(mine, theirs, sizes))

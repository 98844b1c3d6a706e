"""merge_ lets block-sparse layers that read the same x multiply with it once, where the source of the module
around them says which do."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import groupby

from torch import nn

from ..nn import BlockSparseLinear, QuantizedBlockSparseLinear
from ..nn.held.eight_siblings import EightBitSiblings
from ..nn.held.siblings import Siblings
from ..nn.held.sparse_weight import sparse_layers
from .calls import called_alike
from .traced import is_sequence

_CLASSES: dict[type[nn.Module], type[Siblings]] = {
    BlockSparseLinear: Siblings,
    QuantizedBlockSparseLinear: EightBitSiblings,
}


def merge_(model: nn.Module, names: Collection[str] | None = None) -> list[Siblings]:
    """Makes siblings of the layers of a model that its modules call with the same variable: all, or those of
    these names, as ``names_of_merged`` gives them. Returns the new groups."""
    known = {each.weight.owner: each.matched for each in sparse_layers(model)}
    places = dict[nn.Module, int]()
    for _, module in model.named_modules(remove_duplicate=False):
        places[module] = places.get(module, 0) + 1

    def may(layer: nn.Module) -> bool:
        if type(layer) not in _CLASSES or layer._siblings is not None or places[layer] > 1:
            return False
        wanted = names is None or known.get(layer) in names
        if type(layer) is QuantizedBlockSparseLinear:
            return wanted and layer.fuse
        stays = layer.dynamic or layer._dense_copy or layer._cut is not None
        return wanted and layer.fuse and not stays

    made = list[Siblings]()
    for owner in list(model.modules()):
        children = {name: child for name, child in owner.named_children() if may(child)}
        if len(children) < 2 or is_sequence(owner) or "forward" in vars(owner):
            continue
        for group in called_alike(type(owner), set(children)):
            layers = [(name, children[name]) for name in group]
            for alike in _alike(layers):  # type: ignore[arg-type]
                made.append(_CLASSES[type(children[alike[0]])](owner, alike))
    return made


def _alike(
    layers: list[tuple[str, BlockSparseLinear | QuantizedBlockSparseLinear]],
) -> Iterator[tuple[str, ...]]:
    """Yields the names of neighbours whose weights can stand one above the other."""

    def kind(each: tuple[str, BlockSparseLinear | QuantizedBlockSparseLinear]) -> tuple[object, ...]:
        layer = each[1]
        whole = layer.out_features % layer.block[0] == 0
        same = layer.in_features, layer.block, layer.bias is None, layer.values.dtype
        return whole, *same, layer.values.device, layer.values.requires_grad, type(layer)

    for (whole, *_), run in groupby(layers, kind):
        names = tuple(name for name, _ in run)
        if whole and len(names) > 1:
            yield names

"""Describes as plain data which layers of a model are block-sparse, and makes a model sparse again from it.
This is for transformers, whose checkpoints carry such data in config.json: see sparseloom.hf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from .. import layouts, ops
from .. import pattern as patterns
from ..errors import Error
from ..layouts import Layout
from ..layouts.entries import Entries
from ..nn.held.fused import names_of_fused
from ..nn.held.fusions import Fusions
from ..nn.held.sparse_weight import Layer, joined, sparse_layers
from ..nn.held.state import expect_index, require_index, require_zero_padding
from ..nn.linears import eight_bit_like
from ..nn.masked.linear import masked_layers
from ..pattern import Pattern
from .config import Blocks
from .exchange import Exchange
from .forms import Form
from .fuse import fuse_named_
from .in_layout import Anywhere
from .masters import mask_later
from .merge import merge_
from .recipe import Chosen
from .semi24 import ReadLater
from .survey import survey

_DTYPES = {name: dtype for dtype, name in ops.SCALED_DTYPES.items()}


def described(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Returns {name that sparsify_ matches: entry}; see sparseloom.hf.SparseloomConfig."""
    masked = {name: layer.stored_as() for layer, names in masked_layers(model).items() for name in names}
    told = {each.matched: _described(each) for each in sparse_layers(model)}
    for name in names_of_fused(model):  # it is told beside, as it is the model's
        told[name] = {key: value for key, value in told[name].items() if key != "activation"}
    return told | masked


def lost_in_files(model: nn.Module) -> str:
    """Returns the first weight in a layout that a transformers model cannot be given again, in words; ""
    where there is none."""
    for each in sparse_layers(model):
        if each.weight.layout not in ("bsr", "semi24") and _class_of(each.weight.layout) is None:
            return f"{each.matched} in layout {each.weight.layout}"
    return ""


def _described(layer: Layer) -> dict[str, Any]:
    """Returns the entry of a layer. transformers compares sizes before it loads, so that of single elements
    it tells how many there are."""
    told = layer.module.describe()[layer.entry]
    cls = _class_of(layer.weight.layout)
    counted = cls is not None and issubclass(cls, Entries)
    return {**told, "stored": layer.weight.values.numel()} if counted else told


def _class_of(layout: object) -> type[Layout] | None:
    """Returns the class of a layout of which an index of the right size can be made before the file is read;
    None for any other, and for 2:4, whose layers take more than an index."""
    cls = layouts.get(layout) if isinstance(layout, str) and layout in layouts.names() else None
    return cls if cls is not None and cls.name != "semi24" and hasattr(cls, "anywhere") else None


def names_in_files(model: nn.Module) -> dict[str, str]:
    """Returns {name of the dense weight: name of the values that stand for it}."""
    return {each.dense: joined(each.name, "values") for each in sparse_layers(model)}


def make_described(model: nn.Module, layers: Mapping[str, Mapping[str, Any]], base: str) -> None:
    """Makes the layers that ``layers`` describes sparse, each with some pattern of the right number of
    blocks.

    ``base`` is the name that the model without its head has inside the one with the head: one may be
    described and the other one given. Layers of a head that the model lacks are left out, as transformers
    leaves out their weights. Raises Error for any other name that the model has no linear layer for.
    """
    left, present = dict(layers), {each.matched: each.weight for each in sparse_layers(model)}
    wanted: dict[nn.Module, tuple[Form, dict[str, Mapping[str, Any]]]] = {}
    for site in survey(model).sites:
        if (found := _taken(left, site.names, base)) is not None:
            entry = wanted.setdefault(site.module, (site.form, {}))
            entry[1][site.weight] = {**found, "chosen": _any(*site.shape, found)}
    for name, weight in present.items():  # in a model whose own code makes sparse layers
        if (found := _taken(left, [name], base)) is not None and weight.layout == "bsr":
            _resize(weight.owner, _any_pattern(*weight.shape, found))
    headed = any(name.startswith(f"{base}.") for name in layers)
    gone = [name for name in left if not headed or name.startswith(f"{base}.")]
    if gone:
        remedy = "load with the saved model's class"
        raise Error("from_pretrained", "the linear layers of this model", ", ".join(gone), remedy)
    Exchange(model, [(module, _made(module, *how)) for module, how in wanted.items()]).put()
    for each in _in_blocks(model):
        expect_index(each.weight.owner)


def fuse_described(model: nn.Module, fusions: Fusions, base: str) -> None:
    """Lets products do more, of layers that are named with or without the base model's prefix."""
    named = fusions.named(base)
    fuse_named_(model, named.fused)
    merge_(model, named.merged)


def fill_indices(model: nn.Module) -> None:
    """Checks that every layer was given its crow and col, and that its values fit them. Raises Error where
    one was not."""
    for each in sparse_layers(model):
        weight = each.weight
        if weight.layout != "bsr":
            values = weight.values
            weight.owner.layout.require_consistent("load", values)
            if "dw" not in weight.directions:
                values.requires_grad_(False)  # transformers loads Parameters that require a gradient
            weight.owner.refresh_()
            continue
        require_index(weight.owner, each.matched)
        values = weight.values.detach()
        require_zero_padding(
            "load", values.view(torch.int8) if values.element_size() == 1 else values, weight.pattern
        )
        weight.owner._set_index(weight.pattern, values.device)


def _in_blocks(model: nn.Module) -> Iterator[Layer]:
    """Yields the weights of a model that lie in blocks."""
    return (each for each in sparse_layers(model) if each.weight.layout == "bsr")


def _taken(left: dict[str, Mapping[str, Any]], names: Iterable[str], base: str) -> Mapping[str, Any] | None:
    """Takes the entries of a layer out of ``left``, under all of its names, with and without the base model's
    prefix; returns one of them, or None."""
    variants = [v for name in names for v in (name, name.removeprefix(f"{base}."), f"{base}.{name}")]
    found = [left.pop(name) for name in variants if name in left]
    return found[0] if found else None


def _any(rows: int, cols: int, entry: Mapping[str, Any]) -> Chosen:
    """Returns something of the described layout and size to store; what is loaded later says what it is.
    Raises Error for a layer that trained under a gate, which only its method makes."""
    if entry.get("layout") == "masked":
        return mask_later("from_pretrained", entry)
    if (cls := _class_of(entry.get("layout"))) is not None:
        sizes = ("layout", "out_features", "in_features", "activation")
        return Anywhere(cls, {name: each for name, each in entry.items() if name not in sizes})
    return ReadLater() if entry.get("layout") == "semi24" else Blocks(_any_pattern(rows, cols, entry))


def _any_pattern(rows: int, cols: int, entry: Mapping[str, Any]) -> Pattern:
    """Returns some pattern with the right number of blocks; the indices that are loaded later say where they
    lie."""
    bm, bn = entry["block"]
    scores = torch.zeros(-(-rows // bm), -(-cols // bn), dtype=torch.float32, device="cpu")
    return patterns.top_k(rows, cols, (bm, bn), scores, int(entry["blocks"]))


def _resize(layer: Any, pattern: Pattern) -> None:
    values = layer.values.detach().new_empty((pattern.blocks, *layer.stored_shape))
    layer.values = nn.Parameter(values) if isinstance(layer.values, nn.Parameter) else values
    layer._set_index(pattern, values.device)


def _made(module: nn.Module, form: Form, chosen: Mapping[str, Mapping[str, Any]]) -> nn.Module:
    made, layers = form.sparse(module, {weight: entry["chosen"] for weight, entry in chosen.items()})
    for weight, entry in chosen.items():
        layer = layers[weight]
        if entry.get("layout") == "masked":
            continue
        layer.activation = entry.get("activation")
        if _class_of(entry.get("layout")) is not None:
            continue
        if entry.get("edge_bias"):
            layer.add_edges_()
        if "dense_copy" in entry:
            layer.dense_copy = entry["dense_copy"]
        if "dtype" not in entry:
            continue
        eight = eight_bit_like(layer, _DTYPES[entry["dtype"]], 1.0 if entry["x_scale"] else None)
        if made is layer:
            made = eight
        else:
            Exchange(made, [(layer, eight)]).put()
    return made

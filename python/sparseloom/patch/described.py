"""Describes the block-sparse layers of a model as plain data, and makes a model sparse from this data. This
is for transformers, whose checkpoints carry it in config.json: see sparseloom.hf."""

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
    entries = {each.matched: _described(each) for each in sparse_layers(model)}
    for name in names_of_fused(model):  # listed separately, because the activation belongs to the model
        entries[name] = {key: value for key, value in entries[name].items() if key != "activation"}
    return entries | masked


def lost_in_files(model: nn.Module) -> str:
    """Returns a text about the first weight in a layout that cannot be restored in a transformers model; ""
    if there is none."""
    for layer in sparse_layers(model):
        if layer.weight.layout not in ("bsr", "semi24") and _class_of(layer.weight.layout) is None:
            return f"{layer.matched} in layout {layer.weight.layout}"
    return ""


def _described(layer: Layer) -> dict[str, Any]:
    """Returns the entry of a layer. transformers compares sizes before it loads, so the entry of a layer of
    single elements has their number."""
    description = layer.module.describe()[layer.entry]
    cls = _class_of(layer.weight.layout)
    counted = cls is not None and issubclass(cls, Entries)
    return {**description, "stored": layer.weight.values.numel()} if counted else description


def _class_of(layout: object) -> type[Layout] | None:
    """Returns the class of a layout whose index can be made with the right size before the file is read; None
    for any other, and for 2:4, whose layers need more than an index."""
    cls = layouts.get(layout) if isinstance(layout, str) and layout in layouts.names() else None
    return cls if cls is not None and cls.name != "semi24" and hasattr(cls, "anywhere") else None


def names_in_files(model: nn.Module) -> dict[str, str]:
    """Returns {name of the dense weight: name of the values that replace it}."""
    return {layer.dense: joined(layer.name, "values") for layer in sparse_layers(model)}


def make_described(model: nn.Module, layers: Mapping[str, Mapping[str, Any]], base: str) -> None:
    """Makes the layers that ``layers`` describes sparse, with any pattern of the right number of blocks.

    ``base`` is the name that the model without its head has inside the one with the head: one may be
    described and the other one given. Layers of a head that the model lacks are left out, as transformers
    leaves out their weights. Raises Error for any other name that the model has no linear layer for.
    """
    remaining, present = dict(layers), {layer.matched: layer.weight for layer in sparse_layers(model)}
    parts_of: dict[nn.Module, tuple[Form, dict[str, Mapping[str, Any]]]] = {}
    for site in survey(model).sites:
        if (description := _taken(remaining, site.names, base)) is not None:
            entry = parts_of.setdefault(site.module, (site.form, {}))
            entry[1][site.weight] = {**description, "chosen": _any(*site.shape, description)}
    for name, weight in present.items():  # in a model whose own code makes sparse layers
        if (description := _taken(remaining, [name], base)) is not None and weight.layout == "bsr":
            _resize(weight.owner, _any_pattern(*weight.shape, description))
    headed = any(name.startswith(f"{base}.") for name in layers)
    unknown = [name for name in remaining if not headed or name.startswith(f"{base}.")]
    if unknown:
        remedy = "load with the saved model's class"
        raise Error("from_pretrained", "the linear layers of this model", ", ".join(unknown), remedy)
    Exchange(model, [(module, _made(module, *parts)) for module, parts in parts_of.items()]).put()
    for layer in _in_blocks(model):
        expect_index(layer.weight.owner)


def fuse_described(model: nn.Module, fusions: Fusions, base: str) -> None:
    """Fuses activations and merges products of the layers named, with or without the base model's prefix."""
    named = fusions.named(base)
    fuse_named_(model, named.fused)
    merge_(model, named.merged)


def fill_indices(model: nn.Module) -> None:
    """Checks that every layer was given its crow and col, and that its values fit them. Raises Error if one
    was not."""
    for layer in sparse_layers(model):
        weight = layer.weight
        if weight.layout != "bsr":
            values = weight.values
            weight.owner.layout.require_consistent("load", values)
            if "dw" not in weight.directions:
                values.requires_grad_(False)  # transformers loads Parameters that require a gradient
            weight.owner.refresh_()
            continue
        require_index(weight.owner, layer.matched)
        values = weight.values.detach()
        require_zero_padding(
            "load", values.view(torch.int8) if values.element_size() == 1 else values, weight.pattern
        )
        weight.owner._set_index(weight.pattern, values.device)


def _in_blocks(model: nn.Module) -> Iterator[Layer]:
    """Yields the block-sparse weights of a model."""
    return (layer for layer in sparse_layers(model) if layer.weight.layout == "bsr")


def _taken(
    remaining: dict[str, Mapping[str, Any]], names: Iterable[str], base: str
) -> Mapping[str, Any] | None:
    """Removes the entries of a layer from ``remaining``, under all of its names, with and without the base
    model's prefix. Returns one of them, or None."""
    variants = [v for name in names for v in (name, name.removeprefix(f"{base}."), f"{base}.{name}")]
    entries = [remaining.pop(name) for name in variants if name in remaining]
    return entries[0] if entries else None


def _any(rows: int, cols: int, entry: Mapping[str, Any]) -> Chosen:
    """Returns a placeholder of the described layout and size; its content is loaded later. Raises Error for a
    layer that trained under a gate, which only its method can make."""
    if entry.get("layout") == "masked":
        return mask_later("from_pretrained", entry)
    if (cls := _class_of(entry.get("layout"))) is not None:
        sizes = ("layout", "out_features", "in_features", "activation", "dtype", "x_scale")
        return Anywhere(cls, {name: value for name, value in entry.items() if name not in sizes})
    return ReadLater() if entry.get("layout") == "semi24" else Blocks(_any_pattern(rows, cols, entry))


def _any_pattern(rows: int, cols: int, entry: Mapping[str, Any]) -> Pattern:
    """Returns any pattern with the right number of blocks; the indices that are loaded later replace it."""
    bm, bn = entry["block"]
    scores = torch.zeros(-(-rows // bm), -(-cols // bn), dtype=torch.float32, device="cpu")
    return patterns.top_k(rows, cols, (bm, bn), scores, int(entry["blocks"]))


def _resize(layer: Any, pattern: Pattern) -> None:
    values = layer.values.detach().new_empty((pattern.blocks, *layer.stored_shape))
    layer.values = nn.Parameter(values) if isinstance(layer.values, nn.Parameter) else values
    layer._set_index(pattern, values.device)


def _made(module: nn.Module, form: Form, chosen: Mapping[str, Mapping[str, Any]]) -> nn.Module:
    sparse_module, layers = form.sparse(module, {weight: entry["chosen"] for weight, entry in chosen.items()})
    for weight, entry in chosen.items():
        layer = layers[weight]
        if entry.get("layout") == "masked":
            continue
        layer.activation = entry.get("activation")
        if _class_of(entry.get("layout")) is not None and "dtype" not in entry:
            continue
        if entry.get("edge_bias"):
            layer.add_edges_()
        if "dense_copy" in entry:
            layer.dense_copy = entry["dense_copy"]
        if "dtype" not in entry:
            continue
        eight = eight_bit_like(layer, _DTYPES[entry["dtype"]], 1.0 if entry["x_scale"] else None)
        if sparse_module is layer:
            sparse_module = eight
        else:
            Exchange(sparse_module, [(layer, eight)]).put()
    return sparse_module

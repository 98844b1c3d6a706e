"""Describes as plain data which layers of a model are block-sparse, and makes a model sparse again from it.
This is for transformers, whose checkpoints carry such data in config.json: see sparseloom.hf."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from .. import ops
from .. import pattern as patterns
from ..errors import Error
from ..nn import (
    BlockSparseConv1x1,
    BlockSparseLinear,
    BlockSparseMultiheadAttention,
    QuantizedBlockSparseLinear,
)
from ..nn.state import expect_index, require_index, require_zero_padding
from ..pattern import Pattern
from .fast_path import update_fast_paths
from .sites import made_sparse
from .sparsify import replace
from .survey import survey

Layer = BlockSparseLinear | QuantizedBlockSparseLinear
_DTYPES = {name: dtype for dtype, name in ops.SCALED_DTYPES.items()}


class Part(NamedTuple):
    """One layer: the name that sparsify_ matches, its own name in the model, and the name of its weight in a
    dense model."""

    name: str
    inner: str
    weight: str
    layer: Layer


def parts_of(model: nn.Module) -> list[Part]:
    """Returns every block-sparse layer under each of its names."""
    modules = dict(model.named_modules(remove_duplicate=False))
    found = []
    for inner, layer in modules.items():
        if isinstance(layer, (BlockSparseLinear, QuantizedBlockSparseLinear)):
            outer, _, last = inner.rpartition(".")
            holder = modules.get(outer)
            if isinstance(holder, BlockSparseConv1x1):
                found.append(Part(outer, inner, f"{outer}.weight".removeprefix("."), layer))
            elif isinstance(holder, BlockSparseMultiheadAttention) and last == "in_proj":
                found.append(Part(inner, inner, f"{inner}_weight", layer))
            else:
                found.append(Part(inner, inner, f"{inner}.weight", layer))
    return found


def described(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Returns {name that sparsify_ matches: entry}; see sparseloom.hf.SparseloomConfig."""
    return {part.name: _entry(part.layer) for part in parts_of(model)}


def names_in_files(model: nn.Module) -> dict[str, str]:
    """Returns {name of the dense weight: name of the values that stand for it}."""
    return {part.weight: f"{part.inner}.values" for part in parts_of(model)}


def make_described(model: nn.Module, layers: Mapping[str, Mapping[str, Any]], base: str) -> None:
    """Makes the layers that ``layers`` describes sparse, each with some pattern of the right number of
    blocks.

    ``base`` is the name that the model without its head has inside the one with the head: one may be
    described and the other one given. Layers of a head that the model lacks are left out, as transformers
    leaves out their weights. Raises Error for any other name that the model has no linear layer for.
    """
    left, present = dict(layers), {part.name: part.layer for part in parts_of(model)}
    wanted: dict[int, tuple[nn.Module, str, dict[str, Mapping[str, Any]]]] = {}
    for site in survey(model).sites:
        if (found := _taken(left, site.names, base)) is not None:
            entry = wanted.setdefault(id(site.module), (site.module, site.kind, {}))
            entry[2][site.weight] = {**found, "pattern": _any_pattern(*site.shape, found)}
    for name, layer in present.items():  # in a model whose own code makes sparse layers
        if (found := _taken(left, [name], base)) is not None:
            _resize(layer, _any_pattern(layer.out_features, layer.in_features, found))
    headed = any(name.startswith(f"{base}.") for name in layers)
    gone = [name for name in left if not headed or name.startswith(f"{base}.")]
    if gone:
        remedy = "load with the saved model's class"
        raise Error("from_pretrained", "the linear layers of this model", ", ".join(gone), remedy)
    for module, kind, chosen in wanted.values():
        replace(model, module, _made(module, kind, chosen))
    update_fast_paths(model)
    for part in parts_of(model):
        expect_index(part.layer)


def fill_indices(model: nn.Module) -> None:
    """Checks that every layer was given its crow and col, and that its values fit them. Raises Error where
    one was not."""
    for name, _, _, layer in parts_of(model):
        require_index(layer, name)
        values = layer.values.detach()
        require_zero_padding(
            "load", values.view(torch.int8) if values.element_size() == 1 else values, layer.pattern
        )
        layer._set_index(layer.pattern, values.device)


def _entry(layer: Layer) -> dict[str, Any]:
    entry: dict[str, Any] = {"block": list(layer.block), "blocks": layer.pattern.blocks}
    if layer.activation is not None:
        entry["activation"] = layer.activation
    if isinstance(layer, QuantizedBlockSparseLinear):
        entry |= {"dtype": ops.SCALED_DTYPES[layer.dtype], "x_scale": layer.x_scale is not None}
    return entry


def _taken(left: dict[str, Mapping[str, Any]], names: Iterable[str], base: str) -> Mapping[str, Any] | None:
    """Takes the entries of a layer out of ``left``, under all of its names, with and without the base model's
    prefix; returns one of them, or None."""
    variants = [v for name in names for v in (name, name.removeprefix(f"{base}."), f"{base}.{name}")]
    found = [left.pop(name) for name in variants if name in left]
    return found[0] if found else None


def _any_pattern(rows: int, cols: int, entry: Mapping[str, Any]) -> Pattern:
    """Returns some pattern with the right number of blocks; the indices that are loaded later say where they
    lie."""
    bm, bn = entry["block"]
    scores = torch.zeros(-(-rows // bm), -(-cols // bn), dtype=torch.float32, device="cpu")
    return patterns.top_k(rows, cols, (bm, bn), scores, int(entry["blocks"]))


def _resize(layer: Layer, pattern: Pattern) -> None:
    values = layer.values.detach().new_empty((pattern.blocks, *pattern.block))
    layer.values = nn.Parameter(values) if isinstance(layer, BlockSparseLinear) else values
    layer._set_index(pattern, values.device)


def _made(module: nn.Module, kind: str, chosen: Mapping[str, Mapping[str, Any]]) -> nn.Module:
    made, layers = made_sparse(module, kind, {weight: entry["pattern"] for weight, entry in chosen.items()})
    for weight, entry in chosen.items():
        layer = layers[weight]
        layer.activation = entry.get("activation")
        if "dtype" not in entry:
            continue
        eight = QuantizedBlockSparseLinear(
            layer.pattern,
            _DTYPES[entry["dtype"]],
            bias=layer.bias is not None,
            x_scale=1.0 if entry["x_scale"] else None,
            activation=layer.activation,
            device=layer.values.device,
            bias_dtype=layer.values.dtype,
        )
        if made is layer:
            made = eight
        else:
            replace(made, layer, eight)
    return made

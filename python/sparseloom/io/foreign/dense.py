"""Decodes the entries of a state dict that other programs write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import Error
from ...nn.held.pytorch_block_sparse import blocks_of, layers_in
from ...pattern import Pattern
from . import bitmask, masks, nncf, scipy_matrix


class Dense(NamedTuple):
    """Dense entries by name, and what the formats say of the structure of weights: {name of the layer:
    "semi24" or the Pattern of its blocks}."""

    tensors: dict[str, Tensor]
    structures: dict[str, str | Pattern]


def dense_entries(
    state: Mapping[str, Any], config: Mapping[str, Any] | None = None, place: str = "", arguments: Any = None
) -> Dense:
    """Returns the entries of a state dict of any of these programs as dense tensors; those that it does not
    know stay as they are.

    Args:
        config: config.json beside it.
        place: the path, in which superblock keeps its sparsity.
        arguments: those of the program that wrote it, which superblock saves too.

    Raises Error that names the tensor, for entries that contradict each other, before memory of the size that
    they claim is asked for.
    """
    tensors: dict[str, Any] = dict(state)
    structures: dict[str, str | Pattern] = {}
    if on_meta := [name for name, value in tensors.items() if getattr(value, "is_meta", False)]:
        raise Error("load", f"{on_meta[0]} with values", "one on the meta device", "read the file itself")
    for layer in layers_in(tensors):
        try:
            weight, pattern = _of_pytorch_block_sparse(tensors, f"{layer}." if layer else "")
        except Error as error:
            got = f"{error.actual} in {layer or 'the layer'}"
            raise Error("load", error.expected, got, error.remedy) from error
        tensors[_of(layer)], structures[layer] = weight, pattern
    structure: str | Pattern | None
    for name, value in list(tensors.items()):
        if scipy_matrix.is_matrix(value):
            tensors[name], structure = scipy_matrix.weight_of(name, value)
        else:
            tensors[name], structure = masks.unwrapped(value)
        if structure is not None and name.rpartition(".")[2] == "weight":
            structures[name.removesuffix("weight").removesuffix(".")] = structure
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            got = f"{type(value).__name__} at {name}"
            raise Error("load", "a state_dict of tensors", got, "pass the part of it that holds the weights")
    for layer in bitmask.layers_in(tensors):
        weight, is_24 = bitmask.decode(tensors, layer)
        is_float8 = weight.is_floating_point() and weight.element_size() == 1
        tensors[_of(layer)] = bitmask.scaled(tensors, layer, weight) if is_float8 else weight
        if is_24:
            structures[layer] = "semi24"
    masks.pruned(tensors)
    nncf.masked(tensors)
    masks.supermasked(tensors, masks.said(place, arguments))
    masks.with_pruned_heads(tensors, config or {})
    if scored := next((name for name in tensors if name.endswith(".mask_scores")), None):
        remedy = "call nn_pruning's coordinator.compile_model(model) and save again"
        raise Error("load", "weights that nn_pruning has masked", f"{scored} beside them", remedy)
    return Dense(tensors, structures)


def _of(layer: str) -> str:
    return f"{layer}.weight" if layer else "weight"


def _of_pytorch_block_sparse(tensors: dict[str, Any], prefix: str) -> tuple[Tensor, Pattern]:
    """Takes the entries of a layer, and returns its dense weight and its blocks. The number of block columns
    is in the index by columns alone."""
    ends = tensors.get(f"{prefix}weight.col_start_ends_b")
    if not isinstance(ends, Tensor) or ends.dim() != 1 or not len(ends):
        got = "none" if ends is None else type(ends).__name__
        raise Error("load", f"{prefix}weight.col_start_ends_b", got, "load the whole state_dict of the layer")
    found = blocks_of(tensors, prefix)
    side, (rows, cols) = found.side, ((len(found.crow) - 1), len(ends) - 1)
    # Blocks of zeros take no bytes of the file: what is made stays within a thousand times of what was read.
    if rows * cols > 1024 * max(1, len(found.values)) + 2**20:
        got = f"{len(found.values)} of {rows} x {cols} blocks"
        raise Error("load", f"{prefix}weight with more blocks than one in 1024", got, "check the file")
    pattern = Pattern.from_index(found.crow, found.col, rows * side, cols * side, (side, side))
    weight = torch.zeros(rows, cols, side, side, dtype=found.values.dtype)
    row = torch.repeat_interleave(torch.arange(rows), found.crow.diff().long())
    weight[row, found.col.long()] = found.values
    return weight.transpose(1, 2).reshape(rows * side, cols * side), pattern

"""Finds the layers of a model that compute a sparse product of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from torch import nn

from .linear import BlockSparseLinear
from .semi24 import Semi24Linear
from .sparse_linear import SparseLinear
from .sparse_weight import SparseWeight, sparse_layers

#: A layer that can be planned and timed alone.
Planned: TypeAlias = BlockSparseLinear | Semi24Linear | SparseLinear


def planned_linears(model: nn.Module) -> Iterator[tuple[Planned, SparseWeight]]:
    """Yields every layer of a model, once, that can be planned and timed alone, with its weight."""
    weights = {layer.weight.owner: layer.weight for layer in sparse_layers(model)}
    for owner, weight in weights.items():
        if isinstance(owner, (BlockSparseLinear, Semi24Linear)) or (
            isinstance(owner, SparseLinear) and owner.layout.planned
        ):
            yield owner, weight


def sparse_linears(model: nn.Module) -> Iterator[tuple[str, BlockSparseLinear]]:
    """Yields every BlockSparseLinear of a model under all its names: what can be quantized.

    SparseModule promises neither that nor plans, so the classes are asked here, and nowhere else outside of
    patch/forms.
    """
    for layer in sparse_layers(model):
        if isinstance(layer.weight.owner, BlockSparseLinear):
            yield layer.name, layer.weight.owner

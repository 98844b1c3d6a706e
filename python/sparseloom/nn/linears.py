"""Finds the layers of a model that compute a block-sparse product of their own."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from .linear import BlockSparseLinear
from .sparse_weight import sparse_layers


def sparse_linears(model: nn.Module) -> Iterator[tuple[str, BlockSparseLinear]]:
    """Yields every BlockSparseLinear of a model under all its names: what can be planned, timed alone
    and quantized.

    SparseModule promises none of that, so the class is asked here, and nowhere else outside of patch/forms.
    """
    for layer in sparse_layers(model):
        if isinstance(layer.weight.owner, BlockSparseLinear):
            yield layer.name, layer.weight.owner

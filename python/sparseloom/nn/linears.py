"""Finds the layers of a model that compute a sparse product of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, cast

import torch
from torch import nn

from ..layouts.bitmap import Bitmap
from ..layouts.tiles import Tiles
from .conv.base import ConvModule
from .held.sparse_weight import SparseWeight, sparse_layers
from .in_layout.linear import SparseLinear
from .in_layout.quantized import QuantizedSparseLinear
from .linear import BlockSparseLinear
from .quantized import QuantizedBlockSparseLinear
from .semi24.linear import Semi24Linear
from .semi24.quantized import QuantizedSemi24Linear
from .variants import BlockSparseConv1x1, BlockSparseTransformersConv1D, Semi24Conv1D

if TYPE_CHECKING:
    from ..layouts.semi24 import Semi24Layout

Quantizable = BlockSparseLinear | Semi24Linear | SparseLinear
EightBitLinear = QuantizedBlockSparseLinear | QuantizedSemi24Linear | QuantizedSparseLinear
#: Why layers of a user's own class stay as they are.
OWN_CLASS = "it is of a class of its own"
#: The classes that can be quantized, by the layer whose forward they have.
_KINDS: dict[type[nn.Module], tuple[type[nn.Module], ...]] = {
    BlockSparseLinear: (BlockSparseLinear, BlockSparseTransformersConv1D),
    Semi24Linear: (Semi24Linear, Semi24Conv1D),
    SparseLinear: (SparseLinear,),
}

#: A layer that can be planned and timed alone.
Planned: TypeAlias = BlockSparseLinear | Semi24Linear | SparseLinear


def in_blocks(module: nn.Module) -> TypeGuard[BlockSparseLinear]:
    """Returns whether a linear layer inside another has its weight in blocks."""
    return isinstance(module, BlockSparseLinear)


def holder_of_convolution(module: nn.Module) -> Any:
    """Returns what holds values and bias of a convolution that is sparse in blocks, or None."""
    if isinstance(module, BlockSparseConv1x1):
        return module.linear if in_blocks(module.linear) else None
    return module if isinstance(module, ConvModule) else None


def planned_linears(model: nn.Module) -> Iterator[tuple[Planned, SparseWeight]]:
    """Yields every layer of a model, once, that can be planned and timed alone, with its weight."""
    weights = {layer.weight.owner: layer.weight for layer in sparse_layers(model)}
    for owner, weight in weights.items():
        if weight.gated:
            continue
        if isinstance(owner, (BlockSparseLinear, Semi24Linear)) or (
            isinstance(owner, SparseLinear) and owner.layout.planned
        ):
            yield owner, weight


def planned_convolutions(model: nn.Module) -> Iterator[tuple[ConvModule, SparseWeight]]:
    """Yields every convolution of a model that is sparse in blocks, once, with its weight."""
    weights = {layer.weight.owner: layer.weight for layer in sparse_layers(model)}
    yield from ((owner, weight) for owner, weight in weights.items() if isinstance(owner, ConvModule))


def sparse_linears(model: nn.Module) -> Iterator[tuple[str, BlockSparseLinear]]:
    """Yields every BlockSparseLinear of a model under all its names."""
    for layer in sparse_layers(model):
        if isinstance(layer.weight.owner, BlockSparseLinear):
            yield layer.name, layer.weight.owner


def quantizable(model: nn.Module) -> Iterator[Quantizable]:
    """Yields every layer of a model, under all its names, that there is an 8-bit layer for.

    SparseModule promises neither that nor plans, so the classes are asked here, and nowhere else outside of
    patch/forms.
    """
    for layer in sparse_layers(model):
        owner = layer.weight.owner
        if not isinstance(owner, tuple(_KINDS)) or layer.weight.gated:
            continue
        if not isinstance(owner, SparseLinear) or isinstance(owner.layout, (Bitmap, Tiles)):
            yield cast("Quantizable", owner)


def not_own_forward(layer: Quantizable) -> str:
    """Returns why an 8-bit layer would not do what this one does, by its class; "" if it would."""
    if isinstance(layer, BlockSparseLinear) and layer._no_eight_bits:
        return layer._no_eight_bits
    base = next(base for base in _KINDS if isinstance(layer, base))
    if type(layer).forward is not base.forward or "forward" in vars(layer):
        return f"its forward is not {base.__name__}'s own"
    # a subclass may keep state that the 8-bit layer would lose
    return "" if type(layer) in _KINDS[base] else OWN_CLASS


def can_be_cut(layer: nn.Module) -> bool:
    """Returns whether tensor parallelism can cut a layer: one that computes what BlockSparseLinear does."""
    return isinstance(layer, BlockSparseLinear) and not_own_forward(layer) in ("", OWN_CLASS)


def quantized_as(layer: Quantizable) -> Quantizable:
    """Returns the layer whose values 8 bits round: the layer itself, or of tiles the one of their blocks, in
    which 2:4 tiles have their zeros."""
    if not isinstance(layer, SparseLinear) or not isinstance(layer.layout, Tiles):
        return layer
    layout = layer.layout
    values = layout.expanded(layer.values.detach())
    options: dict[str, Any] = {"device": values.device, "dtype": values.dtype}
    blocks = BlockSparseLinear(
        layer.in_features, layer.out_features, layer.bias is not None, pattern=layout.as_blocks(),
        activation=layer.activation, **options,
    )  # fmt: skip
    with torch.no_grad():
        blocks.values.copy_(values)
        if blocks.bias is not None and layer.bias is not None:
            blocks.bias.copy_(layer.bias)
    blocks.strict, blocks.fuse = layer.strict, layer.fuse
    return blocks.train(layer.training)


def eight_bit_of(layer: Quantizable, dtype: torch.dtype, x_scale: float | None) -> EightBitLinear:
    """Returns the 8-bit layer with the layer's weights rounded."""
    if isinstance(layer, SparseLinear):
        return QuantizedSparseLinear.from_sparse(layer, dtype, x_scale=x_scale)
    if isinstance(layer, Semi24Linear):
        return QuantizedSemi24Linear.from_sparse(layer, dtype, x_scale=x_scale)
    return QuantizedBlockSparseLinear.from_sparse(layer, dtype, x_scale=x_scale)


def eight_bit_like(layer: Quantizable, dtype: torch.dtype, x_scale: float | None) -> EightBitLinear:
    """Returns an 8-bit layer of the layer's index, whose values and factors are read afterwards."""
    options: dict[str, Any] = {
        "bias": layer.bias is not None,
        "x_scale": x_scale,
        "activation": layer.activation,
        "device": layer.values.device,
        "bias_dtype": layer.values.dtype,
    }
    if isinstance(layer, SparseLinear):
        return QuantizedSparseLinear(layer.layout, dtype, **options)
    if isinstance(layer, Semi24Linear):
        return QuantizedSemi24Linear(cast("Semi24Layout", layer.layout), dtype, **options)
    return QuantizedBlockSparseLinear(layer.pattern, dtype, **options)

"""Converts dense convolutions to those that are sparse in blocks of channels, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from ...errors import Error
from ...ops.conv import product
from ...pattern import Block, Pattern
from ...sparsify import Sparsifier
from .. import arguments
from ..held.convert import chosen_pattern, with_activation
from ..held.masked_by_torch import weight_of

if TYPE_CHECKING:
    from .base import ConvModule

Made = TypeVar("Made", bound="ConvModule")


def from_dense(
    cls: type[Made],
    dense: Any,
    pattern: Pattern | None,
    density: float | None,
    block: Block,
    select: str | Sparsifier | Pattern,
    scope: str,
    activation: str | None,
) -> Made:
    """See ConvModule.from_dense."""
    name = cls.dense_class.__name__
    if type(dense).__name__ != name or not isinstance(dense, nn.Module):
        remedy = "pass the layer that this class stands for"
        raise Error("from_dense", f"an nn.{name}", type(dense).__name__, remedy)
    arguments.require_activation(activation, cls.__name__)
    source: Any = dense
    weight = cls.of_channels(weight_of("from_dense", dense).detach()).flatten(2)
    pattern = chosen_pattern(weight.abs().sum(2), pattern, density, block, select, scope, None)
    layer = cls.holding(source, weight, pattern)
    layer.activation = activation
    layer.values.requires_grad_(source.weight.requires_grad)
    if source.bias is not None:
        layer.bias = nn.Parameter(source.bias.detach().clone(), source.bias.requires_grad)
    return layer


def to_dense(layer: ConvModule) -> nn.Module:
    """See ConvModule.to_dense."""
    if layer.edges is not None:
        remedy = "set layer.edges = None, which changes the results at the borders"
        raise Error("to_dense", "a layer without an edge bias", "one with it", remedy)
    cls: Any = layer.dense_class
    dense: nn.Module = cls(
        layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta",
        **{name: getattr(layer, name) for name in layer.options},
    )  # fmt: skip
    weight = layer.of_channels(product.dense(layer.values.detach(), layer.index, layer.kernel_size))
    dense.weight = nn.Parameter(weight.contiguous(), layer.values.requires_grad)
    if layer.bias is not None:
        dense.bias = nn.Parameter(layer.bias.detach().clone(), layer.bias.requires_grad)
    return with_activation(dense, layer).train(layer.training)

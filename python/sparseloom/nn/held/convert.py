"""Converts dense layers to block-sparse layers, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ... import ops
from ...errors import Error
from ...layouts.torchs import is_sparse_matrix, strided
from ...pattern import Block, Head, Pattern, block_shape
from ...pattern.empty_rows import warn_of_empty_rows
from ...sparsify import Context, Sparsifier, sparsifier_of
from .from_torch import require_bias
from .masked_by_torch import weight_of
from .sharded import require_whole
from .torch_blocks import trains

if TYPE_CHECKING:
    from ..linear import BlockSparseLinear

#: The names that ``select`` takes: all methods but "random", which does not rank by the weight.
SELECTS = ("magnitude", "l2", "max", "stored")


def chosen_pattern(
    matrix: Tensor,
    pattern: Pattern | None,
    density: float | None,
    block: Block,
    select: str | Sparsifier | Pattern,
    scope: str,
    head: Head | None,
    gradient: Tensor | None = None,
) -> Pattern:
    """Returns ``pattern``, or the blocks that ``select`` chooses, ranked by ``matrix`` [out_features,
    in_features]. Raises Error if both a pattern and a density are given, and if neither is while ``select``
    needs one."""
    op = "from_dense"
    if isinstance(select, Pattern):
        if pattern is not None:
            raise Error(op, "one pattern", "select=Pattern beside another", "leave one of them out")
        pattern, select = select, "magnitude"
    sparsifier = sparsifier_of(op, select, SELECTS)
    if pattern is not None and (density is not None or sparsifier.decides):
        got = "both" if density is not None else f"a pattern and select={select!r}"
        raise Error(
            op, "one of density and pattern", got, "the pattern says which blocks stay: pass it alone"
        )
    if pattern is not None and (select != "magnitude" or scope != "layer"):
        got, remedy = f"select={select!r} and scope={scope!r}", "the pattern says which blocks stay"
        raise Error(op, "a pattern alone", got, f"{remedy}: leave them out")
    if pattern is not None:
        return pattern
    if density is None and isinstance(select, str) and not sparsifier.decides:
        remedy = 'pass density=0.25, pattern=, or select="stored" for the blocks that are not zero'
        raise Error(op, "one of density and pattern", "neither", remedy)
    context = Context(matrix, block_shape(op, block), density, scope, gradient=gradient, head=head)
    return sparsifier(context)


def from_dense(
    cls: type[BlockSparseLinear],
    dense: nn.Linear | Tensor,
    pattern: Pattern | None,
    density: float | None,
    block: Block,
    select: str | Sparsifier | Pattern,
    scope: str,
    head: Head | None,
    bias: Tensor | None,
    activation: str | None,
) -> BlockSparseLinear:
    """See BlockSparseLinear.from_dense."""
    op = "from_dense"
    if isinstance(dense, nn.Linear):
        if bias is not None:
            raise Error(
                op, "the nn.Linear's own bias", "another bias beside it", "pass dense.weight and bias="
            )
        weight, bias = weight_of(op, dense), dense.bias
    else:
        weight = dense
    if is_sparse_matrix(weight):
        weight = nn.Parameter(strided(weight), trains(weight))
    if not isinstance(weight, Tensor) or weight.layout != torch.strided or weight.dim() != 2:
        got = (
            f"{list(weight.shape)}, {weight.layout}" if isinstance(weight, Tensor) else type(weight).__name__
        )
        raise Error(
            op,
            "an nn.Linear or a weight [out_features, in_features]",
            got,
            "pass one matrix",
        )
    by_density = pattern is None and density is not None
    gradient = weight.grad if isinstance(weight, nn.Parameter) else None
    pattern = chosen_pattern(weight.detach(), pattern, density, block, select, scope, head, gradient)
    if by_density and density:  # density 0 asks for no blocks
        warn_of_empty_rows(pattern, f"from_dense of {weight.shape[0]} x {weight.shape[1]}, density={density}")
    rows, cols = weight.shape
    layer = cls(
        cols,
        rows,
        bias is not None,
        pattern=pattern,
        activation=activation,
        device=weight.device,
        dtype=weight.dtype,
    )
    with torch.no_grad():
        index = layer.index
        layer.values.copy_(
            ops.call("pack", weight.detach().contiguous(), index.crow, index.col, *layer.block)
        )
        layer.values.requires_grad_(trains(weight))
        if layer.bias is not None and bias is not None:
            require_bias(op, bias, weight)
            layer.bias.copy_(bias)
            layer.bias.requires_grad_(trains(bias))
    return layer.train(dense.training) if isinstance(dense, nn.Linear) else layer


def to_dense(layer: BlockSparseLinear) -> nn.Module:
    """See BlockSparseLinear.to_dense."""
    require_whole("to_dense", layer.values)
    options = {"device": layer.values.device, "dtype": layer.values.dtype}
    dense = nn.utils.skip_init(
        nn.Linear, layer.in_features, layer.out_features, bias=layer.bias is not None, **options
    )
    index = layer.index
    with torch.no_grad():
        dense.weight.copy_(
            ops.call("unpack", layer.values.detach(), index.crow, index.col, index.rows, index.cols)
        )
        dense.weight.requires_grad_(layer.values.requires_grad)
        if layer.bias is not None:
            dense.bias.copy_(layer.bias)
            dense.bias.requires_grad_(layer.bias.requires_grad)
    dense.train(layer.training)
    return with_activation(dense, layer)


#: Every live fused.Fused: the modules that replace activations which a layer applies in its epilogue.
STANDING: WeakSet[Any] = WeakSet()


def with_activation(dense: nn.Module, layer: Any) -> nn.Module:
    """Returns the dense module followed by the layer's own activation. An activation of the model that was
    fused into the layer stays with the model."""
    if layer.activation is None or applies_the_models(layer):
        return dense
    return nn.Sequential(dense, Activation(layer.activation))


def applies_the_models(layer: Any) -> bool:
    """Returns whether the layer's activation belongs to the model and was fused by sparsify_."""
    return any(fused.layer is layer for fused in STANDING)


class Activation(nn.Module):
    """A layer's activation as a module, for the layer's dense twin."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        """Applies the activation to x of any shape."""
        return ops.activate(x, self.name)

    def extra_repr(self) -> str:
        return self.name

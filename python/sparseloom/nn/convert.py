"""Converts dense layers and torch.sparse_bsr tensors to block-sparse layers, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .. import ops
from .._empty_rows import warn_of_empty_rows
from ..errors import Error
from ..pattern import Block, Head, Pattern, block_shape
from ..sparsify import Context, Sparsifier, sparsifier_of
from . import state
from .sharded import require_whole

if TYPE_CHECKING:
    from .linear import BlockSparseLinear

#: What ``select`` may be called: all but "random", which is no choice by a weight.
SELECTS = ("magnitude", "l2", "max", "stored")


def chosen_pattern(
    matrix: Tensor,
    pattern: Pattern | None,
    density: float | None,
    block: Block,
    select: str | Sparsifier,
    scope: str,
    head: Head | None,
    gradient: Tensor | None = None,
) -> Pattern:
    """Returns ``pattern``, or what ``select`` chooses of a weight's blocks, which are ranked by ``matrix``
    [out_features, in_features]. Raises Error for both at once, and for neither where something has to say how
    much stays."""
    op = "from_dense"
    sparsifier = sparsifier_of(op, select, SELECTS)
    if pattern is not None and (density is not None or sparsifier.decides):
        got = "both" if density is not None else f"a pattern and select={select!r}"
        raise Error(
            op, "one of density and pattern", got, "the pattern says which blocks stay: pass it alone"
        )
    if pattern is not None:
        return pattern
    if density is None and isinstance(select, str) and not sparsifier.decides:
        remedy = 'pass density=0.25, pattern=, or select="stored" for the blocks that are not zero'
        raise Error(op, "one of density and pattern", "neither", remedy)
    asked = Context(matrix, block_shape(op, block), density, scope, gradient=gradient, head=head)
    return sparsifier(asked)


def from_dense(
    cls: type[BlockSparseLinear],
    dense: nn.Linear | Tensor,
    pattern: Pattern | None,
    density: float | None,
    block: Block,
    select: str | Sparsifier,
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
        weight, bias = dense.weight, dense.bias
    else:
        weight = dense
    if not isinstance(weight, Tensor) or weight.layout != torch.strided or weight.dim() != 2:
        got = (
            f"{list(weight.shape)}, {weight.layout}" if isinstance(weight, Tensor) else type(weight).__name__
        )
        raise Error(
            op,
            "an nn.Linear or a strided weight [out_features, in_features]",
            got,
            "use from_torch_bsr for BSR",
        )
    asked = pattern is None and density is not None and density > 0
    gradient = weight.grad if isinstance(weight, nn.Parameter) else None
    pattern = chosen_pattern(weight.detach(), pattern, density, block, select, scope, head, gradient)
    if asked:
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
        layer.values.requires_grad_(weight.requires_grad or not isinstance(weight, nn.Parameter))
        if layer.bias is not None and bias is not None:
            _require_bias(op, bias, weight)
            layer.bias.copy_(bias)
            layer.bias.requires_grad_(bias.requires_grad or not isinstance(bias, nn.Parameter))
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
    return dense if layer.activation is None else nn.Sequential(dense, Activation(layer.activation))


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


def from_torch_bsr(
    cls: type[BlockSparseLinear], weight: Tensor, bias: Tensor | None, activation: str | None
) -> BlockSparseLinear:
    """See BlockSparseLinear.from_torch_bsr."""
    op = "from_torch_bsr"
    if not isinstance(weight, Tensor) or weight.layout != torch.sparse_bsr or weight.dim() != 2:
        got = (
            f"{weight.layout}, {weight.dim()} dimensions"
            if isinstance(weight, Tensor)
            else type(weight).__name__
        )
        raise Error(
            op, "a 2-dimensional torch.sparse_bsr tensor", got, "convert with weight.to_sparse_bsr((32, 32))"
        )
    values = weight.values().detach()
    rows, cols = weight.shape
    crow = state.int32_index(op, "crow_indices", weight.crow_indices())
    col = state.int32_index(op, "col_indices", weight.col_indices())
    pattern = Pattern.from_index(crow, col, rows, cols, (values.shape[1], values.shape[2]))
    layer = cls(
        cols,
        rows,
        bias is not None,
        pattern=pattern,
        activation=activation,
        device="meta",
        dtype=values.dtype,
    )
    layer.to_empty(device=values.device)  # only the index matters: the shared values replace these
    layer.values = nn.Parameter(values)
    if layer.bias is not None and bias is not None:
        _require_bias(op, bias, weight)
        with torch.no_grad():
            layer.bias.copy_(bias)
    return layer


def to_torch_bsr(layer: BlockSparseLinear) -> Tensor:
    """See BlockSparseLinear.to_torch_bsr."""
    require_whole("to_torch_bsr", layer.values)
    (bm, bn), (rows, cols) = layer.block, (layer.out_features, layer.in_features)
    if rows % bm or cols % bn:
        raise Error(
            "to_torch_bsr",
            f"out_features and in_features divisible by block {bm} x {bn}",
            f"{rows} x {cols}",
            "torch.sparse_bsr has no ragged edges: use to_dense(), or sizes and a block that divide",
        )
    return torch.sparse_bsr_tensor(
        layer.crow, layer.col, layer.values.detach(), (rows, cols), check_invariants=False
    )


def _require_bias(op: str, bias: Tensor, weight: Tensor) -> None:
    if not isinstance(bias, Tensor) or bias.layout != torch.strided:
        got = str(bias.layout) if isinstance(bias, Tensor) else type(bias).__name__
        raise Error(op, "bias as a strided tensor", got, "convert it with torch.as_tensor or .to_dense()")
    if tuple(bias.shape) != (weight.shape[0],) or bias.dtype != weight.dtype:
        expected = f"bias [{weight.shape[0]}] of {weight.dtype}"
        raise Error(
            op,
            expected,
            f"{list(bias.shape)} of {bias.dtype}",
            "one value per output feature, in the weight's dtype",
        )

"""Makes block-sparse layers of torch's sparse tensors, and back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ... import pattern as patterns
from ...errors import Error
from ...layouts.torchs import BLOCKS, SPARSE, is_sparse_matrix, places_of, strided, values_of
from ...pattern import Block, Pattern, block_shape
from ..in_layout.dense_entries import packed_layer
from .sharded import require_whole
from .torch_blocks import blocks_of, trains

if TYPE_CHECKING:
    from ..linear import BlockSparseLinear

_LOG = logging.getLogger("sparseloom")
#: The block sides that the kernels support.
SIDES = (8, 16, 32, 64, 128)


def from_torch_bsr(
    cls: type[BlockSparseLinear],
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    reblock: Block | None = None,
) -> BlockSparseLinear:
    """See BlockSparseLinear.from_torch_bsr."""
    op = "from_torch_bsr"
    if not is_sparse_matrix(weight) or (reblock is None and weight.layout not in BLOCKS):
        sparse = isinstance(weight, Tensor) and weight.layout in SPARSE and weight.dim() == 2
        got = f"{weight.layout}, {weight.dim()} dimensions" if isinstance(weight, Tensor) else repr(weight)
        remedy = (
            "pass reblock=32, which stores the blocks that hold its elements"
            if sparse
            else ("from_dense takes strided weights")
        )
        raise Error(op, "a 2-dimensional torch.sparse_bsr or sparse_bsc tensor", got, remedy)
    if reblock is not None:
        layer = _reblocked(cls, weight, block_shape(op, reblock))
    else:
        crow, col, values = blocks_of(op, weight)
        block = _require_sides(op, weight, values)
        rows, cols = weight.shape
        pattern = Pattern.from_index(crow, col, rows, cols, block)
        layer = cls(cols, rows, False, pattern=pattern, device="meta", dtype=values.dtype)
        layer.to_empty(device=values.device)  # only the index matters: the shared values replace these
        layer.values = nn.Parameter(values)
    layer.activation = activation
    layer.values.requires_grad_(trains(weight))
    if bias is not None:
        require_bias(op, bias, weight)
        layer.bias = nn.Parameter(bias.detach().clone(), trains(bias))
    return layer


def _require_sides(op: str, weight: Tensor, values: Tensor) -> tuple[int, int]:
    """Returns the block of a BSR or BSC tensor. If no kernel supports it, raises an Error that names the next
    larger block and how many elements it would store."""
    block = values.shape[1], values.shape[2]
    if all(side in SIDES for side in block):
        return block
    bm, bn = (
        next((larger_side for larger_side in SIDES if larger_side >= side), SIDES[-1]) for side in block
    )
    larger = bm, bn
    stored, now = _fill_in(weight, larger)
    remedy = (
        f"pass reblock={larger}: of the {stored} elements that its blocks store, {stored - now} are zeros "
        "that this tensor does not store"
    )
    raise Error(op, f"blocks with sides of {', '.join(map(str, SIDES))}", f"{block[0]} x {block[1]}", remedy)


def _fill_in(weight: Tensor, block: tuple[int, int]) -> tuple[int, int]:
    """Returns how many elements the matrix stores in blocks of that size, and how many it stores now."""
    places = torch.sparse_coo_tensor(
        torch.stack(places_of(weight)), torch.ones(weight._nnz(), device=weight.device), _grid(weight)
    ).coalesce()
    mask = places.to_dense()
    if weight.layout in BLOCKS:
        _, bm, bn = values_of(weight).shape
        mask = mask.repeat_interleave(bm, 0).repeat_interleave(bn, 1)
    return patterns.from_nonzero(mask, block).blocks * block[0] * block[1], values_of(weight).numel()


def _grid(weight: Tensor) -> tuple[int, int]:
    rows, cols = weight.shape
    if weight.layout not in BLOCKS:
        return rows, cols
    _, bm, bn = values_of(weight).shape
    return rows // bm, cols // bn


def _reblocked(cls: type[BlockSparseLinear], weight: Tensor, block: tuple[int, int]) -> BlockSparseLinear:
    dense = strided(weight)
    pattern = patterns.from_nonzero(dense, block)
    layer = packed_layer(cls, dense, pattern)
    _LOG.info(
        "from_torch_bsr: %d blocks of %d x %d store %d elements for the %d of the tensor",
        pattern.blocks, *block, layer.values.numel(), values_of(weight).numel(),
    )  # fmt: skip
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


def require_bias(op: str, bias: Tensor, weight: Tensor) -> None:
    """Raises Error for a bias that does not belong to a weight."""
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

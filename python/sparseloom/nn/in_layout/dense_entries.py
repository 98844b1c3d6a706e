"""Makes layers from existing weights, and reads dense entries of a state_dict into sparse layers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from ... import ops
from ...errors import Error
from ...layouts.torchs import BLOCKS, strided
from ...pattern import Pattern
from ..held.parametrized import values_are_computed
from ..held.pruned_entries import accept_pruned
from ..held.pytorch_block_sparse import blocks_of as blocks_of_pytorch_block_sparse
from ..held.torch_blocks import blocks_of

if TYPE_CHECKING:
    from ..held.indexed import IndexedModule
    from ..semi24.linear import Semi24Linear
    from .linear import SparseLinear

Layer = TypeVar("Layer", bound="IndexedModule")
_LOG = logging.getLogger("sparseloom")


def packed_layer(cls: type[Layer], matrix: Tensor, pattern: Pattern) -> Layer:
    """Returns a layer without bias that holds the pattern's blocks of matrix [out, in], on the matrix's
    device and in its dtype.

    Draws no random numbers and allocates nothing but the blocks; a matrix on meta gives a layer on meta.
    """
    layer = cls(pattern.cols, pattern.rows, False, pattern=pattern, device="meta", dtype=matrix.dtype)
    if not matrix.is_meta:
        layer._set_index(pattern, matrix.device)
        index = layer.index
        layer.values = nn.Parameter(
            ops.call("pack", matrix.detach().contiguous(), index.crow, index.col, *pattern.block)
        )
    return layer


def accept_dense(layer: IndexedModule, tensors: dict[str, Any], prefix: str) -> None:
    """Replaces a dense entry ``weight`` under prefix by values, crow and col; leaves a sparse checkpoint's
    entries alone.

    A strided weight [out, in], or a sparse matrix of torch, is packed by the layer's pattern, and what lies
    outside the pattern is dropped. torch's sparse_bsr and sparse_bsc, and the entries that
    pytorch_block_sparse writes, bring their own pattern. Raises Error when one does not fit the layer.
    """
    accept_blocks(tensors, prefix)
    if prefix + "values" in tensors or values_are_computed(layer):
        return
    if prefix + "weight.data" in tensors and prefix + "weight.cols_a" in tensors:
        values, crow, col = _from_pytorch_block_sparse(layer, tensors, prefix)
    elif isinstance(weight := tensors.get(prefix + "weight"), Tensor):
        values, crow, col = (
            _from_bsr(layer, weight) if weight.layout in BLOCKS else _packed(layer, weight, prefix)
        )
        del tensors[prefix + "weight"]
    else:
        return
    tensors.update({prefix + "values": values, prefix + "crow": crow, prefix + "col": col})


def accept_matrix(layer: SparseLinear | Semi24Linear, tensors: dict[str, Any], prefix: str) -> None:
    """Replaces an entry ``weight`` under prefix by values and the parts of the index. The entry may be the
    values that save_pretrained wrote beside the index; a dense weight, of which the elements at the layer's
    places are kept; or a weight that brings its own places. Raises Error for another size or layout."""
    accept_pruned(tensors, prefix)
    weight = tensors.get(prefix + "weight")
    if not isinstance(weight, Tensor) or prefix + "values" in tensors or values_are_computed(layer):
        return
    parts = layer.layout.tensors()
    if all(prefix + part in tensors for part in parts):
        tensors[prefix + "values"] = tensors.pop(prefix + "weight")
        return
    placed = layer.placed(weight)
    layout, values = (layer.layout, None) if placed is None else placed
    if values is None:
        if weight.layout != torch.strided or weight.is_nested:
            remedy = "convert the entry with .to_dense()"
            raise Error("load", "a weight of layout torch.strided", str(weight.layout), remedy)
        matrix = _require_size(layer, layer.dense_matrix(weight).detach())
        values = layout.pack(matrix.to(layer.values.device))
        _tell_kept(prefix, matrix, values)
    elif (layout.rows, layout.cols) != (layer.out_features, layer.in_features):
        expected = f"weight of {layer.out_features} x {layer.in_features} (out x in features)"
        raise Error("load", expected, f"{layout.rows} x {layout.cols}", "build the model as the saved one")
    del tensors[prefix + "weight"]
    tensors[prefix + "values"] = values
    tensors.update({prefix + part: tensor for part, tensor in layout.tensors().items()})


def accept_blocks(tensors: dict[str, Any], prefix: str) -> None:
    """Renames blocks that come with crow and col to ``values``: save_pretrained calls them ``weight``
    (sparseloom.hf says why)."""
    weight = tensors.get(prefix + "weight")
    if (
        isinstance(weight, Tensor)
        and weight.dim() in (3, 4)  # [blocks, bm, bn], of a convolution [blocks, taps, bm, bn]
        and prefix + "crow" in tensors
        and prefix + "values" not in tensors
    ):
        tensors[prefix + "values"] = tensors.pop(prefix + "weight")


def _packed(layer: IndexedModule, weight: Tensor, prefix: str) -> tuple[Tensor, Tensor, Tensor]:
    weight = strided(weight)
    if weight.layout != torch.strided or weight.is_nested:
        remedy = "convert the entry with .to_dense()"
        raise Error("load", "a strided weight, or a sparse matrix of torch", str(weight.layout), remedy)
    matrix = _require_size(layer, layer.dense_matrix(weight))
    crow, col = (index.to(weight.device) for index in layer.pattern.index())
    values = ops.call("pack", matrix.detach().contiguous(), crow, col, *layer.block)
    _tell_kept(prefix, weight, values)
    return values, crow, col


def _require_size(layer: IndexedModule | SparseLinear | Semi24Linear, matrix: Tensor) -> Tensor:
    if tuple(matrix.shape) != (layer.out_features, layer.in_features):
        expected = f"weight of {layer.out_features} x {layer.in_features} (out x in features)"
        raise Error("load", expected, " x ".join(map(str, matrix.shape)), "build the model as the saved one")
    return matrix


def _tell_kept(prefix: str, weight: Tensor, values: Tensor) -> None:
    if not weight.is_meta and _LOG.isEnabledFor(logging.INFO):
        total = float(weight.detach().abs().sum(dtype=torch.float32))
        fraction = float(values.abs().sum(dtype=torch.float32)) / total if total else 1.0
        _LOG.info(
            "%sweight: packed a dense weight by the layer's pattern, which keeps %.1f %% of sum |w|",
            prefix,
            100 * fraction,
        )


def _from_bsr(layer: IndexedModule, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if tuple(weight.shape) != (layer.out_features, layer.in_features):
        expected = f"a torch.sparse_bsr weight of {layer.out_features} x {layer.in_features}"
        raise Error("load", expected, " x ".join(map(str, weight.shape)), "build the model as the saved one")
    crow, col, values = blocks_of("load", weight)
    return values, crow, col


def _from_pytorch_block_sparse(
    layer: IndexedModule, tensors: dict[str, Any], prefix: str
) -> tuple[Tensor, Tensor, Tensor]:
    values, crow, col, side = blocks_of_pytorch_block_sparse(tensors, prefix)
    if layer.block != (side, side):
        got = f"blocks of {layer.block[0]} x {layer.block[1]} in the layer"
        raise Error(
            "load", f"blocks of {side} x {side}, as the checkpoint has", got, f"sparsify with block={side}"
        )
    return values, crow, col

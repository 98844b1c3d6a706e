"""Checks what a layer's index and values must satisfy, and reads them from a state_dict."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import ops
from ..errors import Error, unsupported_layout
from ..pattern import Pattern
from .parametrized import values_are_computed

if TYPE_CHECKING:
    from .indexed import IndexedModule
    from .quantized import QuantizedBlockSparseLinear

_LOG = logging.getLogger("sparseloom")
INDEX_BUFFERS = ("crow", "col", "ccol", "row", "slot")
_INT32_MAX = 2**31 - 1


def build_index(pattern: Pattern) -> ops.Index:
    """Returns the index of a pattern, on the CPU."""
    return ops.make_index(*pattern.index(), pattern.rows, pattern.cols, pattern.block)


def content_hash(pattern: Pattern) -> int:
    """Returns a hash of where the pattern's blocks lie, the same in every process."""
    return int(ops.call("validate_index", *pattern.index(), pattern.rows, pattern.cols, *pattern.block))


def remember(layer: IndexedModule | QuantizedBlockSparseLinear, changed: bool = False) -> None:
    """Tells products on CUDA where the layer's pattern lies (see ops.remember). It costs one comparison when
    they know; ``changed`` says that another pattern may lie where one was remembered."""
    crow = layer._buffers["crow"]
    # a fake tensor has no address
    if type(crow) is not Tensor or not crow.is_cuda or layer._digest == ops.UNKNOWN:
        return
    address = crow.data_ptr()
    if changed or address != layer.__dict__.get("_remembered"):
        ops.remember(build_index(layer._pattern), crow)
        layer.__dict__["_remembered"] = address


def complete(layer: IndexedModule | QuantizedBlockSparseLinear) -> None:
    """Adds what a layer that an older version pickled does not have."""
    old = layer.__dict__.pop("_version", None)
    if old is not None:
        layer._digest = ops.UNKNOWN if old == -1 else build_index(layer._pattern).digest


def writes(layer: IndexedModule) -> int:
    """Returns how often the index buffers were written in place, by torch's own count; -1 where it keeps none
    (inference tensors)."""
    buffers = [layer.get_buffer(name) for name in INDEX_BUFFERS]
    return (
        -1 if any(buffer.is_inference() for buffer in buffers) else sum(buffer._version for buffer in buffers)
    )


def mend_index(layer: IndexedModule) -> None:
    """Writes the index buffers again, in place, where something else has changed them. This costs nothing
    when nobody wrote to them."""
    if layer.crow.is_meta or (count := writes(layer)) == layer._writes >= 0:
        return
    index = build_index(layer.pattern)
    changed = False
    with torch.no_grad():
        for name in INDEX_BUFFERS:
            buffer, right = layer.get_buffer(name), getattr(index, name)
            if not torch.equal(buffer.cpu(), right):
                buffer.copy_(right)
                changed = True
    if changed:
        _LOG.warning(
            "index buffers of a block-sparse layer were changed in "
            "place (an average of buffers?); written again"
        )
    layer._writes = writes(layer) if changed else count


def fan_in(pattern: Pattern) -> Tensor:
    """Returns the number of stored inputs of each block row's outputs, without padding: float32 [block
    rows]."""
    width = torch.full((pattern.mask.shape[1],), float(pattern.block[1]), dtype=torch.float32, device="cpu")
    if len(width):
        width[-1] = pattern.cols - pattern.block[1] * (len(width) - 1)
    return pattern.mask.to(torch.float32) @ width


def _padding(values: Tensor, pattern: Pattern) -> list[Tensor]:
    """Returns the parts of values [blocks, bm, bn] that lie outside of the matrix, as views: those below the
    last row and those right of the last column."""
    (bm, bn), (rows, cols) = pattern.block, (pattern.rows, pattern.cols)
    crow, col = pattern.index()
    pieces = []
    if rows % bm:
        pieces.append(values[int(crow[-2]) :, rows % bm :, :])
    if cols % bn:
        last = (col == pattern.mask.shape[1] - 1).nonzero().flatten()
        pieces += [values[i, :, cols % bn :] for i in last.tolist()]
    return pieces


def zero_padding_(values: Tensor, pattern: Pattern) -> None:
    """Writes zero into the parts of edge blocks that lie outside of the matrix."""
    for piece in _padding(values, pattern):
        piece.zero_()


def require_zero_padding(op: str, values: Tensor, pattern: Pattern) -> None:
    """Raises Error when any padding is not zero. Padding never counts, but a NaN in it would reach
    results."""
    for piece in _padding(values, pattern):
        if bool((piece != 0).any()):
            got = f"{int((piece != 0).sum())} non-zero elements in the padding of a block"
            raise Error(
                op, "zero padding in the blocks of ragged edges", got, "pack the weight again with from_dense"
            )


def require_strided(tensors: Mapping[str, Any], prefix: str, names: tuple[str, ...]) -> None:
    """Raises Error when one of these entries of a state_dict is a sparse, nested or mkldnn tensor."""
    for name in names:
        entry = tensors.get(prefix + name)
        if isinstance(entry, Tensor) and (entry.layout != torch.strided or entry.is_nested):
            raise unsupported_layout("load", name, str(entry.layout))


def int32_index(op: str, name: str, index: Tensor) -> Tensor:
    """Returns an index tensor from outside as contiguous int32 on the CPU; int64 is converted. Raises Error
    when it does not fit."""
    strided = isinstance(index, Tensor) and index.layout == torch.strided and not index.is_meta
    if not strided or index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
        got = (
            f"{index.dtype} {list(index.shape)} on {index.device}"
            if isinstance(index, Tensor)
            else type(index).__name__
        )
        raise Error(
            op,
            f"{name} to be an int32 or int64 vector",
            got,
            "take it from a layer or a torch.sparse_bsr tensor",
        )
    index = index.detach().cpu()
    if (
        index.dtype == torch.int64
        and len(index)
        and not 0 <= int(index.min()) <= int(index.max()) <= _INT32_MAX
    ):
        got = f"[{int(index.min())}, {int(index.max())}]"
        raise Error(
            op, f"{name} within [0, {_INT32_MAX}]", got, "indices count blocks and are stored as int32"
        )
    return index.to(torch.int32).contiguous()


def read_pattern(
    layer: IndexedModule | QuantizedBlockSparseLinear, tensors: Mapping[str, Any], prefix: str
) -> Pattern | None:
    """Returns the pattern of the entries values, crow and col under ``prefix``, or None when there are none
    of them.

    Raises Error when some of them are missing (values alone do not say where they go), do not fit the layer
    or do not describe a pattern.
    """
    computed = values_are_computed(layer)  # then they are not an entry
    names = ("crow", "col") if computed else ("values", "crow", "col")
    found = [name for name in names if prefix + name in tensors]
    if not found:
        return None
    if len(found) < len(names):
        missing = ", ".join(name for name in names if name not in found)
        raise Error(
            "load",
            f"{', '.join(names[:-1])} and col together",
            f"no {missing}",
            "save the whole state_dict of the layer",
        )
    values = layer.values if computed else tensors[prefix + "values"]
    crow, col = (tensors[prefix + name] for name in ("crow", "col"))
    crow, col = int32_index("load", "crow", crow), int32_index("load", "col", col)
    expected = f"values [{len(col)}, {layer.block[0]}, {layer.block[1]}] (blocks of this layer)"
    if not isinstance(values, Tensor) or tuple(values.shape) != (len(col), *layer.block):
        got = str(list(values.shape)) if isinstance(values, Tensor) else type(values).__name__
        remedy = "make the layer with the block shape that was saved"
        if computed:
            remedy = "remove the parametrization, norm or pruning, load, and register it again"
        raise Error("load", expected, got, remedy)
    pattern = Pattern.from_index(crow, col, layer.out_features, layer.in_features, layer.block)
    if not values.is_meta and not computed:
        require_zero_padding("load", values, pattern)
    return pattern

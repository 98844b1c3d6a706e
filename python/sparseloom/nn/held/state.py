"""Checks a layer's index and values, and reads them from a state_dict."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import ops
from ...errors import Error, unsupported_layout
from ...pattern import Pattern
from .parametrized import values_are_computed
from .sharded import is_sharded

if TYPE_CHECKING:
    from .indexed import IndexedModule
    from .with_index import WithIndex

_LOG = logging.getLogger("sparseloom")
#: The buffer that holds a layer's packed index (ops.Index.packed). It is not saved; files hold crow and col.
INDEX_BUFFER = "packed_index"
INDEX_ENTRIES = ("crow", "col")
_INT32_MAX = 2**31 - 1
#: The buffer of error bits that changes of topology set on the device.
FLAGS = "topology_flags"
_OVERFLOW, _NAN, _NO_GRADIENT = 1, 2, 4


def build_index(pattern: Pattern) -> ops.Index:
    """Returns the index of a pattern, on the CPU."""
    return ops.make_index(*pattern.index(), pattern.rows, pattern.cols, pattern.block)


def content_hash(pattern: Pattern) -> int:
    """Returns a hash of where the pattern's blocks lie, the same in every process."""
    return int(ops.call("validate_index", *pattern.index(), pattern.rows, pattern.cols, *pattern.block))


def remember(layer: WithIndex, changed: bool = False) -> None:
    """Registers the address of the layer's index on CUDA (see ops.remember). It costs one comparison if it
    is registered already; ``changed``: the layer has just written its pattern there."""
    packed = layer._buffers[INDEX_BUFFER]
    if changed and packed is not None and packed.is_cuda:
        bm, bn = layer.block
        ops.trust(ops.Index(packed, layer._blocks, layer.out_features, layer.in_features, bm, bn, -1))
    # a fake tensor has no address
    if type(packed) is not Tensor or not packed.is_cuda or layer._digest < 0:
        return
    address = packed.data_ptr()
    if changed or address != layer.__dict__.get("_remembered"):
        ops.remember(build_index(layer._pattern), packed)
        layer.__dict__["_remembered"] = address


def stored(layer: IndexedModule) -> int:
    """Returns how many blocks are stored; waits for the device. Raises Error, once, where a change of
    topology since the last call could not be made."""
    if layer.packed_index.is_meta:
        return layer._pattern.blocks
    flags, requested = layer.get_buffer(FLAGS), layer.get_buffer("requested_blocks")
    count, bits, requested_count = torch.cat([layer.crow[-1:], flags, requested]).tolist()
    if bits:
        flags.zero_()
    if bits & _OVERFLOW:
        remedy = "it kept its blocks: reserve_ more, or ask for fewer"
        raise Error(
            "set_topology_", f"at most {layer.capacity} blocks, the capacity", f"{requested_count}", remedy
        )
    if bits & _NAN:
        remedy = "the blocks stay where they are: look for a NaN in the weight or its gradient"
        raise Error("drop_and_grow_", "scores without NaN", "a NaN", remedy)
    if bits & _NO_GRADIENT:
        _LOG.info("a change of topology was left out: the gradient to grow by was not finite")
    return int(count)


def load_pair(tensors: Mapping[str, Any], prefix: str, missing: list[str], unexpected: list[str]) -> None:
    """Corrects nn.Module's missing and unexpected keys: crow and col are entries, though no buffers."""
    for entry in INDEX_ENTRIES:
        name = prefix + entry
        if name not in tensors:
            missing.append(name)
        elif name in unexpected:
            unexpected.remove(name)


def assign(layer: WithIndex, name: str, tensor: Any) -> None:
    """Takes a ``crow`` or ``col`` that is assigned to the layer, as transformers does when it loads. Once
    both are assigned, they become the layer's pattern. Raises Error if they are no valid pattern."""
    arrays = layer.__dict__.setdefault("_given", {})
    arrays[name] = tensor
    if len(arrays) == 2:
        del layer.__dict__["_given"]
        crow, col = (int32_index("load", entry, arrays[entry]) for entry in INDEX_ENTRIES)
        pattern = Pattern.from_index(crow, col, layer.out_features, layer.in_features, layer.block)
        layer._set_index(pattern, layer.packed_index.device)


def expect_index(layer: WithIndex) -> None:
    """Notes that crow and col will be assigned to the layer."""
    layer.__dict__["_given"] = {}


def require_index(layer: WithIndex, name: str) -> None:
    """Raises Error unless crow and col have been assigned since expect_index."""
    arrays = layer.__dict__.pop("_given", None)
    if arrays is not None:
        raise Error(
            "load", f"{name}.crow and {name}.col", ", ".join(arrays) or "neither", "save the whole model"
        )


def writes(layer: IndexedModule) -> int:
    """Returns how often the packed index was written in place, by torch's own count; -1 where it keeps none
    (inference tensors)."""
    packed = layer.get_buffer(INDEX_BUFFER)
    return -1 if packed.is_inference() else packed._version


def mend_index(layer: IndexedModule) -> None:
    """Rewrites the packed index, in place, if something else has changed it. It costs nothing if torch has
    counted no write."""
    packed = layer.get_buffer(INDEX_BUFFER)
    if packed.is_meta or (count := writes(layer)) == layer._writes >= 0:
        return
    if layer._places is not None and layer._places.mend(layer):
        return
    old_writes, layer._writes = layer._writes, count  # what follows reads the index
    try:
        expected = layer._index_of(layer.pattern)
    except BaseException:
        layer._writes = old_writes
        raise
    current = expected._replace(packed=packed.cpu())
    changed = not all(torch.equal(*lists) for lists in zip(current.stored(), expected.stored(), strict=True))
    if changed:
        with torch.no_grad():
            packed.copy_(expected.packed)
        _LOG.warning(
            "the index of a block-sparse layer was changed in place (an average of buffers?); written again"
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
    """Returns the parts of values [blocks, ..., bm, bn] that lie outside of the matrix, as views: those below
    the last row and those right of the last column."""
    (bm, bn), (rows, cols) = pattern.block, (pattern.rows, pattern.cols)
    crow, col = pattern.index()
    pieces = []
    if rows % bm:
        pieces.append(values[int(crow[-2]) :, ..., rows % bm :, :])
    if cols % bn:
        last = (col == pattern.mask.shape[1] - 1).nonzero().flatten()
        pieces += [values[i, ..., cols % bn :] for i in last.tolist()]
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
            op, f"{name} within [0, {_INT32_MAX}]", got, "split the weight: indices are stored as int32"
        )
    return index.to(torch.int32).contiguous()


def read_pattern(layer: WithIndex, tensors: Mapping[str, Any], prefix: str) -> Pattern | None:
    """Returns the pattern of a layer's entries; see read_entries."""
    computed = layer.values if values_are_computed(layer) else None
    shape = layer.out_features, layer.in_features
    return read_entries(shape, layer.block, computed, tensors, prefix, layer.stored_shape)


def require_room(layer: WithIndex, pattern: Pattern | None) -> None:
    """Raises Error where fully_shard has cut up values for another number of blocks than the pattern's."""
    if pattern is not None and hasattr(layer.values, "placements") and pattern.blocks != len(layer.values):
        expected, remedy = f"{len(layer.values)} blocks in sharded values", "load first, then fully_shard"
        raise Error("load", expected, str(pattern.blocks), remedy)


def read_entries(
    shape: tuple[int, int],
    block: tuple[int, int],
    computed: Tensor | None,
    tensors: Mapping[str, Any],
    prefix: str,
    stored_shape: tuple[int, ...] | None = None,
) -> Pattern | None:
    """Returns the pattern of the entries values, crow and col under ``prefix``, or None if none of them is
    there. ``computed``: the values, where they are computed and have no entry; ``stored_shape``: the shape of
    a block's values, if it is not ``block``.

    Raises Error when some of them are missing (values alone do not say where they go), do not fit a weight
    of that shape and block, or do not describe a pattern.
    """
    names = INDEX_ENTRIES if computed is not None else ("values", *INDEX_ENTRIES)
    present = [name for name in names if prefix + name in tensors]
    if not present:
        return None
    if len(present) < len(names):
        missing = ", ".join(name for name in names if name not in present)
        raise Error(
            "load",
            f"{', '.join(names[:-1])} and col together",
            f"no {missing}",
            "save the whole state_dict of the layer",
        )
    values = tensors[prefix + "values"] if computed is None else computed
    crow, col = (tensors[prefix + name] for name in ("crow", "col"))
    crow, col = int32_index("load", "crow", crow), int32_index("load", "col", col)
    stored = (len(col), *(stored_shape or block))
    expected = f"values {list(stored)} (blocks of this layer)"
    if not isinstance(values, Tensor) or tuple(values.shape) != stored:
        got = str(list(values.shape)) if isinstance(values, Tensor) else type(values).__name__
        remedy = "make the layer with the block shape that was saved"
        if computed is not None:
            remedy = "remove the parametrization, norm or pruning, load, and register it again"
        raise Error("load", expected, got, remedy)
    pattern = Pattern.from_index(crow, col, *shape, block)
    if not values.is_meta and computed is None and not is_sharded(values):
        require_zero_padding("load", values, pattern)
    return pattern

"""Moves the blocks of a layer while it trains: sets a new mask, and moves values, gradient and optimizer
state with their blocks.

The number of blocks, or of slots where a capacity was reserved (capacity.py), never changes, so no tensor
changes its place in memory or its size. CUDA graphs and compiled code that hold the layer therefore see the
next topology, and a plan, which for a dynamic index depends on shape and number of blocks alone, stays right.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from ... import ops
from ..._checks import as_optimizers
from ...errors import Error
from ...pattern import Pattern
from . import state
from .cut import Cut, held
from .parametrized import require_own_values

if TYPE_CHECKING:
    from .indexed import IndexedModule

_OP = "set_topology_"
_LOG = logging.getLogger("sparseloom")


def set_topology(
    layer: IndexedModule,
    mask: Tensor | Pattern,
    optimizer: Optimizer | Sequence[Optimizer] | None,
    grown: Tensor | None,
) -> Tensor:
    """See BlockSparseLinear.set_topology_."""
    optimizers = as_optimizers(_OP, optimizer)
    mask = _mask(layer, mask)
    if grown is not None:
        _require_grown(layer, grown)
    cut = None if layer._cut is None else _with_mask(layer._cut, mask)
    index = make_dynamic(layer)
    if cut is not None:
        layer._cut, mask = cut, cut.own_pattern.mask.to(index.packed.device)
        grown = None if grown is None else cut.own_of(grown.detach()).contiguous()
    return _move_to(layer, index, mask, optimizers, grown)


def drop_and_grow(
    layer: IndexedModule,
    budget: Tensor,
    growth: Tensor | None,
    scores: Tensor | None,
    optimizer: Optimizer | Sequence[Optimizer] | None,
) -> Tensor:
    """See BlockSparseLinear.drop_and_grow_."""
    op = "drop_and_grow_"
    optimizers = as_optimizers(op, optimizer)
    if layer.capacity is None:
        raise Error(op, "a layer with a capacity", "one of a fixed number of blocks", "call reserve_ first")
    index = make_dynamic(layer)
    if scores is None:
        values = layer.values.detach()
        dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
        dims = tuple(range(1, values.dim()))
        scores = torch.linalg.vector_norm(values, dim=dims, dtype=dtype).float()
    if tuple(scores.shape) != (index.blocks,):
        got = str(list(scores.shape))
        raise Error(op, f"scores [{index.blocks}], one for each slot", got, "leave them out for norms")
    grid = (len(index.crow) - 1, len(index.lists()[2]) - 1)
    mask = torch.empty(grid, dtype=torch.bool, device=index.packed.device)
    ops.choose_blocks(index, scores, growth, budget, mask, layer.get_buffer(state.FLAGS))
    return _move_to(layer, index, mask, optimizers, None)


def _move_to(
    layer: IndexedModule,
    index: ops.Index,
    mask: Tensor,
    optimizers: Sequence[Optimizer],
    grown: Tensor | None,
) -> Tensor:
    """Writes the index, then moves the values, their gradients and their optimizer state. ``mask`` and
    ``grown`` are this rank's part."""
    moved, requested = index.packed.new_empty(index.blocks), layer.get_buffer("requested_blocks")
    # What the moves below ask for, before the index changes: too little memory leaves the layer as it was.
    room = _room(layer, optimizers, grown)
    if layer.capacity is None:
        ops.set_topology(index, mask, moved, requested)
    else:
        ops.update_topology(index, mask, moved, requested, layer.get_buffer(state.FLAGS))
    layer._writes = state.writes(layer)
    del room
    with torch.no_grad():
        parameter = layer.values
        values = held(layer, parameter.detach())
        _move(values, moved)
        for each in _beside(layer, optimizers):
            _move(held(layer, each), moved)
        if grown is not None:
            new_values = ops.call(
                "pack", grown.detach().to(values.dtype), index.crow, index.col, *layer.block
            )
            values.copy_(torch.where((moved < 0)[:, None, None], new_values, values))
    return moved


def _beside(layer: IndexedModule, optimizers: Sequence[Optimizer]) -> Iterator[Tensor]:
    """Yields what moves with the values: gradients, and every tensor of their state that has blocks as its
    first dimension. Kept blocks keep theirs, new ones start at zero; steps and other scalars stay."""
    parameter = layer.values
    for gradient in (parameter.grad, getattr(parameter, "main_grad", None)):
        if isinstance(gradient, Tensor):
            yield gradient
    for optimizer in optimizers:
        for value in optimizer.state.get(parameter, {}).values():
            if isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == parameter.shape[0]:
                yield value


def _room(layer: IndexedModule, optimizers: Sequence[Optimizer], grown: Tensor | None) -> Tensor:
    """Returns memory of the size of what _move_to allocates at one time, which torch's allocator then has."""
    values = held(layer, layer.values.detach())
    tensors = [values, *(held(layer, each) for each in _beside(layer, optimizers))]
    most = max(
        each.nbytes * (1 if each.is_contiguous() else 2) for each in tensors
    )  # the scratch, and a copy
    if grown is not None:
        most = max(most, 3 * values.nbytes)  # its blocks, those in the values' dtype, and the chosen ones
    return values.new_empty(most, dtype=torch.uint8)


def _with_mask(cut: Cut, mask: Tensor) -> Cut:
    """Returns the cut of the whole weight's next pattern. Raises Error unless each part keeps its number of
    blocks: the memory of a rank cannot go to another."""
    pattern = cut.pattern
    new_cut = replace(cut, pattern=Pattern(pattern.rows, pattern.cols, pattern.block, mask.bool()))
    if new_cut.counts != cut.counts:
        expected = f"{list(cut.counts)} blocks in the parts between {list(cut.borders)}"
        remedy = f"move blocks within the parts of dimension {cut.dim}"
        raise Error(_OP, expected, str(list(new_cut.counts)), remedy)
    return new_cut


def _move(tensor: Tensor, moved: Tensor) -> None:
    if tensor.is_contiguous() and tensor.device == moved.device:
        ops.move_blocks(tensor, moved)
        if not tensor.is_inference():
            # otherwise autograd would not notice a backward pass that uses the old blocks
            torch.autograd.graph.increment_version(tensor)
    else:
        copy = tensor.contiguous().to(moved.device)
        ops.move_blocks(copy, moved)
        tensor.copy_(copy)


def make_dynamic(layer: IndexedModule) -> ops.Index:
    """Returns the layer's index with digest UNKNOWN, or MOVING where it has a capacity, since its content
    will change. Raises Error where the topology cannot change."""
    require_changeable(layer)
    if layer._digest >= 0:
        count = torch.full((1,), layer._blocks, dtype=torch.int32, device=layer.packed_index.device)
        layer.register_buffer("requested_blocks", count, persistent=False)
        layer._digest, layer._index = ops.UNKNOWN, None
    if layer._copy is not None:
        layer._copy.end()
    return layer.index


def require_changeable(layer: IndexedModule) -> None:
    """Raises Error where the topology of a layer cannot change."""
    if layer.packed_index.is_meta:
        raise Error(
            _OP, "a layer with memory", "one on meta", "materialise it with .to_empty() and load it first"
        )
    require_own_values(_OP, layer)
    if len(getattr(layer.values, "placements", ())) > (layer._cut is not None):
        raise Error(
            _OP, "whole values", "values that fully_shard has cut up", "change the topology before sharding"
        )


def current_pattern(layer: IndexedModule) -> Pattern:
    """Returns the pattern of the index as it is now; waits for the device. Logs a warning if the last mask
    named another number of blocks."""
    crow, col = (state.int32_index("pattern", name, getattr(layer, name)) for name in ("crow", "col"))
    if layer.capacity is not None:
        col = col[: state.stored(layer)]
        return Pattern.from_index(crow, col, layer.out_features, layer.in_features, layer.block)
    requested, blocks = int(layer.get_buffer("requested_blocks")), len(col)
    if requested != blocks:
        outcome = (
            f"the first {blocks} were taken"
            if requested > blocks
            else "it was filled up with blocks that start at zero"
        )
        _LOG.warning("a topology mask of %d blocks for a layer of %d: %s", requested, blocks, outcome)
    return Pattern.from_index(crow, col, layer.out_features, layer.in_features, layer.block)


def write_index(layer: IndexedModule, pattern: Pattern, device: torch.device) -> bool:
    """Writes the index of another pattern into the memory of a dynamic layer's index. Returns False if the
    layer is not dynamic, or if its index has another size, no memory, or another device."""
    packed = layer._buffers.get(state.INDEX_BUFFER)
    if packed is None or layer._digest >= 0 or packed.dtype != torch.int32:
        return False
    if packed.is_meta or packed.device != device:
        return False
    if layer.capacity is None and layer._blocks != pattern.blocks:
        return False
    with torch.no_grad():
        packed.copy_(layer._index_of(pattern).packed)
        layer.get_buffer("requested_blocks").fill_(pattern.blocks)
        if layer.capacity is not None:
            layer.get_buffer(state.FLAGS).zero_()  # memory that came from meta holds anything
    return True


def _shape(layer: IndexedModule) -> tuple[int, int]:
    """Returns (out features, in features) of the whole weight, also where the layer holds a part of it."""
    cut = layer._cut
    return (layer.out_features, layer.in_features) if cut is None else (cut.pattern.rows, cut.pattern.cols)


def _mask(layer: IndexedModule, mask: Tensor | Pattern) -> Tensor:
    (bm, bn), (rows, cols) = layer.block, _shape(layer)
    shape = (-(-rows // bm), -(-cols // bn))
    if isinstance(mask, Pattern):
        if (mask.rows, mask.cols, mask.block) != (rows, cols, layer.block):
            expected = f"a pattern of {rows} x {cols} in blocks of {bm} x {bn}"
            raise Error(_OP, expected, repr(mask), "make it for this layer's weight")
        mask = mask.mask
    if (
        not isinstance(mask, Tensor)
        or mask.dtype not in (torch.bool, torch.uint8)
        or tuple(mask.shape) != shape
    ):
        got = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise Error(
            _OP,
            f"mask bool {list(shape)}, one entry for each block",
            got,
            "set True where a block stays or grows",
        )
    return mask.to(layer.packed_index.device, non_blocking=True)


def _require_grown(layer: IndexedModule, grown: Tensor) -> None:
    shape = _shape(layer)
    if not isinstance(grown, Tensor) or tuple(grown.shape) != shape:
        got = str(list(grown.shape)) if isinstance(grown, Tensor) else type(grown).__name__
        expected = f"grown {list(shape)}, a whole weight whose new blocks are taken"
        raise Error(_OP, expected, got, "leave it out: new blocks start at zero")
    if grown.device != layer.values.device:
        raise Error(_OP, f"grown on {layer.values.device}", str(grown.device), "move it with .to()")

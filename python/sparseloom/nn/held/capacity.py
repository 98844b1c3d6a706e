"""Capacity: room for more blocks than a layer stores, so that their number may change on the device.

``values``, its gradient and its moments have ``capacity`` slots. The first ``crow[-1]`` slots are stored
blocks; the others, the free slots, stay zero: no product reads them, and their gradient is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ... import ops
from ... import pattern as patterns
from ..._checks import as_optimizers, share
from ...errors import Error
from ...ops.index import SEGMENT
from ...pattern import Pattern
from . import moments, state, topology

if TYPE_CHECKING:
    from .indexed import IndexedModule

Layer = TypeVar("Layer", bound="IndexedModule")
_OP = "reserve_"


def reserve(layer: Layer, capacity: float, optimizer: Optimizer | Sequence[Optimizer] | None = None) -> Layer:
    """See BlockSparseLinear.reserve_."""
    optimizers = _with_known(layer, as_optimizers(_OP, optimizer))
    if layer._cut is not None:
        remedy = "leave the number of blocks as it is"
        raise Error(_OP, "a whole layer", "a part that tensor parallelism has cut", remedy)
    pattern = layer.pattern
    slots = slots_of(_OP, pattern, capacity)
    if not layer.packed_index.is_meta:
        topology.require_changeable(layer)
    before = layer.values.shape[0]
    _resize(layer, optimizers, before, lambda tensor: _with_room(tensor[: pattern.blocks], slots))
    layer._capacity, layer._digest = slots, ops.MOVING
    device = layer.packed_index.device
    del layer._buffers[state.INDEX_BUFFER]
    layer._set_index(pattern, device)
    if layer._copy is not None:
        layer._copy.end()
    return layer


def count(layer: IndexedModule, blocks: int, device: torch.device) -> None:
    """Gives a layer the buffers that changes of topology write to, on the device of its index."""
    for name, number in (("requested_blocks", blocks), (state.FLAGS, 0)):
        tensor = torch.full((1,), number, dtype=torch.int32, device=device)
        layer.register_buffer(name, tensor, persistent=False)


def slots_of(op: str, pattern: Pattern, capacity: float) -> int:
    """Returns the number of blocks of a capacity in [0, 1]. Raises Error if the pattern has more blocks."""
    rows, cols = pattern.rows, pattern.cols
    if not 0 <= share(op, capacity) <= 1:
        raise Error(op, "a capacity in [0, 1], the share of blocks", repr(capacity), "pass capacity=0.5")
    slots = patterns.block_count(op, rows, cols, pattern.block, capacity)
    if slots < pattern.blocks:
        got = f"{capacity}, which is {slots} blocks"
        raise Error(
            op,
            f"a capacity for the {pattern.blocks} blocks that exist",
            got,
            "reserve more, up to reserve_(1.0)",
        )
    return slots


def release(
    layer: IndexedModule, pattern: Pattern, optimizer: Optimizer | Sequence[Optimizer] | None
) -> None:
    """Removes the free slots. The caller sets the digest."""
    optimizers, slots = as_optimizers("fix_topology_", optimizer), layer._capacity
    optimizers = _with_known(layer, optimizers)
    assert slots is not None
    _resize(layer, optimizers, slots, lambda tensor: tensor[: pattern.blocks].clone())
    layer._capacity, layer._digest = None, ops.UNKNOWN
    del layer._buffers[state.FLAGS], layer._buffers[state.INDEX_BUFFER]
    layer._set_index(pattern, layer.values.device)


def with_slots(index: ops.Index, slots: int) -> ops.Index:
    """Returns an index, on the CPU, with room for ``slots`` blocks. Raises Error where it has more."""
    if index.blocks > slots:
        raise Error(
            "capacity", f"at most {slots} blocks, the capacity", f"{index.blocks}", "reserve_ more first"
        )
    crow, _, ccol, *_ = index.lists()
    sizes = [len(crow), slots, len(ccol), slots]
    row_start = sum(-(-size // SEGMENT) * SEGMENT for size in sizes)
    packed = torch.zeros(row_start + slots, dtype=torch.int32, device="cpu")
    roomy = index._replace(packed=packed, blocks=slots, digest=ops.MOVING)
    for to, source in zip(roomy.lists(), index.lists(), strict=True):
        to[: len(source)] = source
    return roomy


def leave_out_free(layer: IndexedModule, destination: dict[str, Any], prefix: str) -> None:
    """Shortens the entries of a state dict to the blocks that are stored. The values stay in the Parameter's
    memory, so that averages may write to them."""
    count = state.stored(layer)
    destination[prefix + "col"] = destination[prefix + "col"][:count].clone()
    values = destination.get(prefix + "values")
    if isinstance(values, Tensor):
        values = values[:count]
        # A slice has the storage of all slots, which safetensors refuses and torch.save writes whole.
        alone = type(values) is Tensor and values.device.type in ("cpu", "cuda") and not values.requires_grad
        destination[prefix + "values"] = torch.utils.dlpack.from_dlpack(values) if alone else values


def fill_free(layer: IndexedModule, tensors: dict[str, Any], prefix: str) -> None:
    """Adds free slots to the values of a state dict. Raises Error where they are too many."""
    values, slots = tensors[prefix + "values"], layer._capacity
    assert slots is not None
    if len(values) > slots:
        got = f"{len(values)}"
        raise Error("load", f"at most {slots} blocks, the capacity of the layer", got, "reserve_ more first")
    tensors[prefix + "values"] = _with_room(values, slots)


def _with_known(layer: IndexedModule, optimizers: list[Optimizer]) -> list[Optimizer]:
    """Returns the given optimizers and all others that hold state of the layer: with state of the old size, a
    fused step would access memory past its end."""
    return [*optimizers, *(each for each in moments.holding(layer) if each not in optimizers)]


def _with_room(tensor: Tensor, slots: int) -> Tensor:
    padded = tensor.new_zeros((slots, *tensor.shape[1:]))
    padded[: len(tensor)] = tensor.detach()
    return padded


def _resize(
    layer: IndexedModule,
    optimizers: Sequence[Optimizer],
    before: int,
    resized: Callable[[Tensor], Tensor],
) -> None:
    """Resizes values, gradient and optimizer state in new memory; the Parameter stays the same object, which
    optimizers hold. All of it is made first: too little memory leaves the layer as it was."""
    values = layer.values
    main_grad = getattr(values, "main_grad", None)
    data, grad = resized(values.data), None if values.grad is None else resized(values.grad)
    new_main_grad = resized(main_grad) if isinstance(main_grad, Tensor) else None
    states = [optimizer.state.get(values, {}) for optimizer in optimizers]
    new_states = [
        {
            key: resized(value)
            for key, value in each.items()
            if isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == before
        }
        for each in states
    ]
    values.grad = None  # torch refuses a gradient of another shape meanwhile
    values.data = data
    if grad is not None:
        values.grad = grad
    if new_main_grad is not None:
        values.main_grad = new_main_grad  # type: ignore[attr-defined]
    for each, made in zip(states, new_states, strict=True):
        each.update(made)

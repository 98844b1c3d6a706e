"""Whole tensors from sharded ones and back, for layers, files and state dicts. Nothing here imports DTensor
before a program has one: that takes two seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...errors import Error


def is_sharded(entry: object) -> TypeGuard[Any]:
    """Returns whether an entry of a state dict is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(entry, module.DTensor)


def local(tensor: Any) -> Tensor:
    """Returns this rank's part of a DTensor, any other tensor as it is; differentiable."""
    # asked by attribute, which torch.compile traces
    own: Tensor = tensor.to_local() if hasattr(tensor, "placements") else tensor
    return own


def require_whole(op: str, values: Tensor) -> None:
    """Raises Error for a DTensor."""
    if is_sharded(values):
        remedy = "save the model on all ranks, and load the file into a whole one"
        raise Error(op, "whole values", "some that are sharded as a DTensor", remedy)


def parts_of(entry: Any, whole: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Returns (what this rank holds of the DTensor, the same part of a whole tensor), piece by piece."""
    pieces = getattr(entry, "pieces", None)  # of ShardedRows
    if pieces is not None:
        return [(piece, whole[row : row + len(piece)]) for row, piece in pieces().items()]
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, begins = compute_local_shape_and_global_offset(entry.shape, entry.device_mesh, entry.placements)
    part = tuple(slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True))
    return [(entry.to_local(), whole[part])]


def take_(entry: Any, whole: Tensor) -> None:
    """Fills this rank's part of a DTensor from a whole tensor, without communication."""
    with torch.no_grad():
        for own, part in parts_of(entry, whole):
            own.copy_(part)


def as_entry(entry: Any, whole: Tensor) -> Tensor:
    """Returns a whole tensor as load_state_dict takes it in the place of an entry."""
    if not is_sharded(entry) or hasattr(entry, "pieces"):  # a cut layer takes whole tensors
        return whole
    made = torch.empty_like(entry)
    take_(made, whole)
    return made


def gathered(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns a model's state dict with whole tensors, on the CPU, on rank 0; others get tensors without
    elements. All ranks have to call this. Names of one Parameter get one tensor."""
    parameters = {name: id(each) for name, each in model.named_parameters(remove_duplicate=False)}
    found: dict[int, Tensor] = {}
    made = dict(state)
    for name, entry in state.items():
        if is_sharded(entry):
            key = parameters.get(name, id(entry))
            if key not in found:
                whole = entry.full_tensor()
                found[key] = whole.cpu() if dist.get_rank() == 0 else whole.new_empty(0)
            made[name] = found[key]
    return made


def on_first_rank(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function on rank 0, while all ranks wait for its end and raise what it raised."""
    outcome: list[Exception | None] = [None]
    if dist.get_rank() == 0:
        try:
            function(*arguments)
        except Exception as error:
            outcome = [error]
    dist.broadcast_object_list(outcome, src=0)
    if outcome[0] is not None:
        raise outcome[0]

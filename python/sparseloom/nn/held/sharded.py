"""Converts between whole and sharded tensors, for layers, files and state dicts. Nothing here imports DTensor
before the program has one: the import takes two seconds."""

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
    # we test for the attribute because torch.compile can trace that
    part: Tensor = tensor.to_local() if hasattr(tensor, "placements") else tensor
    return part


def require_whole(op: str, values: Tensor) -> None:
    """Raises Error for a DTensor."""
    if is_sharded(values):
        remedy = "save the model on all ranks, and load the file into a whole one"
        raise Error(op, "whole values", "some that are sharded as a DTensor", remedy)


def parts_of(entry: Any, whole: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Returns pairs (this rank's rows of the DTensor, the same rows of the whole tensor)."""
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
    """Returns a whole tensor in the form in which load_state_dict takes it for this entry."""
    if not is_sharded(entry) or hasattr(entry, "pieces"):  # a cut layer takes whole tensors
        return whole
    sharded = torch.empty_like(entry)
    take_(sharded, whole)
    return sharded


def gathered(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns a model's state dict with whole tensors, on the CPU, on rank 0; others get tensors without
    elements. All ranks have to call this. Names of one Parameter get one tensor."""
    parameters = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    whole_of: dict[int, Tensor] = {}
    gathered_state = dict(state)
    for name, entry in state.items():
        if is_sharded(entry):
            key = parameters.get(name, id(entry))
            if key not in whole_of:
                whole = entry.full_tensor()
                whole_of[key] = whole.cpu() if dist.get_rank() == 0 else whole.new_empty(0)
            gathered_state[name] = whole_of[key]
    return gathered_state


def on_first_rank(function: Callable[..., None], *arguments: Any) -> None:
    """Calls a function on rank 0. All ranks wait for it, and raise the exception that it raised."""
    outcome: list[Exception | None] = [None]
    if dist.get_rank() == 0:
        try:
            function(*arguments)
        except Exception as error:
            outcome = [error]
    dist.broadcast_object_list(outcome, src=0)
    if outcome[0] is not None:
        raise outcome[0]

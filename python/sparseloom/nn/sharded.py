"""Whole tensors from sharded ones and back, for layers, files and state dicts. Nothing here imports DTensor
before a program has one: that takes two seconds."""

from __future__ import annotations

import sys
from typing import Any, TypeGuard

import torch
from torch import Tensor


def is_sharded(entry: object) -> TypeGuard[Any]:
    """Returns whether an entry of a state dict is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(entry, module.DTensor)


def local(tensor: Any) -> Tensor:
    """Returns this rank's part of a DTensor, any other tensor as it is; differentiable."""
    # asked by attribute, which torch.compile traces
    own: Tensor = tensor.to_local() if hasattr(tensor, "placements") else tensor
    return own


def whole_of(entry: Any) -> Tensor:
    """Returns a whole tensor: of a DTensor on every rank of its mesh, all of which have to call this."""
    whole: Tensor = entry.full_tensor() if is_sharded(entry) else entry
    return whole


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

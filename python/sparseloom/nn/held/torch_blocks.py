"""The index and the values of torch's block tensors, by block rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...layouts.torchs import places_of, require_consistent, values_of
from . import state


def blocks_of(op: str, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns crow and col, int32 on the CPU, and the values of a BSR or BSC tensor in the order of block
    rows: its own memory where they lie so and are contiguous, otherwise copied. Raises Error where they do
    not fit."""
    require_consistent(op, weight)
    values = values_of(weight)
    if weight.layout == torch.sparse_bsr:
        crow = state.int32_index(op, "crow_indices", weight.crow_indices())
        col = state.int32_index(op, "col_indices", weight.col_indices())
        steps = crow.diff()
        if not len(crow) or crow[0] != 0 or crow[-1] != len(col) or bool((steps < 0).any()):
            return crow, col, values  # invalid: Pattern.from_index raises the Error
        row = torch.arange(len(steps), device="cpu").repeat_interleave(steps.long())
        rows = len(steps)
    else:
        state.int32_index(op, "ccol_indices", weight.ccol_indices())
        state.int32_index(op, "row_indices", weight.row_indices())
        row, col = (tensor.cpu() for tensor in places_of(weight))
        rows = -(-weight.shape[0] // max(1, values.shape[1]))
        crow = torch.searchsorted(row.sort().values, torch.arange(rows + 1, device="cpu"), out_int32=True)
    position = row.long() * (1 + int(col.max()) if len(col) else 1) + col
    if bool((position[1:] < position[:-1]).any()):
        order = position.argsort(stable=True)
        col, values = col[order], values[order.to(values.device)]
    return crow, col.to(torch.int32).contiguous(), values.contiguous()


def trains(tensor: Tensor) -> bool:
    """Returns whether a Parameter made of this tensor requires a gradient: as the tensor does if it is a
    Parameter, else True."""
    return tensor.requires_grad or not isinstance(tensor, nn.Parameter)

"""Reads the entries of pytorch_block_sparse's layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import Error
from . import state

_NAMES = ("data", "cols_a", "row_start_ends_a", "rows_b", "col_start_ends_b", "blocks", "block_mask")


class Blocks(NamedTuple):
    """A weight in blocks: values [blocks, side, side] in row order, crow, col, and the side of a block."""

    values: Tensor
    crow: Tensor
    col: Tensor
    side: int


def layers_in(tensors: Mapping[str, object]) -> list[str]:
    """Returns the names of the layers whose entries these are."""
    end = "weight.cols_a"
    return [
        name.removesuffix(end).removesuffix(".")
        for name in tensors
        if name.endswith(end) and f"{name.removesuffix('cols_a')}data" in tensors
    ]


def blocks_of(tensors: dict[str, Any], prefix: str) -> Blocks:
    """Takes the entries under prefix: data [blocks * side, side], each block transposed; cols_a [blocks, 2] =
    (block column, place of the block in data), in row order; row_start_ends_a [block rows + 1]; and the index
    by block columns, which is derived. Raises Error for entries that contradict each other.

    The places are 0, 1, 2, ... in a new layer, and any permutation after block_replace, which its
    SparseOptimizer calls.
    """
    entries = {name: tensors.pop(f"{prefix}weight.{name}", None) for name in _NAMES}
    data, cols, crow = (entries[name] for name in _NAMES[:3])
    missing = ", ".join(name for name in _NAMES[:3] if not isinstance(entries[name], Tensor))
    if missing or data.dim() != 2 or cols.dim() != 2 or cols.shape[1] != 2:
        got = f"no {missing}" if missing else f"data {list(data.shape)}, cols_a {list(cols.shape)}"
        raise Error(
            "load",
            "weight.data, weight.cols_a and weight.row_start_ends_a",
            got,
            "load the whole state_dict of the layer",
        )
    side = data.shape[1]
    if side == 0 or data.shape[0] % side:
        got, remedy = f"{prefix}weight.data {list(data.shape)}", "take an undamaged checkpoint"
        raise Error("load", "blocks of data one below the other", got, remedy)
    blocks = data.detach().unflatten(0, (-1, side))
    column, place = (state.int32_index("load", f"cols_a[:, {i}]", cols[:, i]) for i in (0, 1))
    if not torch.equal(place.sort().values, torch.arange(len(blocks), dtype=torch.int32, device="cpu")):
        counted = place.unique(return_counts=True)
        repeated = ", ".join(str(int(number)) for number in counted[0][counted[1] > 1][:5])
        got = f"{repeated} more than once" if repeated else f"{len(place)} places from {_ends(place)}"
        raise Error(
            "load",
            f"cols_a[:, 1] to name each of {len(blocks)} blocks once",
            got,
            "take an undamaged checkpoint",
        )
    values = blocks[place.to(data.device).long()].transpose(1, 2).contiguous()
    return Blocks(values, state.int32_index("load", "row_start_ends_a", crow), column, side)


def _ends(numbers: Tensor) -> str:
    return f"{int(numbers.min())} to {int(numbers.max())}" if len(numbers) else "none"

"""Weights of tiles of drawn kinds, and what they store, by loops."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from sparseloom.layouts import Tiles
from sparseloom.layouts.tiles import ABSENT, DENSE, HALF

#: Kinds of tiles for a weight [out, in] of sides 64, or 128 where a shape says so.
KINDS = {
    "mixed": (200, 300, 64),
    "wide": (128, 384, 128),
    "ragged": (70, 65, 64),
    "dense": (128, 64, 64),
    "half": (128, 192, 64),
    "absent": (64, 64, 64),
}


def kinds_of(name: str) -> Tensor:
    rows, cols, side = KINDS[name]
    grid = -(-rows // side), -(-cols // side)
    if name in ("dense", "half", "absent"):
        return torch.full(grid, {"dense": DENSE, "half": HALF, "absent": ABSENT}[name])
    kinds = torch.randint(0, 3, grid, generator=torch.Generator().manual_seed(1))
    kinds.view(-1)[:2] = torch.tensor([HALF, DENSE])
    return kinds


def made(name: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tiles]:
    rows, cols, side = KINDS[name]
    weight = torch.randn(rows, cols, generator=torch.Generator().manual_seed(0)).to(dtype)
    return weight, Tiles.from_kinds(weight, kinds_of(name), side)


def twin_mask(weight: Tensor, kinds: Tensor, side: int) -> Tensor:
    """What is stored, by loops over tiles and groups."""
    mask = torch.zeros(weight.shape, dtype=torch.bool)
    for (i, row), j in product(enumerate(kinds.tolist()), range(kinds.shape[1])):
        rows, cols = slice(i * side, (i + 1) * side), slice(j * side, (j + 1) * side)
        if row[j] == DENSE:
            mask[rows, cols] = True
        for left in range(j * side, min((j + 1) * side, weight.shape[1]), 4) if row[j] == HALF else ():
            group = weight[rows, left : left + 4].float().abs()
            largest = group.argsort(dim=1, descending=True, stable=True)[:, :2]
            mask[rows, left : left + 4] = torch.zeros_like(group, dtype=torch.bool).scatter(1, largest, True)
    return mask

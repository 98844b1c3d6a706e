"""What measurements of 2:4 weights share: their cells, and weights whose stored places chance draws."""

from __future__ import annotations

import torch
from torch import Tensor

from sparseloom.testing import Case

from .cells import DTYPES, Cell

#: A cell of a 2:4 weight has this pattern, and as its block a group: two of four elements are stored.
PATTERN, GROUP, DENSITY = "semi24", (1, 4), 0.5
#: Output features of one tile of a check.
TILE = (32, 32)
_PAIRS = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 1], [0, 0, 1, 1]])


def cell(direction: str, dtype: str, m: int, k: int, n: int) -> Cell:
    """Returns the cell of m tokens and a 2:4 weight [n, k]."""
    return Cell(direction, dtype, m, k, n, GROUP, DENSITY, PATTERN)


def case_of(of: Cell, device: str = "cpu") -> Case:
    """Returns the case whose dense product and tolerance the cell has; its pattern of blocks means
    nothing."""
    return Case("bench", of.direction, DTYPES[of.dtype], TILE, of.m, of.k, of.n, device=device)


def places(rows: int, cols: int, generator: torch.Generator) -> Tensor:
    """Draws which two of each group of four are stored: bool [rows, cols]."""
    pairs = _PAIRS.bool().to(generator.device)
    drawn = torch.randint(6, (rows, -(-cols // 4)), generator=generator, device=generator.device)
    return pairs[drawn].flatten(1)[:, :cols]


def draw(
    shape: tuple[int, int], dtype: torch.dtype, generator: torch.Generator, kept: Tensor | None = None
) -> Tensor:
    """Draws a normal matrix; where ``kept`` says so alone, zero elsewhere. Integers reach three
    standard deviations."""
    normal = torch.randn(shape, generator=generator, device=generator.device)
    if dtype == torch.int8:
        normal = normal.mul_(42).round_().clamp_(-127, 127)
    return (normal if kept is None else normal.masked_fill_(~kept, 0)).to(dtype)

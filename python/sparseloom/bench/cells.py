"""The committed lists of what is measured. A suite is a list of cells; a cell is one product and its pattern."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import Error
from ..testing import Case

DIRECTIONS = ("forward", "dx", "dw")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True)
class Cell:
    """One point of a suite: the weight is [n, k], x is [m, k]."""

    direction: str
    dtype: str
    m: int
    k: int
    n: int
    block: tuple[int, int]
    density: float
    pattern: str = "balanced"

    def __str__(self) -> str:
        bm, bn = self.block
        return f"{self.direction}-{self.dtype}-{self.m}x{self.k}x{self.n}-{bm}x{bn}-d{self.density:g}-{self.pattern}"

    def case(self) -> Case:
        """The same as a row that testing can draw inputs for and check."""
        shape = (self.block, self.m, self.k, self.n, self.pattern, self.density)
        return Case("bench", self.direction, DTYPES[self.dtype], *shape)


def cell_of(record: dict[str, Any]) -> Cell:
    """The cell that a record of a results file was measured on."""
    return Cell(
        **{key: record[key] for key in ("direction", "dtype", "m", "k", "n", "density", "pattern")}, block=tuple(record["block"])
    )


def flagship() -> list[Cell]:
    """The shape that the promises are about: an MLP-sized square layer at 1024 tokens, twice as large as any L2."""
    return [
        Cell(direction, dtype, 1024, 4096, 4096, (block, block), density)
        for dtype in ("f32", "bf16")
        for direction in DIRECTIONS
        for block in (32, 64)
        for density in (0.05, 0.1, 0.2, 0.5)
    ]


def plan_cells() -> list[Cell]:
    """Where the plan's choice is put to the test: few and many tokens, small and large layers, densities up to where dense wins."""
    cells = [
        Cell(direction, "f32", m, k, n, (block, block), density)
        for m, k, n in ((16, 1024, 1024), (256, 768, 768), (512, 256, 1024), (1024, 1024, 1024))
        for direction in DIRECTIONS
        for block, density in ((32, 0.1), (16, 0.5))
    ]
    cells += [
        Cell(direction, "bf16", m, 1024, 1024, (block, block), density)
        for m in (16, 512)
        for direction in DIRECTIONS
        for block, density in ((32, 0.1), (64, 0.5))
    ]
    cells += [
        Cell("forward", dtype, m, 2048, 2048, (32, 32), density)
        for dtype in ("f32", "bf16", "f16")
        for m in (1, 8)
        for density in (0.1, 0.3)
    ]
    cells += [Cell("forward", "f32", 256, 1024, 1024, (32, 32), density, "random") for density in (0.02, 0.3, 0.8, 0.95)]
    cells += [Cell(direction, "f16", 256, 768, 768, (32, 32), 0.25) for direction in DIRECTIONS]
    cells += [Cell("forward", "f32", 256, 1024, 1024, block, 0.25) for block in ((8, 8), (8, 64), (64, 16), (128, 128))]
    return cells


SUITES = {"cpu": flagship, "plan": plan_cells}


def select(suite: str, only: Iterable[str]) -> list[Cell]:
    """The suite's cells whose name holds every text of `only`. Raises Error on an unknown suite, or when none is left."""
    if suite not in SUITES:
        raise Error("bench", f"a suite of {', '.join(SUITES)}", repr(suite), "name one of them")
    wanted = list(only)
    cells = [cell for cell in SUITES[suite]() if all(text in str(cell) for text in wanted)]
    if not cells:
        raise Error("bench", f"--only to match a cell of {suite}", " and ".join(wanted), "see --list for the names")
    return cells

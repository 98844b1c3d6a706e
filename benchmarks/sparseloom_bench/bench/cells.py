"""Lists what the suites measure. A suite is a list of cells; a cell is one product with its pattern."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from sparseloom.errors import Error
from sparseloom.testing import Case

from .skewed import KINDS, STRUCTURED, TRAINED, SkewedCase

DIRECTIONS = ("forward", "dx", "dw")
#: The dtypes of cells. tf32: operands are fp32, and torch's own switch lets a GPU round them to TF32. fp8:
#: e4m3 with one scale per tensor, bf16 results and use_fast_accum; fp8_promoted is the same without
#: use_fast_accum. int8: one scale per token and per output feature, bf16 results.
DTYPES = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "tf32": torch.float32,
    "fp8": torch.float8_e4m3fn,
    "fp8_promoted": torch.float8_e4m3fn,
    "int8": torch.int8,
}
#: What stands for a kernel where torch multiplies with a dense copy of the weight, which a layer may keep.
DENSE_COPY = "dense_copy"


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
    rotated: bool = False  # CPU: calls take turns over so many weights that none of them is still in a cache

    def __str__(self) -> str:
        bm, bn = self.block
        shape = f"{self.m}x{self.k}x{self.n}-{bm}x{bn}-d{self.density:g}-{self.pattern}"
        return f"{self.direction}-{self.dtype}-{shape}" + ("-rotated" if self.rotated else "")

    @property
    def tf32(self) -> bool:
        return self.dtype == "tf32"

    def case(self, device: str = "cpu") -> Case:
        """Returns the cell as a case of `sparseloom.testing`, which can draw its inputs and check its
        results."""
        shape = (self.block, self.m, self.k, self.n, self.pattern, self.density)
        made = SkewedCase if self.pattern in (*KINDS, *STRUCTURED, TRAINED) else Case
        return made("bench", self.direction, DTYPES[self.dtype], *shape, device=device, tf32=self.tf32)


def cell_of(record: dict[str, Any]) -> Cell:
    """Returns the cell that a record of a results file was measured on."""
    return Cell(
        **{key: record[key] for key in ("direction", "dtype", "m", "k", "n", "density", "pattern")},
        block=tuple(record["block"]),
        rotated=record.get("rotated", False),
    )


def flagship() -> list[Cell]:
    """Returns the cells that most CPU targets are about, on a square MLP layer of 4096 x 4096.

    They are: 1024 tokens forward at every density and block; dx and dw at blocks of 32 and 64; skewed block
    rows; int8 beside bf16; and 1 to 16 tokens with weights too large for every cache.
    """

    def cells(
        direction: str, dtypes: str, blocks: tuple[int, ...], densities: tuple[float, ...]
    ) -> list[Cell]:
        return [
            Cell(direction, dtype, 1024, 4096, 4096, (block, block), density)
            for dtype in dtypes.split()
            for block in blocks
            for density in densities
        ]

    densities = (0.05, 0.1, 0.2, 0.5, 0.8)
    found = cells("forward", "f32 bf16", (8, 16, 32, 64, 128), densities)
    # Only one block: torch's dense f16 product takes seven times as long as its fp32 one.
    found += cells("forward", "f16", (32,), densities)
    found += [
        cell for direction in ("dx", "dw") for cell in cells(direction, "f32 bf16", (32, 64), densities[:-1])
    ]
    found += cells("forward", "int8", (16, 32, 64, 128), densities[2:])
    found += [
        Cell("forward", dtype, 1024, 4096, 4096, (32, 32), density, kind)
        for dtype in ("f32", "bf16")
        for kind in KINDS
        for density in (0.05, 0.2)
    ]
    return found + [
        Cell("forward", dtype, m, 4096, 4096, (32, 32), density, rotated=True)
        for dtype in ("f32", "bf16", "f16")
        for m in (1, 4, 8, 16)
        for density in (0.05, 0.1, 0.2, 0.5)
    ]


def plan_cells() -> list[Cell]:
    """Returns the cells that test the plan's choice: small and large batches, small and large layers,
    densities up to where dense is faster."""
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
    cells += [
        Cell("forward", "f32", 256, 1024, 1024, (32, 32), density, "random")
        for density in (0.02, 0.3, 0.8, 0.95)
    ]
    cells += [Cell(direction, "f16", 256, 768, 768, (32, 32), 0.25) for direction in DIRECTIONS]
    cells += [
        Cell("forward", "f32", 256, 1024, 1024, block, 0.25)
        for block in ((8, 8), (8, 64), (64, 16), (128, 128))
    ]
    return cells


def gpu() -> list[Cell]:
    from .gpu.groups import gpu_cells  # imported here: that module imports Cell from this one

    return gpu_cells()


SUITES = {"cpu": flagship, "plan": plan_cells, "gpu": gpu}


def select(suite: str, only: Iterable[str]) -> list[Cell]:
    """Returns the suite's cells whose names contain every text of `only`.

    Raises Error when the suite is unknown or no cell is left.
    """
    if suite not in SUITES:
        raise Error(
            "bench",
            f"a suite of {', '.join(SUITES)}, models",
            repr(suite),
            "name one of them first, or sweep",
        )
    wanted = list(only)
    cells = [cell for cell in SUITES[suite]() if all(text in str(cell) for text in wanted)]
    if not cells:
        raise Error(
            "bench", f"--only to match a cell of {suite}", " and ".join(wanted), "see --list for the names"
        )
    return cells

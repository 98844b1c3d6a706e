"""The committed lists of what is measured. A suite is a list of cells; a cell is one product and its pattern."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import Error
from ..testing import Case
from .skewed import KINDS, SkewedCase

DIRECTIONS = ("forward", "dx", "dw")
#: tf32: fp32 operands that a GPU may round to TF32, under torch's own switch.
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32}
#: Tokens x in x out of the GPU suite: a transformer's square and widening layers, decode steps, ViT-B's MLP at 256 images.
GPU_SHAPES = (
    (8192, 4096, 4096),
    (8192, 4096, 16384),
    (32, 12288, 12288),
    (50432, 768, 3072),
    (50432, 3072, 768),
    (256, 4096, 4096),
    (16, 4096, 16384),
)
GPU_BLOCKS = (16, 32, 64, 128)
SPARSE, DENSER = (0.05, 0.1, 0.2), (0.3, 0.5, 0.8)


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
    rotated: bool = False  # CPU: as many weights in turn as it takes to find none of them in a cache

    def __str__(self) -> str:
        bm, bn = self.block
        shape = f"{self.m}x{self.k}x{self.n}-{bm}x{bn}-d{self.density:g}-{self.pattern}"
        return f"{self.direction}-{self.dtype}-{shape}" + ("-rotated" if self.rotated else "")

    @property
    def tf32(self) -> bool:
        return self.dtype == "tf32"

    def case(self, device: str = "cpu") -> Case:
        """The same as a row that testing can draw inputs for and check."""
        shape = (self.block, self.m, self.k, self.n, self.pattern, self.density)
        made = SkewedCase if self.pattern in KINDS else Case
        return made("bench", self.direction, DTYPES[self.dtype], *shape, device=device, tf32=self.tf32)


def cell_of(record: dict[str, Any]) -> Cell:
    """The cell that a record of a results file was measured on."""
    return Cell(
        **{key: record[key] for key in ("direction", "dtype", "m", "k", "n", "density", "pattern")},
        block=tuple(record["block"]),
        rotated=record.get("rotated", False),
    )


def flagship() -> list[Cell]:
    """The shape that the promises are about, a square MLP layer: at 1024 tokens forward at every density and block, dx and dw
    at blocks of 32 and 64, skewed rows; and 1 to 16 tokens with weights beyond every cache."""

    def cells(direction: str, dtypes: str, blocks: tuple[int, ...], densities: tuple[float, ...]) -> list[Cell]:
        return [
            Cell(direction, dtype, 1024, 4096, 4096, (block, block), density)
            for dtype in dtypes.split()
            for block in blocks
            for density in densities
        ]

    densities = (0.05, 0.1, 0.2, 0.5, 0.8)
    found = cells("forward", "f32 bf16", (8, 16, 32, 64, 128), densities)
    found += cells("forward", "f16", (32,), densities)  # its dense product takes seven times as long as fp32's
    found += [cell for direction in ("dx", "dw") for cell in cells(direction, "f32 bf16", (32, 64), densities[:-1])]
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


def even_density(density: float, k: int, block_cols: int) -> float:
    """The nearest density that gives every block row the same number of blocks, at least one: a peer's format needs that, and
    published tables are of such patterns. On few block columns several densities fall together."""
    grid = -(-k // block_cols)
    return max(1, round(density * grid)) / grid


def gpu_cell(direction: str, dtype: str, shape: tuple[int, int, int], block: tuple[int, int], density: float) -> Cell:
    """`density` is nominal: the cell's own is the even one next to it."""
    return Cell(direction, dtype, *shape, block, even_density(density, shape[1], block[1]))


def gpu_cells() -> list[Cell]:
    """bf16 forward on every shape, what training adds on the first, and the other dtypes and block shapes there."""
    first = GPU_SHAPES[0]
    cells = [
        gpu_cell("forward", "bf16", shape, (block, block), density)
        for shape in GPU_SHAPES
        for block in GPU_BLOCKS
        for density in ((*SPARSE, *DENSER) if shape == first else (*SPARSE, 0.5))
    ]
    cells += [
        gpu_cell(direction, "bf16", first, (block, block), density)
        for direction in ("dx", "dw")
        for block in GPU_BLOCKS
        for density in (*SPARSE, 0.5)
    ]
    cells += [
        gpu_cell("forward", dtype, first, (block, block), density)
        for dtype in ("f16", "f32", "tf32")
        for block in GPU_BLOCKS
        for density in (0.1, 0.5)
    ]
    cells += [gpu_cell(direction, "bf16", first, block, 0.1) for direction in DIRECTIONS for block in ((8, 8), (16, 64))]
    return list(dict.fromkeys(cells))


SUITES = {"cpu": flagship, "plan": plan_cells, "gpu": gpu_cells}


def select(suite: str, only: Iterable[str]) -> list[Cell]:
    """The suite's cells whose name holds every text of `only`. Raises Error on an unknown suite, or when none is left."""
    if suite not in SUITES:
        raise Error("bench", f"a suite of {', '.join(SUITES)}, models", repr(suite), "name one of them")
    wanted = list(only)
    cells = [cell for cell in SUITES[suite]() if all(text in str(cell) for text in wanted)]
    if not cells:
        raise Error("bench", f"--only to match a cell of {suite}", " and ".join(wanted), "see --list for the names")
    return cells

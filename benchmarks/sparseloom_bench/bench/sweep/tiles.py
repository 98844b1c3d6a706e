"""The sweep's problems of weights of dense, 2:4 and absent tiles (`bench sweep --family tiles`), as a layer
multiplies them: by the kernels of both kinds, or by those of blocks where the device has none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from sparseloom.layouts import Tiles
from sparseloom.layouts.tiles import ABSENT, DENSE, HALF
from sparseloom.testing import Case, TileCheck, check_tiles, dense_product
from sparseloom.testing.tolerance import TILE_TOKENS

from .. import semi24
from ..cells import DTYPES
from ..gpu.operands import DENSE as TORCH
from ..gpu.operands import Call, sets_needed
from .problems import TOKENS, ZOO, Problem

T = TypeVar("T")
PATTERN = "tiles"
SIDES = (64, 128)
#: The kernels of both kinds multiply 16 bits, forward.
SWEPT_DTYPES = ("bf16", "f16")
#: Bytes that are left of W's, and what a 2:4 tile has of a dense one's in 16 bits.
BYTES, HALF_BYTES = (0.1, 0.7), 9 / 16


@dataclass(frozen=True)
class TilesProblem(Problem):
    """A problem of a weight of tiles: ``halves`` of them are 2:4, and the bytes are ``density`` of W's;
    `mask_seed` draws which ones, and the elements of 2:4 tiles."""

    halves: float = 0.0

    def case(self, device: str = "cpu") -> Case:  # type: ignore[override]
        return semi24.case_of(self, device)

    def plan(self, device: str) -> dict[str, Any]:
        return _Weight(self, torch.device("cpu")).plan()

    def bench(self) -> TilesBench:
        return TilesBench(self)

    @property
    def copies(self) -> bool:
        """Whether a layer may multiply with a dense copy: tiles keep none."""
        return False

    def operands(self, device: torch.device, l2_bytes: int) -> TilesOperands:  # type: ignore[override]
        return TilesOperands(self, device, l2_bytes)

    def fields(self) -> dict[str, Any]:
        return super().fields() | {"halves": self.halves}

    @classmethod
    def more(cls, record: dict[str, Any]) -> dict[str, Any]:
        return {"halves": record["halves"]}


def draw(seed: int, index: int) -> TilesProblem:
    """Returns problem `index` of the seed, the same on every machine: of the layers and tokens that blocks
    have, with 30 % of the bytes gone or more."""
    rng = random.Random(f"tiles/{seed}/{index}")

    def pick(choices: Sequence[T]) -> T:
        return choices[int(rng.random() * len(choices))]

    dtype, layer, side = pick(SWEPT_DTYPES), pick(ZOO), pick(SIDES)
    least, most = TOKENS
    tokens = int(least * ((most + 1) / least) ** rng.random())
    left = BYTES[0] + (BYTES[1] - BYTES[0]) * rng.random()
    # As many 2:4 tiles as these bytes have room for, at most, and no more tiles than there are.
    halves = min(left / HALF_BYTES, (1 - left) / (1 - HALF_BYTES)) * rng.random()
    what = "forward", dtype, tokens, layer.k, layer.n, (side, side), round(left, 5), PATTERN
    return TilesProblem(
        *what, False, index, tokens, int(rng.random() * 2**31), layer.models, round(halves, 5)
    )


class _Weight:
    """The random weight of a problem: its layout, values, and W itself."""

    def __init__(self, problem: TilesProblem, device: torch.device) -> None:
        self.problem, self.dtype = problem, DTYPES[problem.dtype]
        self.generator = torch.Generator(device).manual_seed(problem.mask_seed)
        rows, cols, side = problem.n, problem.k, problem.block[0]
        generator = torch.Generator().manual_seed(problem.mask_seed)
        drawn = torch.rand(-(-rows // side), -(-cols // side), generator=generator)
        dense = problem.density - problem.halves * HALF_BYTES
        kinds = torch.where(drawn < dense, DENSE, torch.where(drawn < dense + problem.halves, HALF, ABSENT))
        full = semi24.draw((rows, cols), self.dtype, self.generator)
        layout = Tiles.from_kinds(full, kinds, side=side)
        self.layout = layout.with_tensors(layout.tensors(), layout.derived())  # as a layer keeps it
        self.values = self.layout.pack(full)
        self.weight = self.layout.to_dense(self.values)

    def plan(self) -> dict[str, Any]:
        return self.layout.plan(self.problem.m, "forward", self.dtype, False)

    def product(self, x: Tensor, values: Tensor, kernel: str) -> Tensor:
        """Returns x W^T by a kernel of the plan, with the copies that ragged sizes need."""
        return self.layout.linear_by(x, values, kernel=kernel)


class Copy(NamedTuple):
    """One set of operands, as Reference reads them: x [m, k], no dy, and the values."""

    x: Tensor
    dy: Tensor
    values: Tensor


class TilesOperands:
    """Holds a problem's random operands on a GPU, those of its dense counterpart, and the calls that take
    turns over copies of either; see Operands."""

    fast_accum, scale = False, 1.0

    def __init__(self, problem: TilesProblem, device: torch.device, l2_bytes: int) -> None:
        self.cell, self.case = problem, problem.case(device.type)
        self._of = _Weight(problem, device)
        self.elements, self.weight = int((self._of.weight != 0).sum()), self._of.weight
        x = semi24.draw((problem.m, problem.k), self.case.dtype, self._of.generator)
        none, values = x.new_empty(0), self._of.values
        moved = x.nbytes + problem.m * problem.n * x.itemsize
        others = sets_needed(moved + values.nbytes + self._of.layout.positions.nbytes, l2_bytes) - 1
        self.copies = [Copy(x, none, values)] + [Copy(x.clone(), none, values.clone()) for _ in range(others)]
        # A weight without zeros, as the dense layer that ours replaces has; see Operands.
        full = semi24.draw((problem.n, problem.k), self.case.dtype, self._of.generator)
        others = sets_needed(moved + full.nbytes, l2_bytes) - 1
        self.dense_sets = [(x, none, full)] + [(x.clone(), none, full.clone()) for _ in range(others)]

    def plan(self) -> dict[str, Any]:
        return self._of.plan()

    def calls(self, kernel: str) -> list[Call]:
        """Returns our calls by that kernel, one for each copy."""
        return [partial(self._of.product, own.x, own.values, kernel) for own in self.copies]

    def dense_calls(self) -> dict[str, list[Call]]:
        """Returns the calls of torch's dense product, one for each copy, on weights without zeros."""
        return {TORCH: [partial(self.dense, *own) for own in self.dense_sets]}

    def dense(self, x: Tensor, dy: Tensor, weight: Tensor) -> Tensor:
        return dense_product(self.case, x, dy, weight, None)


class TilesBench:
    """Holds the operands of one problem on the CPU and its exact result, as bench.measure.Bench does."""

    def __init__(self, problem: TilesProblem) -> None:
        self._of, self._case = _Weight(problem, torch.device("cpu")), problem.case()
        self._x = semi24.draw((problem.m, problem.k), self._case.dtype, self._of.generator)
        self.plan = self._of.plan()
        self.stored = float((self._of.weight != 0).double().mean())
        x, weight = self._x.double(), self._of.weight.double()
        self._exact, self._magnitude = x @ weight.t(), x.abs() @ weight.abs().t()

    def sparse(self, kernel: str) -> Tensor:
        return self._of.product(self._x, self._of.values, kernel)

    def dense(self) -> Tensor:
        return dense_product(self._case, self._x, self._x, self._of.weight, None)

    def check(self, kernel: str) -> TileCheck:
        """Checks the kernel's result against fp64, tile by tile."""
        tile = TILE_TOKENS, semi24.TILE[0]
        return check_tiles(self.sparse(kernel), self.dense(), self._exact, self._magnitude, tile)

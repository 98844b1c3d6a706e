"""The sweep's problems of 2:4 weights (`bench sweep --family semi24`), and how the CPU multiplies them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from sparseloom.ops import semi24 as ops_semi24
from sparseloom.testing import Case, TileCheck, check_tiles, dense_product
from sparseloom.testing.tolerance import TILE_TOKENS

from .. import semi24
from ..cells import DENSE_COPY
from ..gpu.semi24_operands import Semi24Operands
from .problems import SWEPT_DTYPES, TOKENS, ZOO, Problem

T = TypeVar("T")
#: dW is none of theirs: packed values do not train.
DIRECTIONS = ("forward", "dx")


@dataclass(frozen=True)
class Semi24Problem(Problem):
    """A problem of a 2:4 weight; `mask_seed` draws which elements are stored."""

    def case(self, device: str = "cpu") -> Case:  # type: ignore[override]
        return semi24.case_of(self, device)

    def plan(self, device: str) -> dict[str, Any]:
        what = self.direction, self.case().dtype, self.m, (self.n, self.k)
        return ops_semi24.plan(*what, False, None, False, device)

    def bench(self) -> Semi24Bench:
        return Semi24Bench(self)

    @property
    def copies(self) -> bool:
        """Whether a layer may multiply with a dense copy: always, since packed values do not train."""
        return True

    def operands(self, device: torch.device, l2_bytes: int) -> Semi24Operands:
        return Semi24Operands(self, device, l2_bytes, self.mask_seed)


def draw(seed: int, index: int) -> Semi24Problem:
    """Returns problem `index` of the seed, the same on every machine: of the layers, tokens and dtypes that
    blocks have."""
    rng = random.Random(f"semi24/{seed}/{index}")

    def pick(choices: Sequence[T]) -> T:
        return choices[int(rng.random() * len(choices))]

    direction, dtype, layer = pick(DIRECTIONS), pick(SWEPT_DTYPES), pick(ZOO)
    least, most = TOKENS
    tokens = int(least * ((most + 1) / least) ** rng.random())
    what = direction, dtype, tokens, layer.k, layer.n, semi24.GROUP, semi24.DENSITY, semi24.PATTERN
    return Semi24Problem(*what, False, index, tokens, int(rng.random() * 2**31), layer.models)


class Semi24Bench:
    """Holds the operands of one problem on the CPU and its exact result, as bench.measure.Bench does."""

    def __init__(self, problem: Semi24Problem) -> None:
        self._case, self._direction, self._cols = problem.case(), problem.direction, problem.k
        generator = torch.Generator().manual_seed(problem.mask_seed)
        kept = semi24.places(problem.n, problem.k, generator)
        self.stored = float(kept.double().mean())
        weight = semi24.draw((problem.n, problem.k), self._case.dtype, generator, kept)
        features = problem.k if problem.direction == "forward" else problem.n
        self._given = semi24.draw((problem.m, features), self._case.dtype, generator)
        self._values, self._positions = ops_semi24.pack(weight)
        self._weight = weight
        self.plan = problem.plan("cpu")
        given, exact = self._given.double(), weight.double()
        products = (given, exact), (given.abs(), exact.abs())
        self._exact, self._magnitude = (self._product(*operands) for operands in products)

    def _product(self, given: Tensor, weight: Tensor) -> Tensor:
        return dense_product(self._case, given, given, weight, None)

    def sparse(self, kernel: str) -> Tensor:
        """Computes the product by a kernel; "dense_copy" is torch's product with the scattered weight."""
        if kernel == DENSE_COPY:
            return self.dense()
        weight = self._values, self._positions, self._cols
        if self._direction == "dx":
            return ops_semi24.dx(self._given, *weight, kernel)
        return ops_semi24.linear(self._given, *weight, kernel=kernel)

    def dense(self) -> Tensor:
        return self._product(self._given, self._weight)

    def check(self, kernel: str) -> TileCheck:
        """Checks the kernel's result against fp64, tile by tile."""
        tile = TILE_TOKENS, semi24.TILE[0]
        return check_tiles(self.sparse(kernel), self.dense(), self._exact, self._magnitude, tile)

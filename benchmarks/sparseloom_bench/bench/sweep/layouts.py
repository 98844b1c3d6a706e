"""The sweep's problems of layouts of single elements and of groups on the CPU (`bench sweep --family csr`,
bitmap or nmg), as a layer of that layout multiplies them. n:m is none: its products are dense ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from sparseloom.layouts import Layout
from sparseloom.layouts.registry import get
from sparseloom.testing import Case, TileCheck, check_tiles, dense_product
from sparseloom.testing.tolerance import TILE_TOKENS

from .. import semi24
from ..cells import DIRECTIONS, DTYPES
from .by_kernel import product
from .problems import TOKENS, ZOO, Problem

T = TypeVar("T")
#: torch multiplies float16 by a plain loop where the CPU has no instructions for it.
SWEPT_DTYPES = ("bf16", "f32")
#: The densities that a layout is for, as its docstring says; n of m elements for groups.
DENSITIES: Mapping[str, tuple[float, float]] = {"csr": (0.02, 0.3), "bitmap": (0.1, 0.5)}
GROUPS = ((1, 4), (2, 4), (1, 8))
FAMILIES = ("csr", "bitmap", "nmg")


@dataclass(frozen=True)
class LayoutProblem(Problem):
    """A problem of a weight in the layout ``pattern``; `mask_seed` draws its elements. ``block`` is (n, m) of
    groups and (1, 1) of single elements."""

    def case(self, device: str = "cpu") -> Case:  # type: ignore[override]
        return semi24.case_of(self, device)

    def weight(self) -> tuple[Layout, Tensor, Tensor]:
        """Returns the layout, the values and the dense weight."""
        generator = torch.Generator().manual_seed(self.mask_seed)
        full = semi24.draw((self.n, self.k), DTYPES[self.dtype], generator)
        kind, (n, m) = get(self.pattern), self.block
        if self.pattern in DENSITIES:
            layout = kind.from_mask(full, torch.rand(self.n, self.k, generator=generator) < self.density)
        else:
            layout = kind.from_dense(full, n=n, m=m)
        layout = layout.with_tensors(layout.tensors(), layout.derived())  # as a layer keeps it
        values = layout.pack(full)
        return layout, values, layout.to_dense(values)

    def plan(self, device: str) -> dict[str, Any]:
        return self.weight()[0].plan(self.m, self.direction, DTYPES[self.dtype], False)

    def bench(self) -> LayoutBench:
        return LayoutBench(self)

    @property
    def all_candidates(self) -> bool:
        """Whether every candidate is timed: always, since what loses to dense may have been chosen badly."""
        return True

    @property
    def copies(self) -> bool:
        """Whether a layer may multiply with a dense copy: none of these has one."""
        return False


def draw(layout: str, seed: int, index: int) -> LayoutProblem:
    """Returns problem `index` of the seed, the same on every machine: of the layers and tokens that blocks
    have."""
    rng = random.Random(f"{layout}/{seed}/{index}")

    def pick(choices: Sequence[T]) -> T:
        return choices[int(rng.random() * len(choices))]

    direction, dtype, layer, group = pick(DIRECTIONS), pick(SWEPT_DTYPES), pick(ZOO), pick(GROUPS)
    least, most = TOKENS
    tokens = int(least * ((most + 1) / least) ** rng.random())
    if layout in DENSITIES:
        low, high = DENSITIES[layout]
        density, group = round(low * (high / low) ** rng.random(), 5), (1, 1)
    else:
        density = group[0] / group[1]
    what = direction, dtype, tokens, layer.k, layer.n, group, density, layout
    return LayoutProblem(*what, False, index, tokens, int(rng.random() * 2**31), layer.models)


def draw_of(layout: str) -> Callable[[int, int], LayoutProblem]:
    return partial(draw, layout)


class LayoutBench:
    """Holds the operands of one problem and its exact result, as bench.measure.Bench does."""

    def __init__(self, problem: LayoutProblem) -> None:
        self._case, self._direction = problem.case(), problem.direction
        self._layout, self._values, self._weight = problem.weight()
        self._kept = self._layout.to_dense(torch.ones_like(self._values)) != 0  # a value drawn may be 0
        self.stored = float(self._kept.double().mean())
        self.plan = self._layout.plan(problem.m, problem.direction, self._case.dtype, False)
        generator = torch.Generator().manual_seed(problem.mask_seed + 1)
        self._x, self._dy = (
            semi24.draw((problem.m, features), self._case.dtype, generator)
            for features in (problem.k, problem.n)
        )
        exact = self._x.double(), self._dy.double(), self._weight.double()
        self._exact, self._magnitude = (
            self._kept_of(self._product(*operands)) for operands in (exact, [each.abs() for each in exact])
        )

    def _product(self, x: Tensor, dy: Tensor, weight: Tensor) -> Tensor:
        return dense_product(self._case, x, dy, weight, None)

    def _kept_of(self, result: Tensor) -> Tensor:
        return result * self._kept if self._direction == "dw" else result

    def sparse(self, kernel: str) -> Tensor:
        """Computes the product by a candidate; as the layout does, where the plan chose it."""
        if kernel != self.plan["kernel"]:
            return product(self._layout, self._direction, self._x, self._dy, self._values, kernel)
        if self._direction == "dx":
            return self._layout.dx(self._dy, self._values)
        if self._direction == "dw":
            return self._layout.dw(self._dy, self._x)
        return self._layout.linear(self._x, self._values, None)

    def dense(self) -> Tensor:
        return self._product(self._x, self._dy, self._weight)

    def check(self, kernel: str) -> TileCheck:
        """Checks the result against fp64, tile by tile."""
        result = self.sparse(kernel)
        ours = self._layout.to_dense(result) if self._direction == "dw" else result
        tile = semi24.TILE if self._direction == "dw" else (TILE_TOKENS, semi24.TILE[0])
        return check_tiles(ours, self._kept_of(self.dense()), self._exact, self._magnitude, tile)

"""Makes the operands of a 2:4 cell's calls on the GPU, in copies that take turns, as Operands does for
blocks."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sparseloom.ops import semi24 as ops_semi24
from sparseloom.testing import dense_product

from .. import semi24
from ..cells import DENSE_COPY, Cell
from . import fp8
from .operands import DENSE, Call, copied, sets_needed

#: Fewer tokens than these are not multiplied by torch's dense product of 8 bits, which gets as many.
LEAST_ROWS_8_BIT = {"fp8": 16, "fp8_promoted": 16, "int8": 32}


class Semi24Copy(NamedTuple):
    """One set of our operands: x [m, k] or dy [m, n] (the other one is empty), and the packed weight."""

    x: Tensor
    dy: Tensor
    values: Tensor
    positions: Tensor
    metadata: Tensor | None

    def again(self) -> Semi24Copy:
        return Semi24Copy(*(None if each is None else each.clone() for each in self))  # type: ignore[arg-type]


class Semi24Operands:
    """Holds a cell's random operands, those of its dense counterpart, and the calls that take turns over
    copies of either. Cells are forward or dx in f32, f16 or bf16; forward alone in 8 bits, with one scale for
    each operand and bf16 results."""

    def __init__(self, cell: Cell, device: torch.device, l2_bytes: int, seed: int = 0) -> None:
        self.cell, self.case = cell, semi24.case_of(cell, device.type)
        generator = torch.Generator(device).manual_seed(seed)
        draw = partial(semi24.draw, dtype=self.case.dtype, generator=generator)
        kept = semi24.places(cell.n, cell.k, generator)
        self.elements = int(kept.sum())
        self.weight = draw((cell.n, cell.k), kept=kept)
        none = self.weight.new_empty(0)
        x = none if cell.direction == "dx" else draw((cell.m, cell.k))
        dy = none if cell.direction == "forward" else draw((cell.m, cell.n))
        values, positions = ops_semi24.pack(self.weight)

        size = self.case.dtype.itemsize
        self.fast_accum, self._eight = cell.dtype == "fp8", size == 1
        self._scales = fp8.scales(device)
        metadata = ops_semi24.order(positions, cell.k, self._eight)
        first = Semi24Copy(x, dy, values, positions, metadata)
        out = cell.m * (cell.k if cell.direction == "dx" else cell.n) * (2 if self._eight else size)
        moved = x.nbytes + dy.nbytes + out
        packed = values.nbytes + (positions if metadata is None else metadata).nbytes
        others = sets_needed(moved + packed, l2_bytes) - 1
        self.copies = [first] + [first.again() for _ in range(others)]
        # A weight without zeros, as the dense layer that ours replaces has; see Operands.
        full = draw((cell.n, cell.k))
        missing = LEAST_ROWS_8_BIT.get(cell.dtype, 0) - cell.m
        wide = F.pad(x, (0, 0, 0, missing)) if missing > 0 else x
        dense = wide, dy, full
        others = sets_needed(moved + full.nbytes, l2_bytes) - 1
        #: x, dy and weight of the dense product, one for each copy.
        self.dense_sets = [dense] + [(wide.clone(), dy.clone(), full.clone()) for _ in range(others)]

    def plan(self) -> dict[str, Any]:
        """Returns the plan of the cell on the device of its operands."""
        cell, shape, device = self.cell, (self.cell.n, self.cell.k), self.weight.device
        if self._eight:
            how: dict[str, Any] = {"out_dtype": fp8.OUT, "device": device, "use_fast_accum": self.fast_accum}
            return ops_semi24.scaled_plan(self.case.dtype, cell.m, shape, False, None, **how)
        return ops_semi24.plan(cell.direction, self.case.dtype, cell.m, shape, False, None, False, device)

    def calls(self, kernel: str) -> list[Call]:
        """Returns our calls by that kernel, one for each copy. "dense_copy" is torch's product with the
        scattered weight, which a layer may keep; in 8 bits it keeps none."""
        if kernel == DENSE_COPY:
            return copied(self.cell.direction, self.weight, self.dense_sets)
        cols = self.cell.k

        def one(own: Semi24Copy) -> Tensor:
            weight = own.values, own.positions, cols
            if self.cell.direction == "dx":
                return ops_semi24.dx(own.dy, *weight, kernel)
            how: dict[str, Any] = {"kernel": kernel, "metadata": own.metadata}
            if not self._eight:
                return ops_semi24.linear(own.x, *weight, **how)
            how |= {"out_dtype": fp8.OUT, "use_fast_accum": self.fast_accum}
            return ops_semi24.scaled_linear(own.x, *weight, *self._scales, **how)

        return [partial(one, own) for own in self.copies]

    def dense_calls(self) -> dict[str, list[Call]]:
        """Returns the calls of torch's dense product, one for each copy, on weights without zeros: in e4m3
        with the same flag as ours, in int8 without scales."""
        return {DENSE: [partial(self._dense, *own) for own in self.dense_sets]}

    def _dense(self, x: Tensor, dy: Tensor, weight: Tensor) -> Tensor:
        if self.case.dtype == torch.int8:
            return torch._int_mm(x, weight.t())
        if self._eight:
            return fp8.dense(x, weight, self._scales, self.fast_accum)
        return dense_product(self.case, x, dy, weight, None)

    def dense(self, x: Tensor, dy: Tensor, weight: Tensor) -> Tensor:
        """Computes torch's product in the dtype under test, of the operands of a call."""
        if not self._eight:
            return dense_product(self.case, x, dy, weight, None)
        return (F.linear(x.float(), weight.float()) * self.scale).to(fp8.OUT)

    @property
    def scale(self) -> float:
        """The factor on the product of the stored numbers."""
        return fp8.X_SCALE * fp8.W_SCALE if self._eight else 1.0

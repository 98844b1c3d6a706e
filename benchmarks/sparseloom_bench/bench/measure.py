"""Measures and checks one cell and makes its record of the results file."""

from __future__ import annotations

import itertools
import time
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sparseloom import ops
from sparseloom.testing import (
    Case,
    Inputs,
    TileCheck,
    check_tiles,
    dense_product,
    exact_product,
    sparse_product,
)
from sparseloom.testing.tolerance import TILE_TOKENS

from .cells import DENSE_COPY, Cell
from .peak import Spin
from .skewed import KINDS
from .timing import Call, Spread, interleaved, ratios, rounded

Record = dict[str, Any]
# A candidate that the plan expects to take this many times the fastest's time is left out of the comparison:
# it could not be within 10 % of any best.
HOPELESS = 30.0
LEAST_CANDIDATES = 3
# Bytes of equal weights that are used in turn: three times the largest L3 that a development machine has
# shown, so that each weight comes from memory.
ROTATED_BYTES = 96 << 20
# Only at this density torch's own sparse product is timed: it takes seconds a call at this size.
PEER_DENSITY = 0.1


class Bench:
    """Holds the operands of one cell, its exact result, and torch's dense product of the same operands."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.case = cell, cell.case()
        self.inputs: Inputs = self.case.inputs()
        self.weight = self.inputs.weight()
        self.plan = ops.plan(self.inputs.index, cell.direction, self.case.dtype, cell.m)
        # The flops as the plan itself counts them: 2 m per stored element, without padding.
        self.flops = 2.0 * cell.m * self.inputs.pattern.stats().elements
        self.stored = self.inputs.pattern.stats().element_density
        self._check = Checker(self.case, self.inputs, self.weight)

        copies = ROTATED_BYTES if cell.rotated else 0
        self._inputs = itertools.cycle(
            [replace(self.inputs, values=values) for values in _copies(self.inputs.values, copies)]
        )
        self._weights = itertools.cycle(_copies(self.weight, copies))

    def sparse(self, kernel: str) -> Tensor:
        """Computes the product by a kernel; "dense_copy" is torch's forward product with the scattered
        weight, which a layer may keep."""
        if kernel == DENSE_COPY:
            return self.dense()
        return sparse_product(self.case, next(self._inputs), kernel)

    def dense(self) -> Tensor:
        return dense_product(self.case, self.inputs.x, self.inputs.dy, next(self._weights), None)

    def check(self, kernel: str) -> TileCheck:
        """Checks the kernel's result against fp64, tile by tile: a wrong kernel's time means nothing."""
        return self._check(self.sparse(kernel))


def _copies(tensor: Tensor, least_bytes: int) -> list[Tensor]:
    """Returns the tensor itself, and equal ones until they hold ``least_bytes`` together."""
    return [tensor] + [tensor.clone() for _ in range(-(-least_bytes // max(1, tensor.nbytes)) - 1)]


class Checker:
    """Does what testing.check_product does, but computes once what does not depend on the kernel: at these
    sizes that costs more than the timing."""

    def __init__(self, case: Case, inputs: Inputs, weight: Tensor) -> None:
        self.case, self.inputs = case, inputs
        x, dy, absolute = inputs.x.double().abs(), inputs.dy.double().abs(), weight.double().abs()
        magnitude = dense_product(case, x, dy, absolute, None)
        self.references = [
            self._tiles(m)
            for m in (
                dense_product(case, inputs.x, inputs.dy, weight, None),
                exact_product(case, inputs),
                magnitude,
            )
        ]

    def _tiles(self, matrix: Tensor) -> Tensor:
        """Returns the stored blocks one under another for dw, else the matrix itself."""
        if self.case.direction != "dw":
            return matrix
        index = self.inputs.index
        return ops.call("pack", matrix.contiguous(), index.crow, index.col, index.bm, index.bn).reshape(
            -1, index.bn
        )

    def __call__(self, actual: Tensor) -> TileCheck:
        bm, bn = self.case.block
        tile = (
            (bm, bn)
            if self.case.direction == "dw"
            else (TILE_TOKENS, bm if self.case.direction == "forward" else bn)
        )
        dense, exact, magnitude = self.references
        return check_tiles(
            actual.reshape(-1, bn) if self.case.direction == "dw" else actual, dense, exact, magnitude, tile
        )


def measure_choice(cell: Cell, seconds: float) -> Record:
    """Times the plan's choice and torch's dense product in turn for about `seconds`, and checks the choice.

    It also times what a target compares the cell with: for a skewed pattern its balanced one, for dx and dw
    their forward. The records of those cells would not do: on a shared host a core may run at a quarter of
    its pace for seconds.
    """
    bench = Bench(cell)
    kernel = bench.plan["kernel"]
    found = bench.check(kernel)
    spin = Spin(cell.dtype)
    calls: list[Call] = [lambda: bench.sparse(kernel), bench.dense, spin]
    beside = None
    if cell.pattern in KINDS:
        beside, other = Bench(_balanced(cell, bench)), kernel
    elif cell.direction != "forward":
        beside = Bench(replace(cell, direction="forward"))
        other = beside.plan["kernel"]
    if beside is not None:
        calls.append(lambda: beside.sparse(other))
    sparse, dense, spun, *others = interleaved(calls, seconds)
    record = _record(bench, kernel, found, sparse, dense, Peak(spin, spun))
    if beside is not None:
        # Times are compared per stored block: the number of blocks of a grown graph cannot be chosen.
        longer = [beside.flops / bench.flops * a / b for a, b in zip(sparse, others[0], strict=True)]
        if cell.pattern in KINDS:
            record["over_balanced"] = Spread.of(longer).rounded(3)
        else:
            record["of_forward"] = Spread.of([1 / each for each in longer]).rounded(3)
    peer = torch_bsr_us(bench) if cell.density == PEER_DENSITY and not cell.rotated else None
    return record | {"peers": {} if peer is None else {"torch_bsr": round(peer, 2)}}


def _balanced(cell: Cell, skewed: Bench) -> Cell:
    """Returns the same cell with a balanced pattern of as nearly as many blocks."""
    return replace(cell, pattern="balanced", density=skewed.inputs.pattern.density)


def measure_candidates(cell: Cell, seconds: float) -> Record:
    """Times every candidate that does not refuse the cell, and torch's dense product, in turn for about
    `seconds` in all."""
    bench = Bench(cell)
    able = sorted((c for c in bench.plan["candidates"] if not c["refusal"]), key=lambda c: c["predicted_us"])
    hopeful = [
        c
        for c in able
        if c["kernel"] != "reference" and c["predicted_us"] <= HOPELESS * able[0]["predicted_us"]
    ]
    if len(hopeful) < LEAST_CANDIDATES:
        hopeful = able[: max(LEAST_CANDIDATES, len(hopeful))]
    names = [candidate["kernel"] for candidate in hopeful]
    checks = {name: bench.check(name) for name in names}
    calls: list[Call] = [lambda name=name: bench.sparse(name) for name in names]  # type: ignore[misc]
    spin = Spin(cell.dtype)
    *samples, dense, spun = interleaved([*calls, bench.dense, spin], seconds)
    times = dict(zip(names, samples, strict=True))
    chosen = bench.plan["kernel"]
    best = min(names, key=lambda name: Spread.of(times[name]).median)
    loss = ratios(times[chosen], times[best]).median
    candidates = [
        {
            "kernel": candidate["kernel"],
            "predicted_us": round(candidate["predicted_us"], 2),
            "us": Spread.of(times[candidate["kernel"]]).rounded(2),
            "worst_tile_error": checks[candidate["kernel"]].worst_tile_error,
            "tile_excess": round(checks[candidate["kernel"]].excess, 4),
        }
        for candidate in hopeful
    ]
    record = _record(bench, chosen, checks[chosen], times[chosen], dense, Peak(spin, spun))
    return record | {"peers": {}, "best": best, "over_best": round(loss, 4), "candidates": candidates}


class Peak(NamedTuple):
    """A spin, and the microseconds of its calls."""

    spin: Spin
    us: list[float]


def timed_record(
    cell: Cell,
    kernel: str,
    sparse: list[float],
    dense: list[float],
    peak: Peak,
    *,
    flops: float,
    weight_bytes: int,
    check: Record,
) -> Record:
    """Returns what the record of every timed cell has.

    ``sparse``, ``dense``, ``peak``: microseconds of a call, taken in turn; ``check``: the errors of a tile,
    by name.
    """
    share = Spread.of([flops / a * (b / peak.spin.flops) for a, b in zip(sparse, peak.us, strict=True)])
    us, ratio = Spread.of(sparse), ratios(dense, sparse)
    rate = flops / us.median * 1e6
    return {
        "op": "linear",
        "direction": cell.direction,
        "dtype": cell.dtype,
        "m": cell.m,
        "k": cell.k,
        "n": cell.n,
        "block": list(cell.block),
        "density": cell.density,
        "pattern": cell.pattern,
        "rotated": cell.rotated,
        "kernel": kernel,
        "us": us.rounded(2),
        "dense_us": round(Spread.of(dense).median, 2),
        "speedup": rounded(ratio.median, 3),
        "speedup_spread": ratio.rounded(3),
        "useful_tflops": round(rate / 1e12, 5),
        "share_of_peak": rounded(share.median, 4),
        "share_spread": share.rounded(4),
        "peak": peak.spin.rate,
        "peak_tflops": round(peak.spin.flops / Spread.of(peak.us).median / 1e6, 5),
        "weight_gb_s": round(weight_bytes / us.median / 1e3, 2),
        **check,
        "threads": torch.get_num_threads(),
        "samples": len(sparse),
    }


def _record(
    bench: Bench, kernel: str, found: TileCheck, sparse: list[float], dense: list[float], peak: Peak
) -> Record:
    check = {
        "worst_tile_error": found.worst_tile_error,
        "dense_tile_error": found.dense_tile_error,
        "tile_excess": round(found.excess, 4),  # of the error allowed; above 1 the kernel is wrong
    }
    weight_bytes = bench.inputs.values.nbytes
    return timed_record(
        bench.cell, kernel, sparse, dense, peak, flops=bench.flops, weight_bytes=weight_bytes, check=check
    )


def torch_bsr_us(bench: Bench, seconds: float = 1.0) -> float | None:
    """Returns the median microseconds of torch's own product with the same weight as a sparse_bsr tensor.

    Returns None where torch has no such product: dx and dw have no sparse result or operand there, and some
    dtypes, blocks and builds are missing. Also when the first call takes more than ten times `seconds`.
    """
    if bench.cell.direction != "forward":
        return None
    index = bench.inputs.index
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that BSR is in "beta state"
            size = (index.rows, index.cols)
            weight = torch.sparse_bsr_tensor(index.crow.long(), index.col.long(), bench.inputs.values, size)
            start = time.perf_counter()
            y = F.linear(bench.inputs.x, weight)
            if time.perf_counter() - start > 10 * seconds or y.shape != (bench.cell.m, bench.cell.n):
                return None
            (times,) = interleaved([lambda: F.linear(bench.inputs.x, weight)], seconds)
    except RuntimeError:
        return None
    return Spread.of(times).median

"""The AMX kernel on a machine that has one: `check` compares it with fp64, `time` times the issue's cells
beside torch.

    PYTHONPATH=python python tests/cpp/kernels/amx_cells.py check
    PYTHONPATH=python python tests/cpp/kernels/amx_cells.py time --threads 2 16

C++ has the same check bit for bit against emulated tiles: sparseloom_tests --gtest_filter='AmxMachine.*'.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from sparseloom import ops, pattern

KERNEL = "amx_tile"
TARGETS = {8: (5, 6, 7, 7, 7), 16: (11, 14, 16, 17, 18), 32: (22, 27, 30, 33, 35), 64: (22, 27, 30, 33, 35)}
DENSITIES = (0.05, 0.1, 0.2, 0.5, 0.8)

Product = Callable[[], torch.Tensor]


def index_of(rows: int, cols: int, block: tuple[int, int], density: float) -> ops.Index:
    """A balanced random pattern."""
    crow, col = pattern.balanced(rows, cols, block, density, seed=1).index()
    return ops.make_index(crow, col, rows, cols, block)


def products(m: int, size: int, index: ops.Index, kernel: str) -> dict[str, tuple[Product, Product]]:
    """By direction: ours and torch's dense one, on the same random bf16 operands."""
    torch.manual_seed(0)
    x, dy, w = (torch.randn(n, size).bfloat16() for n in (m, m, size))
    values = ops.call("pack", w, index.crow, index.col, index.bm, index.bn)
    return {
        "forward": (lambda: ops.linear(x, values, index, kernel=kernel), lambda: F.linear(x, w)),
        "dx": (lambda: ops.linear_dx(dy, values, index, kernel=kernel), lambda: dy @ w),
        "dw": (lambda: ops.linear_dw(dy, x, index, kernel=kernel), lambda: dy.t() @ x),
    }


def check_shape(block: tuple[int, int], m: int, threads: list[int], kernel: str) -> None:
    """All three directions of one ragged shape."""
    rows, cols = 500, 700
    torch.manual_seed(m)
    index = index_of(rows, cols, block, 0.4)
    x, dy, bias = (
        torch.randn(m, cols).bfloat16(),
        torch.randn(m, rows).bfloat16(),
        torch.randn(rows).bfloat16(),
    )
    values = ops.call("pack", torch.randn(rows, cols).bfloat16(), index.crow, index.col, *block)
    w = ops.call("unpack", values, index.crow, index.col, rows, cols).double()
    xd, dyd, bd = x.double(), dy.double(), bias.double()

    def stored(matrix: torch.Tensor) -> torch.Tensor:
        """Its blocks as the pattern has them, padding zero."""
        packed: torch.Tensor = ops.call("pack", matrix, index.crow, index.col, *block)
        return packed

    cases: dict[str, tuple[Product, torch.Tensor, torch.Tensor]] = {
        "forward": (
            lambda: ops.linear(x, values, index, bias, kernel=kernel),
            xd @ w.t() + bd,
            xd.abs() @ w.abs().t() + bd.abs(),
        ),
        "dx": (lambda: ops.linear_dx(dy, values, index, kernel=kernel), dyd @ w, dyd.abs() @ w.abs()),
        "dw": (
            lambda: ops.linear_dw(dy, x, index, kernel=kernel),
            stored(dyd.t() @ xd),
            stored(dyd.abs().t() @ xd.abs()),
        ),
    }
    for name, (ours, exact, magnitude) in cases.items():
        results = []
        for n in threads:
            torch.set_num_threads(n)
            results.append(ours())
        assert all(torch.equal(results[0], other) for other in results[1:]), (
            f"{name} {block} m={m}: bits differ by threads"
        )
        bound = exact.abs() * 2**-8 + magnitude * 2**-22
        worst = ((results[0].double() - exact).abs() / bound.clamp(min=1e-30)).max().item()
        assert worst <= 1, f"{name} {block} m={m}: error {worst:.2f} of the bound"


def check(threads: list[int], kernel: str) -> None:
    """Every block, ragged edges and token counts against fp64: at most twice the error of one rounding to
    bf16, per element, plus fp32's share of the sum of magnitudes; and the same bits for each number of
    threads. Raises AssertionError."""
    sides = (8, 16, 32, 64, 128)
    for bm, bn, m in itertools.product(sides, sides, (1, 17, 300)):
        check_shape((bm, bn), m, threads, kernel)
    print(
        f"{kernel}: forward, dx and dw are right for "
        f"{len(sides) ** 2} blocks, and the same on {threads} threads"
    )


def timed(
    ours: Callable[[], torch.Tensor], dense: Callable[[], torch.Tensor], budget: float
) -> tuple[float, float, float]:
    """Median seconds of ours and of torch's, interleaved for `budget` seconds, and the median of their
    ratios."""
    mine: list[float] = []
    theirs: list[float] = []
    ours(), dense()
    end = time.perf_counter() + budget
    while time.perf_counter() < end or len(mine) < 5:
        start = time.perf_counter()
        ours()
        middle = time.perf_counter()
        dense()
        mine.append(middle - start)
        theirs.append(time.perf_counter() - middle)
    return (
        statistics.median(mine),
        statistics.median(theirs),
        statistics.median(t / m for t, m in zip(theirs, mine, strict=True)),
    )


def measure(threads: list[int], kernel: str, m: int, size: int, budget: float, out: str | None) -> None:
    """Prints a line a cell: microseconds, share of the AMX peak with its target, times torch, what the plan
    predicted and chose."""
    info = ops.info()
    peak = info["rates"].get("bf16_amx", 0) or float("nan")
    print(
        f"{info['cpu']}: bf16_amx {peak / 1e9:.0f} Gflop/s a core, "
        f"active {info['isa_active']}, rates {info['rates']}"
    )
    rows = []
    for n in threads:
        torch.set_num_threads(n)
        for block, density in itertools.product(TARGETS, DENSITIES):
            index = index_of(size, size, (block, block), density)
            flops = 2 * m * index.col.numel() * block * block
            for name, (ours, dense) in products(m, size, index, kernel).items():
                us, torch_us, ratio = (
                    v * f for v, f in zip(timed(ours, dense, budget), (1e6, 1e6, 1), strict=True)
                )
                plan = ops.plan(index, name, torch.bfloat16, m)
                predicted = {c["kernel"]: c["predicted_us"] for c in plan["candidates"] if not c["refusal"]}
                share = 100 * flops / us * 1e6 / peak / n
                target = TARGETS[block][DENSITIES.index(density)]
                rows.append(
                    (
                        n,
                        block,
                        density,
                        name,
                        us,
                        torch_us,
                        ratio,
                        share,
                        target,
                        predicted.get(kernel),
                        plan["kernel"],
                    )
                )
                print(
                    f"{n:2d} threads block {block:2d} density {density:4.2f} "
                    f"{name:7s} {us:8.0f} us  {share:5.1f} % of peak "
                    f"(target {target:2d})  {ratio:6.2f}x torch ({torch_us:.0f} "
                    f"us)  predicted {predicted.get(kernel, 0):.0f}, "
                    f"plan runs {plan['kernel']}",
                    flush=True,
                )
    if out:
        with open(out, "w") as file:
            json.dump({"info": info, "cells": rows}, file)


def main() -> None:
    """`check` or `time`, as the module says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("check", "time"))
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 16])
    parser.add_argument("--kernel", default=KERNEL)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=0.4, help="for each cell and direction")
    parser.add_argument("--out", help="a JSON file")
    given = parser.parse_args()
    if given.what == "check":
        check([1, *given.threads], given.kernel)
    else:
        measure(given.threads, given.kernel, given.tokens, given.size, given.seconds, given.out)


if __name__ == "__main__":
    main()

"""Makes docs/results_break_even.md from bench/results/<device>/*.json.

It says below which density block-sparse was faster, by product.

Usage: python tools/make_break_even.py [--check | --all]. With --check the exit status is 1 when the page is
not up to date. With --all, it stays as it is and a row for each product is printed.
"""

import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from cpu_goals import torch_limit
from generated import ROOT, table, update

PAGE = ROOT / "docs" / "results_break_even.md"
DTYPES = {
    "f32": "fp32",
    "fp32": "fp32",
    "tf32": "tf32",
    "bf16": "bf16",
    "f16": "fp16",
    "fp16": "fp16",
    "fp8": "fp8",
    "fp8_promoted": "fp8, promoted",
}
DIRECTIONS = ("forward", "dx", "dw")
Curve = list[tuple[float, float]]  # (density, dense time over sparse time), by density


def curves(folder: Path) -> dict[tuple[Any, ...], Curve]:
    """Returns (tokens, in, out, block, dtype, direction) -> speed-ups; the newest measurement of each cell
    counts."""
    runs = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    found: dict[tuple[Any, ...], dict[float, float]] = defaultdict(dict)
    for run in sorted(
        (run for run in runs if "records" in run and not torch_limit(run)), key=lambda run: str(run["date"])
    ):
        for record in run["records"]:
            if (
                record.get("op") == "linear"
                and record.get("dense_us")
                and record.get("dtype") in DTYPES
                and "us" in record
            ):
                if record.get("pattern", "balanced") not in ("balanced", "random"):
                    continue  # a skewed pattern is not another density
                size = (record["m"], record["k"], record["n"], tuple(record["block"]))
                key = (*size, DTYPES[record["dtype"]], record["direction"])
                found[key][record["density"]] = record["dense_us"] / record["us"]["median"]
    return {key: sorted(points.items()) for key, points in found.items()}


def break_even(curve: Curve) -> tuple[float, int, float]:
    """Returns the density where a line through the measured speed-ups meets 1, and 0. Where all measured are
    slower, the lowest density, -1 and the speed-up there; where all are faster, the highest, 1 and that."""
    if curve[0][1] < 1:
        return curve[0][0], -1, curve[0][1]
    for (low, fast), (high, slow) in itertools.pairwise(curve):
        if slow < 1:
            return low + (high - low) * (fast - 1) / (fast - slow), 0, 1.0
    return curve[-1][0], 1, curve[-1][1]


def words(found: tuple[float, int, float]) -> str:
    density, side, _ = found
    return f"{density:.2g}" if side == 0 else f"{'above' if side > 0 else 'below'} {density:g}"


def spread(found: list[tuple[float, int, float]]) -> str:
    """Returns the lowest and the highest of some break-evens."""
    low, high = words(min(found)), words(max(found))
    return low if low == high else f"{low} to {high}"


def summary(folder: Path) -> list[list[str]]:
    """Returns a row for each block and dtype: how many products, and their break-evens by direction."""
    grouped: dict[tuple[Any, ...], dict[str, list[tuple[float, int, float]]]] = defaultdict(dict)
    sizes: dict[tuple[Any, ...], set[Any]] = defaultdict(set)
    for (*size, block, dtype, direction), curve in curves(folder).items():
        grouped[block, dtype].setdefault(direction, []).append(break_even(curve))
        sizes[block, dtype].add(tuple(size))
    lines = []
    for ((bm, bn), dtype), cell in sorted(grouped.items()):
        cells = [spread(cell[direction]) if direction in cell else "-" for direction in DIRECTIONS]
        lines.append([f"{bm}x{bn}", dtype, str(len(sizes[(bm, bn), dtype])), *cells])
    return lines


def rows(folder: Path) -> list[list[str]]:
    """Returns one row for each product that was measured, with the directions side by side."""
    grouped: dict[tuple[Any, ...], dict[str, str]] = defaultdict(dict)
    for key, curve in curves(folder).items():
        density, side, there = break_even(curve)
        at = f" ({there:.2f}x there)" if side else ""
        grouped[key[:-1]][key[-1]] = words((density, side, there)) + at
    lines = []
    for (m, k, n, (bm, bn), dtype), cell in sorted(grouped.items()):
        cells = [cell.get(direction, "-") for direction in DIRECTIONS]
        lines.append([f"{m}", f"{k} -> {n}", f"{bm}x{bn}", dtype, *cells])
    return lines


def content(results: Path, whole: bool = False) -> str:
    head = ["tokens", "features", "block", "dtype"] if whole else ["block", "dtype", "products"]
    parts = [
        f"**{folder.name}**\n\n{table([*head, *DIRECTIONS], found)}"
        for folder in sorted(results.iterdir())
        if (found := (rows if whole else summary)(folder))
    ]
    return "\n\n".join(parts) or "No result files yet: `make bench` writes them."


if __name__ == "__main__":
    if "--all" in sys.argv:
        print(content(ROOT / "bench" / "results", whole=True))
        sys.exit()
    check = "--check" in sys.argv
    current = update(PAGE, {"break-even": content(ROOT / "bench" / "results")}, check)
    if check and not current:
        sys.exit(f"{PAGE.relative_to(ROOT)} is not up to date: run python tools/make_break_even.py")

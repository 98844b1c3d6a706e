"""Makes docs/results_break_even.md from bench/results/<device>/*.json.

It says below which density block-sparse was faster, by product.

Usage: python tools/make_break_even.py [--check]. With --check the exit status is 1 when the page is not up to
date.
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


def break_even(curve: Curve) -> str:
    """Returns the density where a line through the measured speed-ups meets 1."""
    if curve[0][1] < 1:
        return f"below {curve[0][0]:g} ({curve[0][1]:.2f}x there)"
    for (low, fast), (high, slow) in itertools.pairwise(curve):
        if slow < 1:
            return f"{low + (high - low) * (fast - 1) / (fast - slow):.2g}"
    return f"above {curve[-1][0]:g} ({curve[-1][1]:.2f}x there)"


def rows(folder: Path) -> list[list[str]]:
    """Returns one row for each product that was measured, with the directions side by side."""
    grouped: dict[tuple[Any, ...], dict[str, str]] = defaultdict(dict)
    for key, curve in curves(folder).items():
        grouped[key[:-1]][key[-1]] = break_even(curve)
    lines = []
    for (m, k, n, (bm, bn), dtype), cell in sorted(grouped.items()):
        cells = [cell.get(direction, "-") for direction in ("forward", "dx", "dw")]
        lines.append([f"{m}", f"{k} -> {n}", f"{bm}x{bn}", dtype, *cells])
    return lines


def content(results: Path) -> str:
    head = ["tokens", "features", "block", "dtype", "forward", "dx", "dw"]
    parts = [
        f"**{folder.name}**\n\n{table(head, found)}"
        for folder in sorted(results.iterdir())
        if (found := rows(folder))
    ]
    return "\n\n".join(parts) or "No result files yet: `make bench` writes them."


if __name__ == "__main__":
    check = "--check" in sys.argv
    current = update(PAGE, {"break-even": content(ROOT / "bench" / "results")}, check)
    if check and not current:
        sys.exit(f"{PAGE.relative_to(ROOT)} is not up to date: run python tools/make_break_even.py")

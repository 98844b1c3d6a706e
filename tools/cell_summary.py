"""Makes short tables of many measured products: what each kernel reaches, and every loss against dense.

The tables of every cell are printed on demand: python tools/make_results.py --all [DEVICE...].
"""

import statistics
from typing import Any

from generated import table

Record = dict[str, Any]
HEAD = [
    "dtype",
    "direction",
    "kernel",
    "cells",
    "tokens",
    "density",
    "against dense: least",
    "median",
    "most",
]


def span(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,g}" if low == high else f"{low:,g} to {high:,g}"


def summary_table(records: list[Record], dtypes: dict[str, str]) -> str:
    """Returns a row for each dtype, direction and kernel, in the order of the records."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if "error" not in record:
            key = dtypes[record["dtype"]], record["direction"], record["kernel"]
            groups.setdefault(key, []).append(record)
    rows = []
    for key, group in groups.items():
        speeds = [speed(record) for record in group]
        figures = [f"{figure:.2f}x" for figure in (min(speeds), statistics.median(speeds), max(speeds))]
        ranges = [span([record[name] for record in group]) for name in ("m", "density")]
        rows.append([*key, str(len(group)), *ranges, *figures])
    return table(HEAD, rows)


def losses(records: list[Record], dtypes: dict[str, str]) -> str:
    """Lists what is slower than dense, and what failed, by product: the densities with their speed-ups."""
    found: dict[str, list[str]] = {}
    for record in records:
        pattern = record.get("pattern", "balanced")
        words = [
            dtypes[record["dtype"]],
            record["direction"],
            f"{record['m']} x {record['k']} x {record['n']}",
        ]
        words += ["{}x{}".format(*record["block"]), *([] if pattern == "balanced" else [pattern])]
        if "error" in record:
            found.setdefault(" ".join(words), []).append(f"{record['density']:.3g} failed: {record['error']}")
        elif speed(record) < 1:
            found.setdefault(" ".join(words), []).append(f"{record['density']:.3g} {speed(record):.2f}x")
    if not found:
        return "Nothing is slower than dense."
    lines = [f"- {words}: {', '.join(figures)}" for words, figures in found.items()]
    return "\n".join(["Slower than dense, by density:", "", *lines])


def speed(record: Record) -> float:
    return float(record["dense_us"] / record["us"]["median"])

"""Compares two results files of the same problems and says what moved."""

from __future__ import annotations

from typing import Any

from .record import Record
from .summary import MUCH_SLOWER, SLOWER, SLOWER_US, commit, measured, quantile, share, slower, title

#: A problem has moved when its speed-up changed by more than this share, and its time by more than this many
#: microseconds.
MOVED, MOVED_US = 0.03, SLOWER_US
SHOWN = 10
Pair = tuple[Record, Record]


def pairs(old: list[Record], new: list[Record]) -> list[Pair]:
    """Returns the pairs of records of one problem, where both were measured, in the order of the new ones."""
    before = {record["index"]: record for record in measured(old)}
    return [(before[record["index"]], record) for record in measured(new) if record["index"] in before]


def change(pair: Pair) -> float:
    """Returns the new speed-up over the old."""
    return float(pair[1]["speedup"] / pair[0]["speedup"])


def percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def moved(pair: Pair) -> bool:
    """Returns whether the speed-up changed by more than 3 %, and by more than .5 us of the new time."""
    return abs(change(pair) - 1) > MOVED and pair[1]["us"]["median"] * abs(change(pair) - 1) > MOVED_US


def sentences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Returns what to print of two whole results files."""
    both = pairs(old["records"], new["records"])
    lines = [f"{len(both)} problems measured in both: {commit(old)} and {commit(new)}"]
    if old["device"] != new["device"]:
        lines.append(f"on different devices, {old['device']} and {new['device']}")
    if old.get("demo_scores") != new.get("demo_scores"):
        lines.append("the demo's weights differ, and so do its masks")
    if not both:
        return lines
    medians = [quantile([record["speedup"] for record in side], 0.5) for side in zip(*both, strict=True)]
    changes = [change(pair) for pair in both]
    low, middle, high = (percent(quantile(changes, at)) for at in (0.05, 0.5, 0.95))
    first, second = medians
    lines.append(f"median speed-up {first:.3f} -> {second:.3f} ({percent(second / first)})")
    lines.append(f"a problem's own change: median {middle}, p5 {low}, p95 {high}")
    for name, than in (("below .97", SLOWER), ("below .9", MUCH_SLOWER)):
        counts = [sum(slower(pair[side], than) for pair in both) for side in (0, 1)]
        lines.append(f"{name} of dense: {share(counts[0], len(both))} -> {share(counts[1], len(both))}")
    far = sorted((pair for pair in both if moved(pair)), key=change)
    faster = [pair for pair in far if change(pair) > 1]
    lines.append(f"moved by more than 3 % and .5 us: {len(far) - len(faster)} slower, {len(faster)} faster")
    for was, now in [*far[: min(SHOWN, len(far) - len(faster))], *faster[::-1][:SHOWN]]:
        kernels = " -> ".join(dict.fromkeys((was["kernel"], now["kernel"])))
        lines.append(f"  {was['speedup']:.3f} -> {now['speedup']:.3f} {title(now)}, {kernels}")
    return lines

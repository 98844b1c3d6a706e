"""What `sparseloom experiment vit` has to show: the means of the outcomes in a folder, and its bars."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sparseloom.errors import Error

from . import curves, moves_plots
from .vit import trials

_OP = "experiment vit --table"
DENSE = 84.0  # percent that dense must reach, or nothing else counts
#: sparsity -> (points below dense that the best arm may lie, points above static that it must lie)
BARS = {70: (0.7, None), 80: (1.2, 1.0), 90: (3.0, 2.0)}
#: sparsity -> points above static that RigL with SMET's rules is to lie, with new blocks that stay or without
NEW_RULES = {80: 0.3, 90: 0.8}

#: arm -> the outcomes of its seeds
Record = Mapping[str, list[dict[str, Any]]]


class Bar(NamedTuple):
    """One thing to show, in points; ``value`` is None while an arm is missing."""

    text: str
    value: float | None
    met: bool


def read(folder: Path) -> Record:
    """Returns the outcomes in a folder, in the order of the arms. Raises Error where dense is missing, and
    where two of them had another recipe, data or length."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in trials(1)}
    for path in sorted(folder.glob("*.seed*.json")):
        outcome = json.loads(path.read_text())
        speed = folder / f"{outcome['arm']}.speed.json"
        if speed.exists():
            outcome["steps_per_second"] = json.loads(speed.read_text())["steps_per_second"]
        found[outcome["arm"]].append(outcome)
    if not found["dense"]:
        raise Error(_OP, "an outcome of the arm dense", f"none in {folder}", "train it with --arm dense")
    record = {name: outcomes for name, outcomes in found.items() if outcomes}
    settings = {json.dumps(each["setting"], sort_keys=True) for some in record.values() for each in some}
    if len(settings) > 1:
        got = " and ".join(sorted(settings))
        raise Error(
            _OP, "outcomes of one setting", got, "train the arms again with the same --epochs and data"
        )
    return record


def accuracy(outcomes: list[dict[str, Any]]) -> float:
    """Returns the mean in percent."""
    return 100 * statistics.mean(each["accuracy"] for each in outcomes)


def bars(record: Record) -> Iterator[Bar]:
    """Yields what is to be shown. CIFAR-10 has no part for validation, and no arm gives up training images
    for one: the test chooses the best arm, and the bars say so."""
    dense, arms = accuracy(record["dense"]), trials(1)
    yield Bar(f"dense at least {DENSE:.0f} %", dense, dense >= DENSE)
    for sparsity, (below, above) in BARS.items():
        tried = [n for n in record if arms[n].sparsity == sparsity and not n.startswith("static")]
        best = max((accuracy(record[name]) for name in tried), default=None)
        gap = None if best is None else dense - best
        yield Bar(
            f"best by test accuracy at {sparsity} %: at most {below} points below dense",
            gap,
            gap is not None and gap <= below + 1e-9,
        )
        if above is not None:
            static = record.get(f"static-{sparsity}")
            lead = None if best is None or static is None else best - accuracy(static)
            met = lead is not None and lead >= above - 1e-9
            yield Bar(
                f"best by test accuracy at {sparsity} %: at least {above} points above static", lead, met
            )
    for name in ("supermask-80", "rigl-80", "rigl-90"):
        static = record.get(f"static-{arms[name].sparsity}")
        there = static is not None and name in record
        lead = accuracy(record[name]) - accuracy(static or []) if there else None
        yield Bar(f"{name} not below static", lead, lead is not None and lead >= -1e-9)
    for sparsity, above in NEW_RULES.items():
        static = record.get(f"static-{sparsity}")
        tried = [f"rigl-{sparsity}-{rules}" for rules in ("smet", "grace")]
        best = max((accuracy(record[name]) for name in tried if name in record), default=None)
        lead = None if best is None or static is None else best - accuracy(static)
        text = f"best RigL with new rules at {sparsity} %: at least {above} points above static"
        yield Bar(text, lead, lead is not None and lead >= above - 1e-9)


def page(record: Record) -> str:
    """Returns the table with what moving blocks tell of themselves, of the first seed of each arm. Raises
    Error without matplotlib."""
    told = {name: outcomes[0].get("moves") for name, outcomes in record.items()}
    plots = moves_plots.plots({name: each for name, each in told.items() if each and each["changes"]})
    return curves.page("ViT on CIFAR-10", table(record), {}, plots=plots)


def table(record: Record) -> str:
    """Returns the means and the bars as tables in Markdown."""
    dense = record["dense"]
    setting, size = dense[0]["setting"], dense[0]["setting"]["size"]
    devices = sorted({each["device"] for some in record.values() for each in some})
    lines = [
        "# sparseloom experiment vit",
        "",
        f"ViT of width {size['width']}, depth {size['depth']} and patch {size['patch']} on CIFAR-10, "
        f"{setting['epochs']} epochs in batches of {setting['batch']}, on {' and '.join(devices)}. "
        "Attention's output and both layers of each MLP are sparse. Gaps are points below dense; speeds are "
        "those of each arm alone on the GPU.",
        "",
        "| arm | block | kept | seeds | accuracy | gap | steps/s | of dense's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    arms = trials(1)
    for name, outcomes in record.items():
        trial = arms[name]
        spread = [100 * each["accuracy"] for each in outcomes]
        deviation = f" ± {statistics.stdev(spread):.2f}" if len(spread) > 1 else ""
        density = 100 * statistics.mean(each["density"] for each in outcomes)
        block = "" if trial.arm.dense else trial.block
        mean = accuracy(outcomes)
        speed, whole = (each[0].get("steps_per_second") for each in (outcomes, dense))
        pace = f"{speed:.1f} | {speed / whole:.2f}" if speed and whole else " | "
        lines.append(
            f"| {name} | {block} | {density:.1f} % | {len(outcomes)} | {mean:.2f}{deviation} % | "
            f"{accuracy(dense) - mean:+.2f} | {pace} |"
        )
    lines += ["", "| bar | measured | |", "|---|---|---|"]
    counts = accuracy(dense) >= DENSE
    for bar in bars(record):
        value = "" if bar.value is None else f"{bar.value:.2f}"
        met = "not run" if bar.value is None else "met" if bar.met else "**missed**"
        if met == "met" and not counts:
            met = "does not count: dense missed its bar"
        lines.append(f"| {bar.text} | {value} | {met} |")
    return "\n".join([*lines, ""])

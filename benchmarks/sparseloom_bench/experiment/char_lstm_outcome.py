"""What `sparseloom experiment char-lstm` has to show: its record, the table with its bars, and the page."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from .char_lstm import ARMS, PLAN, Size, patterns
from .curves import Picture, page
from .runs import SEEDS, counted, improves, spread

#: How many percent more bits than dense's the best small world may have, the aim, and how many percent the
#: last tenth of a run may still improve.
BAR, GOAL, SETTLED = 1.0, -1.0, 1.0

#: arm -> the outcomes of its runs
Found = Mapping[str, list[dict[str, Any]]]


def record(found: Found) -> dict[str, Any]:
    """Returns what the arms reached that have all their seeds: {"experiment", "setting", "arms"}."""
    arms = {}
    for arm in ARMS:
        seeds = counted(PLAN, found.get(arm, []))
        bits = [each["test"] for each in seeds]
        if len(seeds) < SEEDS or None in bits or None in [each["validation"] for each in seeds]:
            continue
        mean, deviation = spread(bits)
        arms[arm] = {
            "bits": mean, "deviation": deviation, "seeds": bits, "rate": seeds[0]["rate"],
            "validation": statistics.mean(each["validation"] for each in seeds),
            "units": seeds[0]["units"], "parameters": seeds[0]["parameters"],
            "recurrent_parameters": seeds[0]["recurrent_parameters"],
            "improves": max(improves(each["losses"]) for each in seeds),
            "seconds": statistics.mean(each["seconds"] for each in seeds), "device": seeds[0]["device"],
        }  # fmt: skip
    runs = [each for arm in ARMS for each in found.get(arm, [])]
    setting = runs[0]["setting"] if runs else None
    kept = ("arm", "rate", "seed", "searching", "validation", "test", "losses", "seconds")
    return {
        "experiment": "char-lstm", "setting": setting, "arms": arms,
        "runs": [{name: each.get(name) for name in kept} for each in runs],
    }  # fmt: skip


def table(found: dict[str, Any]) -> str:
    """Returns the record as a table in Markdown, with its bars."""
    setting, arms = found["setting"], found["arms"]
    rates = ", ".join(f"{each:g}" for each in PLAN.rates)
    lines = [
        "# sparseloom experiment char-lstm",
        "",
        f"Bits per character of the test text, {setting['steps']} steps of {setting['batch']} streams of "
        f"{setting['length']} characters. The best of the learning rates {rates} by a search of one seed at "
        f"a quarter of the steps, then {SEEDS} seeds.",
        "",
        "| arm | units | parameters | learning rate | validation | bits | over dense | last tenth improves "
        "| s a run |",
        "|---" * 9 + "|",
    ]
    dense = arms.get("dense")
    for name, arm in arms.items():
        over = f"{100 * (arm['bits'] / dense['bits'] - 1):+.2f} %" if dense else ""
        lines.append(
            f"| {name} | {arm['units']} | {arm['parameters']:,} | {arm['rate']:g} | "
            f"{arm['validation']:.4f} | {arm['bits']:.4f} ± "
            f"{arm['deviation']:.4f} | {over} | {arm['improves']:.2f} % | {arm['seconds']:.0f} |"
        )
    lines += ["", *(f"- {text}: {value}" for text, value in bars(found))]
    return "\n".join([*lines, ""])


def bars(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns what is to be shown, and whether it was."""
    arms = found["arms"]
    worlds = [arm for name, arm in arms.items() if name != "dense"]
    shown = []
    if "dense" in arms and worlds:
        best = min(worlds, key=lambda arm: arm["validation"])  # the test only judges it
        over = 100 * (best["bits"] / arms["dense"]["bits"] - 1)
        word = "met, and the goal too" if over <= GOAL else "met" if over <= BAR else "missed"
    aim = f"the best small world by validation at most {BAR:+.0f} % bits of dense, the goal {GOAL:+.0f} %"
    shown.append((aim, f"{over:+.2f} %, {word}" if "dense" in arms and worlds else "not run"))
    still = max((arm["improves"] for arm in arms.values()), default=None)
    word = "not run" if still is None else f"{still:.2f} %, {'met' if still < SETTLED else 'missed'}"
    return [*shown, (f"the last tenth of every run improves by less than {SETTLED:.0f} %", word)]


def html(found: dict[str, Any]) -> str:
    """Returns the page: the table, the curves of all runs that count, and the pictures of the patterns."""
    lines = {
        f"{run['arm']}, seed {run['seed']}": run["losses"] for run in found["runs"] if not run["searching"]
    }
    searched = {f"{run['arm']}, {run['rate']:g}": run["losses"] for run in found["runs"] if run["searching"]}
    size = Size(**found["setting"]["size"])
    masks = [
        Picture(f"{arm}, step {step + 1}", patterns(arm, size, step).mask.float())
        for arm in ARMS[1:]
        for step in range(2)
    ]
    curves = {"training, bits per character": lines, "search of the learning rate": searched}
    return page("sparseloom experiment char-lstm", table(found), curves, masks)

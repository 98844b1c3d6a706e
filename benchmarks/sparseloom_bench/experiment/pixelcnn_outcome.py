"""What `sparseloom experiment pixelcnn` has to show: the means of a folder's outcomes, the search, and its
bars."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sparseloom.errors import Error

from . import runs
from .pixelcnn import PLAN
from .pixelcnn_model import ARMS
from .runs import SEEDS, improves

#: Bits per colour that block-diagonal arms may lie above dense, and are meant to.
MUST, GOAL = 0.01, -0.02
#: Per cent that the last tenth of a run may still improve, and seconds that a run may take.
STILL, SECONDS = 1.0, 240.0

Outcome = Mapping[str, Any]


class Arm(NamedTuple):
    """The outcomes of one arm."""

    searches: list[Outcome]
    finals: list[Outcome]


Record = Mapping[str, Arm]


class Bar(NamedTuple):
    """One thing to show."""

    text: str
    value: str
    met: bool


def read(folder: Path) -> Record:
    """Returns the outcomes in a folder. Raises Error where an arm has no final run or lacks one of its
    search, and where two outcomes had other settings."""
    record = {}
    for name, mine in runs.read(PLAN, folder).items():
        searches: list[Outcome] = [e for e in mine if e["searching"] and e["rate"] in PLAN.rates]
        arm = Arm(searches, list[Outcome](runs.counted(PLAN, mine)))
        if not arm.finals:
            got = f"{len(arm.searches)} of the search and {len(arm.finals)} final ones"
            raise Error(PLAN.op, f"outcomes of the arm {name}", got, f"train it with --arm {name}")
        record[name] = arm
    return record


def mean(arm: Arm) -> float:
    """Returns bits per colour of the test images; infinity where a run had no number."""
    return statistics.mean(math.inf if each["test"] is None else each["test"] for each in arm.finals)


def deviation(arm: Arm) -> float:
    """Returns the spread over seeds, 0 of one."""
    numbers = [each["test"] for each in arm.finals]
    return statistics.stdev(numbers) if len(numbers) > 1 and None not in numbers else 0.0


def bars(record: Record) -> Iterator[Bar]:
    """Yields what is to be shown."""
    dense = mean(record["dense"])
    for name, arm in record.items():
        if name != "dense":
            gap = mean(arm) - dense
            for text, limit in (("at most", MUST), ("goal:", GOAL)):
                yield Bar(f"{name} {text} {limit:+.2f} bits of dense", f"{gap:+.4f}", gap <= limit)
    all_finals = [each for arm in record.values() for each in arm.finals]
    slowest, least = (
        max(each["seconds"] for each in all_finals),
        min(len(arm.finals) for arm in record.values()),
    )
    falls = max(improves(each["losses"]) for each in all_finals)
    yield Bar(f"losses fall less than {STILL:.0f} % in the last tenth", f"{falls:.2f} %", falls < STILL)
    yield Bar(f"a run takes at most {SECONDS:.0f} s", f"{slowest:.0f} s", slowest <= SECONDS)
    yield Bar(f"{SEEDS} seeds of each arm", str(least), least >= SEEDS)
    sizes = [arm.finals[0]["parameters"] for arm in record.values()]
    apart = 100 * (max(sizes) / min(sizes) - 1)
    yield Bar("parameters at most 2 % apart", f"{apart:.2f} %", apart <= 2)


def rows(record: Record) -> list[list[str]]:
    """Returns the cells of the table, its heads first."""
    head = (
        "arm,gated layers,parameters,learning rate,seeds,bits per dimension,against dense,last tenth,seconds"
    )
    found = [head.split(",")]
    for name, arm in record.items():
        first = arm.finals[0]
        gap = mean(arm) - mean(record["dense"])
        falls = statistics.mean(improves(each["losses"]) for each in arm.finals)
        found.append(
            [
                name, str(ARMS[name] * first["setting"]["size"]["depth"]), f"{first['parameters']:,}",
                f"{first['rate']:g}", str(len(arm.finals)), f"{mean(arm):.4f} ± {deviation(arm):.4f}",
                f"{gap:+.4f}", f"{falls:.2f} %", f"{max(each['seconds'] for each in arm.finals):.0f}",
            ]
        )  # fmt: skip
    return found


def search_rows(record: Record) -> list[list[str]]:
    """Returns the cells of the search's table, its heads first; a chosen rate at an end says so."""
    found = [["arm", *(f"{each:g}" for each in PLAN.rates), ""]]
    for name, arm in record.items():
        ordered = sorted(arm.searches, key=lambda each: float(each["rate"]))
        cells = ["none" if e["validation"] is None else f"{e['validation']:.4f}" for e in ordered]
        chosen = float(runs.best_rate(PLAN, arm.searches) or 0)
        inside = PLAN.rates[0] < chosen < PLAN.rates[-1]
        found.append([name, *cells, f"chose {chosen:g}" + ("" if inside else ", an end of the range")])
    return found


def introduction(record: Record) -> str:
    """Returns what was done, in words."""
    first = record["dense"].finals[0]
    setting, size = first["setting"], first["setting"]["size"]
    devices = sorted({each["device"] for arm in record.values() for each in arm.finals})
    return (
        f"A gated PixelCNN of {size['width']} channels on crops of {size['side']} x {size['side']} of "
        f"CIFAR-10, {setting['steps']} steps in batches of {setting['batch']}, on {' and '.join(devices)}. "
        "groups-2 and groups-4 have block-diagonal convolutions behind a channel shuffle, and 2 and 4 times "
        "the layers. Bits per dimension are those of the test images, cut into tiles. Do not compare them "
        "with those of whole images, nor those of JPEG copies with published ones."
    )


def table(record: Record) -> str:
    """Returns the means, the search and the bars as tables in Markdown."""
    verdicts = [["bar", "measured", ""]]
    verdicts += [[bar.text, bar.value, "met" if bar.met else "**missed**"] for bar in bars(record)]
    lines = ["# sparseloom experiment pixelcnn", "", introduction(record), "", *_markdown(rows(record)), ""]
    lines += ["The search, at a quarter of the steps: bits of the validation images by learning rate.", ""]
    return "\n".join([*lines, *_markdown(search_rows(record)), "", *_markdown(verdicts), ""])


def _markdown(cells: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|---" * len(cells[0]) + "|", *lines[1:]]

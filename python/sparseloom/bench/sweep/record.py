"""One problem's record, however it was timed; and the seam where the sweep takes the plan's choice."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...testing import TileCheck
from ..timing import Spread, ratios
from .problems import Problem

Record = dict[str, Any]
#: Candidates that the plan expects to take longer than this many times the fastest are not timed, nor is the
#: reference, which is there to be right: a hundred times as long as the fastest, seconds each, and no
#: surprise.
HOPELESS, REFERENCE = 30.0, "reference"
#: The choice counts as good when it takes at most this many times as long as the fastest.
WITHIN = 1.05


def by_plan(plan: Record) -> str:
    """The plan's own choice."""
    return str(plan["kernel"])


#: Which kernel is timed as ours. A test puts the second best candidate here, to see that the sweep notices.
choice: Callable[[Record], str] = by_plan


def able(plan: Record) -> list[Record]:
    """The candidates that can run, the fastest by the plan's own prediction first."""
    can_run = (each for each in plan["candidates"] if not each["refusal"])
    return sorted(can_run, key=lambda each: float(each["predicted_us"]))


def predicted_us(plan: Record, kernel: str) -> float:
    """What the plan expects of a kernel that can run."""
    return next(float(each["predicted_us"]) for each in plan["candidates"] if each["kernel"] == kernel)


def named(plan: Record, every: bool, forced: str | None = None) -> list[str]:
    """The kernels to time, the choice first: alone, or with every other candidate that is not hopeless, and
    `forced` always."""
    candidates = [each for each in able(plan) if every and each["kernel"] != REFERENCE]
    limit = HOPELESS * candidates[0]["predicted_us"] if candidates else 0.0
    hopeful = [each["kernel"] for each in candidates if each["predicted_us"] <= limit]
    return list(dict.fromkeys([choice(plan), *([forced] if forced and every else []), *hopeful]))


@dataclass
class Timed:
    """What was seen of one problem: by kernel microseconds a call, round by round, and the check of its
    result; dense's times of the same rounds; kernels that failed, with the reason."""

    samples: dict[str, list[float]]
    checks: dict[str, TileCheck]
    dense: list[float]
    failed: dict[str, str] = field(default_factory=dict)


def record_of(problem: Problem, plan: Record, timed: Timed, stored: float) -> Record:
    """`stored`: the share of the weight's elements that exist, ragged edges and all."""
    chosen = choice(plan)
    us, speedup = Spread.of(timed.samples[chosen]), ratios(timed.dense, timed.samples[chosen])
    medians = {kernel: Spread.of(times).median for kernel, times in timed.samples.items()}
    found = timed.checks[chosen]
    record = problem.fields() | {
        "stored": round(stored, 5),
        "kernel": chosen,
        "us": us.rounded(2),
        "dense_us": round(Spread.of(timed.dense).median, 2),
        "speedup": round(speedup.median, 4),
        "speedup_spread": speedup.rounded(4),
        "predicted_us": round(predicted_us(plan, chosen), 2),
        "worst_tile_error": found.worst_tile_error,
        "tile_excess": round(max(each.excess for each in timed.checks.values()), 4),  # of every kernel timed
        "samples": len(timed.dense),
        "plan": portable(plan["text"]),
    }
    if len(timed.samples) > 1 or timed.failed:
        best = min(medians, key=medians.__getitem__)
        record |= {"best": best, "over_best": round(medians[chosen] / medians[best], 4)}
        record["candidates"] = [
            {
                "kernel": kernel,
                "us": round(median, 2),
                "predicted_us": round(predicted_us(plan, kernel), 2),
                "tile_excess": round(timed.checks[kernel].excess, 4),
            }
            for kernel, median in medians.items()
        ] + [{"kernel": kernel, "error": why} for kernel, why in timed.failed.items()]
    return record


def portable(text: str) -> str:
    """A plan's text without the place of the file that its rates are kept in, which is this machine's own
    affair, and without the kernels of another kind of device, which say nothing of the choice."""
    text = re.sub(r"\n *not \w+: runs on the CPU, the operands are on[^\n]*", "", text)
    return re.sub(r"; rates [^\n]*", "", text).rstrip()


def spread(timed: Timed, kernel: str) -> float:
    """How far the speed-up's median of a third of the rounds lies from that of all, the furthest of the
    three, over it. That is what a repetition would find; single rounds, from the 20th to the 80th percentile,
    lie 10 % apart in half of all problems on a virtual machine of two cores, whatever is measured."""
    speedups = [dense / ours for dense, ours in zip(timed.dense, timed.samples[kernel], strict=True)]
    cuts = [round(third * len(speedups) / 3) for third in range(4)]
    middle = statistics.median(speedups)
    thirds = [statistics.median(speedups[start:end]) for start, end in itertools.pairwise(cuts)]
    return max(abs(third - middle) for third in thirds) / middle

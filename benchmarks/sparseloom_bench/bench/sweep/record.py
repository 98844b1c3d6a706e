"""Makes the record of one problem, however it was timed, and chooses the kernel that the sweep times as
ours."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparseloom import ops
from sparseloom.testing import TileCheck

from ..cells import DENSE_COPY
from ..timing import Spread, ratios, rounded
from .problems import Problem

Record = dict[str, Any]
#: Candidates that the plan expects to take more than this many times the fastest's time are not timed. Nor is
#: the reference kernel, which is there to be right: it takes a hundred times as long as the fastest, seconds
#: each, and would be no surprise.
HOPELESS, REFERENCE = 30.0, "reference"
#: The choice counts as good when it takes at most this many times as long as the fastest.
WITHIN = 1.05


def by_plan(plan: Record) -> str:
    """Returns the plan's own choice."""
    return str(plan["kernel"])


#: Which kernel is timed as ours. A test replaces it by the second best candidate, to see that the sweep
#: notices.
choice: Callable[[Record], str] = by_plan


def with_copy(plan: Record) -> Record:
    """Returns a plan as a layer with ``dense_copy="auto"`` takes it: the copy is a candidate, and the
    choice where it is expected to be faster."""
    if plan["dense_copy_us"] is None:
        return plan
    copy = {"kernel": DENSE_COPY, "refusal": "", "predicted_us": plan["dense_copy_us"]}
    chosen = DENSE_COPY if ops.copy_is_faster(plan) else plan["kernel"]
    return plan | {"kernel": chosen, "candidates": [*plan["candidates"], copy]}


def able(plan: Record) -> list[Record]:
    """Returns the candidates that can run, the fastest by the plan's own prediction first. One without a
    prediction is the only one."""
    can_run = (each for each in plan["candidates"] if not each["refusal"])
    return sorted(can_run, key=lambda each: float(each["predicted_us"] or 0.0))


def predicted_us(plan: Record, kernel: str) -> float:
    """Returns the microseconds that the plan predicts for a kernel that can run; 0 where it predicts none: of
    torch's convolution, where no row runs."""
    found = next(each["predicted_us"] for each in plan["candidates"] if each["kernel"] == kernel)
    return float(found or 0.0)


def named(plan: Record, every: bool, forced: str | None = None) -> list[str]:
    """Returns the kernels to time, the choice first.

    With `every`, these are all candidates that are not hopeless, and `forced`; else the choice alone.
    """
    candidates = [each for each in able(plan) if every and each["kernel"] != REFERENCE]
    limit = HOPELESS * (candidates[0]["predicted_us"] or 0.0) if candidates else 0.0
    hopeful = [each["kernel"] for each in candidates if (each["predicted_us"] or 0.0) <= limit]
    return list(dict.fromkeys([choice(plan), *([forced] if forced and every else []), *hopeful]))


@dataclass
class Timed:
    """What was seen of one problem.

    `samples`: microseconds of a call, by kernel and round; `checks`: the check of each kernel's result;
    `dense`: dense's times of the same rounds; `failed`: kernels that failed, with the reason.
    """

    samples: dict[str, list[float]]
    checks: dict[str, TileCheck]
    dense: list[float]
    failed: dict[str, str] = field(default_factory=dict)


def record_of(problem: Problem, plan: Record, timed: Timed, stored: float) -> Record:
    """Returns the record of a problem. `stored` is the share of the weight's elements that exist, with ragged
    edges taken into account."""
    chosen = choice(plan)
    us, speedup = Spread.of(timed.samples[chosen]), ratios(timed.dense, timed.samples[chosen])
    medians = {kernel: Spread.of(times).median for kernel, times in timed.samples.items()}
    found = timed.checks[chosen]
    record = problem.fields() | {
        "stored": round(stored, 5),
        "kernel": chosen,
        "us": us.rounded(2),
        "dense_us": round(Spread.of(timed.dense).median, 2),
        "speedup": rounded(speedup.median, 4),
        "speedup_spread": speedup.rounded(4),
        "predicted_us": round(predicted_us(plan, chosen), 2),
        "worst_tile_error": found.worst_tile_error,
        "tile_excess": round(max(each.excess for each in timed.checks.values()), 4),  # the worst kernel
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
    """Returns a plan's text without what depends on this machine alone.

    It leaves out the path of the file that the rates are kept in, and the kernels of another kind of device,
    which say nothing about the choice.
    """
    text = re.sub(r"\n *not \w+: runs on the CPU, the operands are on[^\n]*", "", text)
    return re.sub(r"; rates [^\n]*", "", text).rstrip()


def spread(timed: Timed, kernel: str) -> float:
    """Returns how far the median speed-up of a third of the rounds lies from that of all, relatively.

    It is the largest of the three distances: what a repetition would find. The spread of single rounds would
    not do: on a virtual machine of two cores, their 20th and 80th percentiles lie 10 % apart in half of all
    problems, whatever is measured.
    """
    speedups = [dense / ours for dense, ours in zip(timed.dense, timed.samples[kernel], strict=True)]
    cuts = [round(third * len(speedups) / 3) for third in range(4)]
    middle = statistics.median(speedups)
    thirds = [statistics.median(speedups[start:end]) for start, end in itertools.pairwise(cuts)]
    return max(abs(third - middle) for third in thirds) / middle

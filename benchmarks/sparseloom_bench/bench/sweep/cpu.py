"""Measures a problem on the CPU: with fewer tokens where the dense product takes too long, and once more
where the rounds do not agree."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import torch

from sparseloom.timing.busy import BUSY, Watch

from ..results import device_slug
from ..timing import LEAST_ROUNDS, Call, busy_share, interleaved, load_average
from .problems import Problem
from .record import Record, Timed, named, record_of, spread, with_copy

#: Tokens are halved until the dense product takes at most this.
MOST_DENSE_SECONDS = 0.05
#: Seconds of timing, the first and the second time; there are eight rounds at least where those take longer.
SECONDS = (0.15, 0.4)
#: Rounds where dense takes long even for one token. torch's fp16 and bf16 without instructions for them need
#: half a second for the largest layers, a hundred times as long as ours; eight rounds of them would take most
#: of a sweep's time.
LONG_ROUNDS = 3
#: When the speed-up of a third of the rounds is further than this from that of all, the problem is timed once
#: more and then counts as unmeasured.
MOST_SPREAD = 0.05


class Cpu:
    """Measures on this machine's CPU, with torch's number of threads. ``dense_copy`` lets products take a
    dense copy of the weight where Problem.copies allows it."""

    beside_busy = False

    def __init__(self, dense_copy: bool = False) -> None:
        self.slug, self.dense_copy = device_slug(), dense_copy
        load = {"busy_before": round(busy_share(0.2), 3), "load_average": round(load_average(), 2)}
        self.about: dict[str, Any] = {"load": load, "seconds_per_problem": SECONDS[0]}
        self.plan_device = "cpu"

    def fitted(self, problem: Problem) -> Problem:
        """Returns the largest of the problem's sizes whose dense product takes at most MOST_DENSE_SECONDS, or
        the smallest."""
        sizes = problem.sizes()
        at, seconds = 0, dense_seconds(sizes[0])
        while seconds <= MOST_DENSE_SECONDS and at + 1 < len(sizes):
            # The search goes up from the smallest, in strides that fit if twice the tokens take twice the
            # time: going down from many tokens, fp16 would take minutes.
            stride = max(1, int(math.log2(MOST_DENSE_SECONDS / max(seconds, 1e-6))))
            ahead = min(at + stride, len(sizes) - 1)
            took = dense_seconds(sizes[ahead])
            while took > MOST_DENSE_SECONDS and ahead > at + 1:
                ahead -= 1
                took = dense_seconds(sizes[ahead])
            if took > MOST_DENSE_SECONDS:
                break
            at, seconds = ahead, took
        return sizes[at]

    def measure(self, problem: Problem, forced: str | None = None) -> Record:
        """Returns the record, with `unmeasured` when twice the rounds did not agree or others used the CPU.

        `forced`: a kernel to time, with every other candidate.
        """
        every = problem.all_candidates or forced is not None
        with torch.no_grad():
            bench = problem.bench()
            plan = with_copy(bench.plan) if self.dense_copy and problem.copies else bench.plan
            kernels = named(plan, every, forced)
            checks = {kernel: bench.check(kernel) for kernel in kernels}
            long = problem.m == 1 and dense_seconds(problem) > 2 * MOST_DENSE_SECONDS
            least, wrong = LONG_ROUNDS if long else LEAST_ROUNDS, []
            for seconds in SECONDS:
                calls: list[Call] = [partial(bench.sparse, kernel) for kernel in kernels]
                watch = Watch()
                *ours, dense = interleaved([*calls, bench.dense], seconds, least)
                watch.look()
                timed = Timed(dict(zip(kernels, ours, strict=True)), checks, dense)
                record = record_of(problem, plan, timed, bench.stored)
                apart = spread(timed, record["kernel"])
                if apart <= MOST_SPREAD and watch.lost <= BUSY:
                    return self.also(record, calls[0], bench.dense)
                said = f"others took {100 * watch.lost:.0f} % of the CPU time"
                wrong.append(
                    said
                    if watch.lost > BUSY
                    else f"a third of its rounds lies {100 * apart:.1f} % beside all"
                )
        return self.also(record | {"unmeasured": "; then ".join(wrong)}, calls[0], bench.dense)

    def also(self, record: Record, ours: Call, dense: Call) -> Record:
        """Returns the record with what else is measured of a problem: nothing."""
        return record


def dense_seconds(problem: Problem) -> float:
    """Returns the seconds of one warm dense product."""
    product = problem.dense_of_constants()
    with torch.no_grad():
        for _ in range(2):
            start = time.perf_counter()
            product()
            took = time.perf_counter() - start
            if took > 2 * MOST_DENSE_SECONDS:  # more than what a first call costs extra
                break
    return took

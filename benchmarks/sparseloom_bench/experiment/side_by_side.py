"""Runs of runs.py in several processes, on one GPU under NVIDIA MPS or on the cores of a CPU, for a time."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import runs
from .runs import Plan, Run, Training

#: Seconds that a run takes beside its steps: its graph, and its outcome.
BESIDE = 8.0
#: One run out of memory is not the end; a device that is lost is.
FAILURES = 3
#: In a worker: what makes its trainings.
_made: Callable[[Run], Training] | None = None


class Work(NamedTuple):
    """What the processes share. ``maker`` is a function of a module, which each of them calls with
    ``arguments`` to get what makes trainings; ``keep`` says whether checkpoints are written."""

    plan: Plan
    folder: Path
    maker: Callable[..., Callable[[Run], Training]]
    arguments: tuple[Any, ...]
    device: str
    keep: bool = True


def go(
    work: Work, chosen: Sequence[str], only: str, jobs: int, minutes: float, say: Callable[[str], None],
    seconds: Callable[[Run], float | None] = lambda run: None, expected: float = 0.0,
) -> bool:  # fmt: skip
    """Trains what is left of the chosen arms in ``jobs`` processes for some minutes, and returns whether all
    of it is done. A run that fails is told and left; after FAILURES of them it raises the last one's error.

    ``seconds`` are those of a run alone, None where they are not known. Without checkpoints a run begins only
    if it should end in time: as many times slower as those that have ended were, at first ``expected`` times,
    or ``jobs`` times.
    """
    until, slower = time.monotonic() + 60 * minutes, expected or float(jobs)
    began: dict[Future[bool], tuple[Run, float]] = {}
    told: set[Run] = set()
    failed: set[Run] = set()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, _begin, (work,)) as pool:
        while True:
            busy = {run for run, _ in began.values()}
            for run in runs.ready(work.plan, work.folder, chosen, only):
                if len(busy) >= jobs or time.monotonic() >= until:
                    break
                alone = seconds(run)
                late = alone is not None and time.monotonic() + slower * alone + BESIDE > until
                if run in busy | failed:
                    continue
                if late and not work.keep:
                    if run not in told:  # it may begin yet, when others were faster than expected
                        say(f"{run.name}: would not end in time")
                        told.add(run)
                    continue
                began[pool.submit(_train, work, run, until)] = run, time.monotonic()
                busy.add(run)
            if not began:
                return not failed and not runs.ready(work.plan, work.folder, chosen, only)
            for future in wait(began, return_when=FIRST_COMPLETED).done:
                run, since = began.pop(future)
                alone = seconds(run)
                if (error := future.exception()) is not None:
                    failed.add(run)
                    if len(failed) >= FAILURES:
                        raise error
                    say(f"{run.name}: {type(error).__name__}: {error}")
                elif future.result() and alone:
                    slowdown = (time.monotonic() - since - BESIDE) / alone
                    say(f"{run.name}: {slowdown:.1f} times as long as alone, among {len(busy)}")
                    slower = _seen(slower, slowdown, jobs)


def _seen(before: float, now: float, jobs: int) -> float:
    """Returns the factor to expect: half way to what the last run had, between 1 and ``jobs``."""
    return min(float(jobs), max(1.0, (before + now) / 2))


def _begin(work: Work) -> None:
    global _made
    torch.set_num_threads(1)
    _made = work.maker(*work.arguments)


def _train(work: Work, run: Run, until: float) -> bool:
    assert _made is not None

    def say(text: str) -> None:
        print(text, flush=True)

    device = torch.device(work.device)
    return runs.trained(work.plan, work.folder, run, _made, device, until, say, work.keep)


def as_found(times: Mapping[str, float], steps: Callable[[Run], int]) -> Callable[[Run], float | None]:
    """Returns the seconds of a run alone by its arm's milliseconds a step."""

    def seconds(run: Run) -> float | None:
        each = times.get(run.arm)
        return None if each is None else 1e-3 * each * steps(run)

    return seconds

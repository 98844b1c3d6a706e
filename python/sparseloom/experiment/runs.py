"""The protocol of experiments that compare arms: a search of the learning rate on one seed, then the seeds
that count, each run one file in a folder, and resumable."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from .._files import write_whole
from ..errors import Error
from . import checkpoints

#: Learning rates of a search, runs that count, and the part of their steps that a search has.
RATES, SEEDS, SEARCH = (1e-3, 2e-3, 4e-3), 3, 4
#: Seconds between two checkpoints, at least.
SAVE_EVERY = 60.0


class Run(NamedTuple):
    """One training of an arm; ``searching`` is one of the search, at a quarter of the steps."""

    arm: str
    rate: float
    seed: int
    searching: bool

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{self.arm}.rate{self.rate:g}" if self.searching else f"{self.arm}.seed{self.seed}"


class Training(Protocol):
    """A run in progress."""

    step: int
    steps: int

    def train(self, stop: Callable[[], bool], save: Callable[[], None]) -> bool:
        """Trains to the end, and returns True, or until ``stop`` says so; calls ``save`` then."""

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the steps that are left depend on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there. Raises Error for the state of another run or setting."""

    def outcome(self) -> dict[str, Any]:
        """Returns what the run reached, with ``validation``, of which less is better, or None."""

    def kept(self) -> dict[str, Any] | None:
        """Returns what a run that counts leaves for others, or None."""


def searches(arm: str) -> list[Run]:
    """Returns the runs that choose an arm's learning rate."""
    return [Run(arm, each, 0, True) for each in RATES]


def finals(arm: str, rate: float) -> list[Run]:
    """Returns the runs that count."""
    return [Run(arm, rate, seed, False) for seed in range(SEEDS)]


def read(op: str, folder: Path, arms: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Returns the outcomes in a folder: arm -> those of its searches and of its seeds. Raises Error where two
    of them had another setting."""
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    for path in sorted(folder.glob("*.json")):
        outcome = json.loads(path.read_text())
        if isinstance(outcome, dict) and outcome.get("arm") in found and "searching" in outcome:
            found[outcome["arm"]].append(outcome)
    settings = {json.dumps(each["setting"], sort_keys=True) for some in found.values() for each in some}
    if len(settings) > 1:
        got = " and ".join(sorted(settings))
        raise Error(op, "outcomes of one setting", got, "pass another --out")
    return found


def best_rate(outcomes: list[dict[str, Any]]) -> float | None:
    """Returns the learning rate of the search with the best validation; None before all of them are there."""
    searched = [each for each in outcomes if each["searching"]]
    if len(searched) < len(RATES):
        return None
    ordered = sorted((math.inf if each["validation"] is None else each["validation"], each["rate"])
                     for each in searched)  # fmt: skip
    return float(ordered[0][1])


def left(op: str, folder: Path, arms: Sequence[str], chosen: Sequence[str]) -> Iterator[Run]:
    """Yields the runs of the chosen arms that have no outcome yet, one after the other: the learning rate of
    the seeds is known only when the search is done."""
    for arm in chosen:
        for run in searches(arm):
            if not (folder / f"{run.name}.json").exists():
                yield run
        rate = best_rate(read(op, folder, arms)[arm])
        for run in finals(arm, rate) if rate is not None else []:
            if not (folder / f"{run.name}.json").exists():
                yield run


def go(
    op: str, folder: Path, arms: Sequence[str], chosen: Sequence[str], made: Callable[[Run], Training],
    device: torch.device, minutes: float, say: Callable[[str], None],
) -> bool:  # fmt: skip
    """Trains what is left of the chosen arms for some minutes, and returns whether all of it is done. Call it
    again with the same arguments to go on; calls for different arms may run side by side."""
    begin = saved = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    for run in left(op, folder, arms, chosen):
        training, unfinished = made(run), folder / f"{run.name}.checkpoint"
        if unfinished.exists():
            training.load_state_dict(checkpoints.load(op, unfinished, device))
            say(f"{run.name}: goes on at step {training.step} of {training.steps}")

        def save(training: Training = training, unfinished: Path = unfinished) -> None:
            nonlocal saved
            checkpoints.save(unfinished, training.state_dict())
            saved = time.monotonic()

        def stop(save: Callable[[], None] = save) -> bool:
            if time.monotonic() - saved >= SAVE_EVERY:
                save()
            return time.monotonic() - begin >= 60 * minutes

        if not training.train(stop, save):
            say(f"{run.name}: step {training.step} of {training.steps}; run the same command again")
            return False
        outcome, kept = training.outcome(), training.kept()
        if kept is not None:
            checkpoints.save(folder / f"{run.name}.model", kept)
        write_whole(folder / f"{run.name}.json", (json.dumps(outcome, indent=1) + "\n").encode())
        checkpoints.remove(unfinished)
        say(f"{run.name}: validation {outcome['validation']}, {time.monotonic() - begin:.0f} s")
    return True


def spread(values: list[float]) -> tuple[float, float]:
    """Returns the mean and the deviation of the seeds (0 of a single one)."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0

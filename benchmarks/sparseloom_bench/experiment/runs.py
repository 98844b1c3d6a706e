"""The protocol of experiments that compare arms: a search of the learning rate on one seed, then the seeds
that count, each run one file in a folder, and resumable."""

from __future__ import annotations

import gc
import json
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from sparseloom.errors import Error
from sparseloom.io.files import write_whole

from . import checkpoints

#: Runs that count, and the part of their steps that a search has.
SEEDS, SEARCH = 3, 4
#: Seconds between two checkpoints, at least.
SAVE_EVERY = 60.0


class Plan(NamedTuple):
    """The arms of an experiment and the learning rates of its search; ``op`` is its name in errors."""

    op: str
    arms: Sequence[str]
    rates: Sequence[float]


class Run(NamedTuple):
    """One training of an arm; ``searching`` is one of the search, at a quarter of the steps."""

    arm: str
    rate: float
    seed: int
    searching: bool

    @property
    def part(self) -> str:
        """Which of the arm's runs it is."""
        return f"rate{self.rate:g}" if self.searching else f"seed{self.seed}"

    @property
    def name(self) -> str:
        """The name of its files."""
        return f"{self.arm}.{self.part}"


class Training(Protocol):
    """A run in progress."""

    step: int
    steps: int
    losses: list[float]

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


def searches(arm: str, rates: Sequence[float]) -> list[Run]:
    """Returns the runs that choose an arm's learning rate."""
    return [Run(arm, each, 0, True) for each in rates]


def finals(arm: str, rate: float) -> list[Run]:
    """Returns the runs that count."""
    return [Run(arm, rate, seed, False) for seed in range(SEEDS)]


def steps_of(run: Run, steps: int) -> int:
    """Returns the steps of a run whose whole length is ``steps``."""
    return max(1, steps // SEARCH) if run.searching else steps


def read(plan: Plan, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the outcomes in a folder: arm -> those of its searches and of its seeds. Raises Error where two
    of them had another setting. An arm's search may have had other steps than its seeds, whose number can
    follow from how long searches took."""
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in plan.arms}
    for path in sorted(folder.glob("*.json")):
        outcome = json.loads(path.read_text())
        if isinstance(outcome, dict) and outcome.get("arm") in found and "searching" in outcome:
            found[outcome["arm"]].append(outcome)
    every = [each for some in found.values() for each in some]
    searches = [[each for each in some if each["searching"]] for some in found.values()]
    alike = [{_setting(each, steps=False) for each in every}]
    alike += [{_setting(each) for each in every if not each["searching"]}]
    alike += [{_setting(each) for each in some} for some in searches]
    for settings in alike:
        if len(settings) > 1:
            got = " and ".join(sorted(settings))
            raise Error(plan.op, "outcomes of one setting", got, "pass another --out")
    return found


def _setting(outcome: Mapping[str, Any], steps: bool = True) -> str:
    kept = {name: each for name, each in outcome["setting"].items() if steps or name != "steps"}
    return json.dumps(kept, sort_keys=True)


def best_rate(plan: Plan, outcomes: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the learning rate of the search with the best validation; None before all of them are there.
    Raises Error where no search ended with a number."""
    searched = [each for each in outcomes if each["searching"] and each["rate"] in plan.rates]
    if len(searched) < len(plan.rates):
        return None
    numbers = [(each["validation"], each["rate"]) for each in searched if each["validation"] is not None]
    if not numbers:
        rates = ", ".join(f"{each:g}" for each in plan.rates)
        remedy = f"lower the learning rates, which were {rates}"
        raise Error(plan.op, "a search whose losses are numbers", "infinity or NaN in each", remedy)
    return float(min(numbers)[1])


def counted(plan: Plan, outcomes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the outcomes of seeds at the learning rate that the search chose: those of another one, which
    an earlier search had chosen, do not count. None before the search is done."""
    seeds = [each for each in outcomes if not each["searching"]]
    rate = best_rate(plan, outcomes) if seeds else None
    return [each for each in seeds if each["rate"] == rate]


def ready(plan: Plan, folder: Path, chosen: Sequence[str], only: str = ".*") -> list[Run]:
    """Returns the runs without an outcome that may begin now, in the order to begin them in: searches, then
    the first seed of each arm whose search is done, the second, and so on."""
    outcomes = read(plan, folder)
    rates = {arm: best_rate(plan, outcomes[arm]) for arm in chosen}
    found = [run for arm in chosen for run in _missing(searches(arm, plan.rates), folder, only)]
    seeds = [finals(arm, rate) for arm, rate in rates.items() if rate is not None]
    return found + [run for some in zip(*seeds, strict=True) for run in _missing(list(some), folder, only)]


def left(plan: Plan, folder: Path, chosen: Sequence[str], only: str = ".*") -> Iterator[Run]:
    """Yields the runs of the chosen arms whose parts match ``only`` and that have no outcome yet, one after
    the other: the learning rate of the seeds is known only when the search is done. Raises Error where
    seeds alone are asked for before."""
    for arm in chosen:
        yield from _missing(searches(arm, plan.rates), folder, only)
        if not any(re.fullmatch(only, run.part) for run in finals(arm, 0.0)):
            continue
        rate = best_rate(plan, read(plan, folder)[arm])
        if rate is None:
            got = ", ".join(run.name for run in _missing(searches(arm, plan.rates), folder, ".*"))
            expected = f"a search at {len(plan.rates)} learning rates"
            raise Error(plan.op, expected, f"no {got}", "run it with --only 'rate.*' first")
        yield from _missing(finals(arm, rate), folder, only)


def _missing(runs: list[Run], folder: Path, only: str) -> Iterator[Run]:
    for run in runs:
        path = folder / f"{run.name}.json"
        # a seed's name does not say its learning rate
        if re.fullmatch(only, run.part) and not (
            path.exists() and json.loads(path.read_text())["rate"] == run.rate
        ):
            yield run


def go(
    plan: Plan, folder: Path, chosen: Sequence[str], made: Callable[[Run], Training], setting: Any,
    device: torch.device, minutes: float, say: Callable[[str], None], only: str = ".*",
) -> bool:  # fmt: skip
    """Trains what is left of the chosen arms for some minutes, and returns whether all of it is done. Call it
    again with the same arguments to go on; calls for different arms, or other ``only``, may run side by side.
    Raises Error before the first run where the folder has outcomes of another ``setting``, a dataclass.
    """
    begin = time.monotonic()
    require_setting(plan, folder, setting)
    for run in left(plan, folder, chosen, only):
        if not trained(plan, folder, run, made, device, begin + 60 * minutes, say):
            return False
    return True


def require_setting(plan: Plan, folder: Path, setting: Any) -> None:
    """Makes the folder. Raises Error where it has outcomes of another ``setting``, a dataclass. A search that
    is done may have had other steps."""
    folder.mkdir(parents=True, exist_ok=True)
    mine = {"setting": asdict(setting)}
    for outcomes in read(plan, folder).values():
        done = sum(each["searching"] for each in outcomes) >= len(plan.rates)
        for outcome in outcomes:
            steps = not (done and outcome["searching"])
            if (got := _setting(outcome, steps)) != (wanted := _setting(mine, steps)):
                raise Error(plan.op, f"outcomes of {wanted}", f"{got} in {folder}", "pass another --out")


def trained(
    plan: Plan, folder: Path, run: Run, made: Callable[[Run], Training], device: torch.device, until: float,
    say: Callable[[str], None], keep: bool = True,
) -> bool:  # fmt: skip
    """Trains one run to its end, and returns True, or until a time of ``time.monotonic``. ``keep``: with
    checkpoints, from which a run that stopped goes on."""
    try:
        return _trained(plan, folder, run, made, device, until, say, keep)
    finally:
        release(device)


def _trained(
    plan: Plan, folder: Path, run: Run, made: Callable[[Run], Training], device: torch.device, until: float,
    say: Callable[[str], None], keep: bool,
) -> bool:  # fmt: skip
    begin = saved = time.monotonic()
    training, unfinished = made(run), folder / f"{run.name}.checkpoint"
    if unfinished.exists():
        training.load_state_dict(checkpoints.load(plan.op, unfinished, device))
        say(f"{run.name}: goes on at step {training.step} of {training.steps}")

    def save() -> None:
        nonlocal saved
        if keep:
            checkpoints.save(unfinished, training.state_dict())
        saved = time.monotonic()

    def stop() -> bool:
        if time.monotonic() - saved >= SAVE_EVERY:
            save()
            say(f"{run.name}: step {training.step} of {training.steps}, loss {training.losses[-1]:.4f}")
        return time.monotonic() >= until

    if not training.train(stop, save):
        say(f"{run.name}: step {training.step} of {training.steps}; run the same command again")
        return False
    save()  # a stop while the run is judged costs no step
    outcome, kept = training.outcome(), training.kept()
    if kept is not None:
        checkpoints.save(folder / f"{run.name}.model", kept)
    write_whole(folder / f"{run.name}.json", (json.dumps(outcome, indent=1) + "\n").encode())
    checkpoints.remove(unfinished)
    say(f"{run.name}: validation {outcome['validation']}, {time.monotonic() - begin:.0f} s")
    return True


def release(device: torch.device) -> None:
    """Frees what the run before held. A training and its CUDA graph refer to each other: without this they
    would stay while the next run captures, or be freed in the middle of a capture, which CUDA refuses."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def spread(values: list[float]) -> tuple[float, float]:
    """Returns the mean and the deviation of the seeds (0 of a single one)."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def improves(losses: Sequence[float | None]) -> float:
    """Returns by how many percent the last tenth of a run lies below the tenth before it."""
    known = [each for each in losses if each is not None]
    tenth = max(1, len(known) // 10)
    if len(known) < 2 * tenth:
        return math.inf
    before, last = (statistics.mean(part) for part in (known[-2 * tenth : -tenth], known[-tenth:]))
    return 100 * (1 - last / before)

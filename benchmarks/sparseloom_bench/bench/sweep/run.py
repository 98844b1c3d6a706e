"""Runs a sweep as a whole: measures problems in turn until they are done or the time is up, and writes a
results file that grows with them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple, Protocol

from tqdm import tqdm

from sparseloom.errors import Error

from ..gpu.measure import DeadContext, one_line
from ..gpu.run import CELL_LIMIT, SAVE_EVERY, start_again
from ..results import header, write_results
from . import attention, conv, layouts, problems, record, semi24, tiles
from .problems import Problem
from .record import Record
from .scores import digest
from .summary import WORST, worst


class Family(NamedTuple):
    """A family of weights: how its problems are drawn, and of which class they are."""

    draw: Callable[[int, int], Problem]
    kind: type[Problem]


FAMILIES = {
    "bsr": Family(problems.draw, Problem),
    "semi24": Family(semi24.draw, semi24.Semi24Problem),
    "tiles": Family(tiles.draw, tiles.TilesProblem),
    **{name: Family(layouts.draw_of(name), layouts.LayoutProblem) for name in layouts.FAMILIES},
    "bsr_conv": Family(conv.draw, conv.ConvProblem),
    "attention": Family(attention.draw, attention.AttentionProblem),
}
#: With --kernel: how many problems in a row the kernel may refuse before it counts as one that takes none.
MOST_DRAWS = 200


class Device(Protocol):
    """The device that times a problem: Cpu or Gpu."""

    slug: str
    about: Record
    plan_device: str
    dense_copy: bool
    beside_busy: bool

    def fitted(self, problem: Problem) -> Problem: ...

    def measure(self, problem: Problem, forced: str | None = None) -> Record: ...


class Sweep:
    """Measures problems and writes their records to one results file.

    A file that already exists is continued when it has the same seed, family, kernel, commit, choice, masks,
    allowance of dense copies and neighbours.
    """

    def __init__(
        self, device: Device, seed: int, kernel: str | None, folder: Path, name: str, family: str = "bsr"
    ) -> None:
        self.device, self._folder, self._name = device, folder, name
        chosen = record.choice.__name__
        about = {"suite": "sweep", "family": family, "seed": seed, "kernel": kernel, "choice": chosen}
        about["demo_scores"] = (
            digest() if family == "bsr" else None
        )  # the others have none of the demo's masks
        about |= {"dense_copy": device.dense_copy, "beside_busy": device.beside_busy}
        self.head: Record = header("burst", device.slug) | device.about | about
        self.records: list[Record] = []
        self._saved = time.monotonic()
        path = folder / device.slug / f"{name}.json"
        if path.is_file():
            before = json.loads(path.read_text())
            if all(before.get(key) == self.head[key] for key in ("commit", *about)):
                self.records = before.pop("records")
                self.head = before

    def drawn(self) -> Iterator[Problem]:
        """Yields the problems of the seed, in order, from where the records end.

        Their tokens are fitted to the device; with a kernel, only those that it takes are yielded. Raises
        Error when it refuses MOST_DRAWS of them in a row.
        """
        seed, kernel = self.head["seed"], self.head["kernel"]
        refused = 0
        for index in count(1 + max((each["index"] for each in self.records), default=-1)):
            problem = self.device.fitted(FAMILIES[self.head["family"]].draw(seed, index))
            if kernel is None:
                yield problem
            elif not (why := self._refusal(problem, kernel)):
                refused = 0
                yield problem
            elif (refused := refused + 1) >= MOST_DRAWS:
                remedy = "`sparseloom info` says which kernels run here"
                got = f"{refused} refused, the last: {why}"
                raise Error("bench sweep", f"a problem that {kernel} takes", got, remedy)

    def _refusal(self, problem: Problem, kernel: str) -> str:
        """Returns why the kernel does not take the problem; empty when it does."""
        plan = problem.plan(self.device.plan_device)
        found = [each["refusal"] for each in plan["candidates"] if each["kernel"] == kernel]
        return str(found[0]) if found else "no candidate of this build"

    def measure(
        self, problems: Iterable[Problem], wanted: int, seconds: float, again: Callable[[float], list[str]]
    ) -> None:
        """Measures problems until there are `wanted` records or `seconds` have passed.

        When the CUDA context of this process breaks, a new process goes on: `again` returns its arguments,
        given the seconds left.
        """
        start = time.monotonic()

        def left() -> float:
            return seconds - (time.monotonic() - start)

        def go_on(death: DeadContext) -> None:
            self._add(death.record)
            self.save()
            start_again(death, again(left()))

        source = iter(problems)
        with tqdm(total=wanted, initial=len(self.records), unit="problem", disable=None) as bar:
            while len(self.records) < wanted and left() > 0 and (problem := next(source, None)) is not None:
                bar.set_postfix_str(str(problem))
                never_ended = problem.fields() | {"error": f"did not end within {CELL_LIMIT:.0f} s"}
                watch = threading.Timer(CELL_LIMIT, go_on, [DeadContext(never_ended)])
                watch.daemon = True
                if self.device.plan_device != "cpu":  # a CPU kernel that never ends can be interrupted
                    watch.start()
                try:
                    self._add(self._measured(problem))
                except DeadContext as death:
                    go_on(death)
                finally:
                    watch.cancel()
                bar.update()
                if time.monotonic() - self._saved > SAVE_EVERY:
                    self.save()
        self.head["seconds"] = round(self.head.get("seconds", 0.0) + time.monotonic() - start, 1)

    def _measured(self, problem: Problem) -> Record:
        """Returns the record, or one with the `error` of a problem that could not be measured. Raises
        DeadContext."""
        began = time.monotonic()
        try:
            found = self.device.measure(problem, self.head["kernel"])
        except DeadContext:
            raise
        except Exception as error:
            found = problem.fields() | {"error": one_line(error)}
        return found | {"seconds": round(time.monotonic() - began, 3)}

    def _add(self, found: Record) -> None:
        """Adds a record and keeps plans' texts with the worst problems only: those are what a text explains,
        and the texts of all the others would fill the file."""
        self.records.append(found)
        kept = {each["index"] for each in worst(self.records, WORST)}
        for each in self.records:
            if each["index"] not in kept:
                each.pop("plan", None)

    def save(self) -> Path:
        """Writes the records so far. Raises Error when that fails."""
        self._saved = time.monotonic()
        return write_results(self._folder, self._name, self.head, self.records)


def replayed(records: Iterable[Record], done: Iterable[Record], family: str) -> Iterator[Problem]:
    """Yields the problems of another sweep's records that have no record yet, with the tokens they had
    there."""
    there = {each["index"] for each in done}
    for each in records:
        if each["index"] not in there:
            yield problems.problem_of(each, FAMILIES[family].kind)

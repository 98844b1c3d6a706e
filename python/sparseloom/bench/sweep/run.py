"""A sweep as a whole: problems in turn until they are done or the time is up, and a results file that grows
with them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Protocol

from tqdm import tqdm

from ... import ops
from ...errors import Error
from ...nn.state import build_index
from ..cells import DTYPES
from ..gpu.measure import DeadContext, one_line
from ..gpu.run import CELL_LIMIT, SAVE_EVERY, start_again
from ..results import header, write_results
from . import record
from .problems import Problem, draw, problem_of
from .record import Record
from .scores import digest
from .summary import WORST, worst

#: With --kernel: problems drawn for each one wanted before the kernel counts as one that takes none of them.
MOST_DRAWS = 200


class Device(Protocol):
    """What times a problem: Cpu or Gpu."""

    slug: str
    about: Record
    plan_device: str

    def fitted(self, problem: Problem) -> Problem: ...

    def measure(self, problem: Problem, forced: str | None = None) -> Record: ...


class Sweep:
    """One results file in the making. A file that is there already, of the same seed, kernel, commit, choice
    and masks, is gone on with."""

    def __init__(self, device: Device, seed: int, kernel: str | None, folder: Path, name: str) -> None:
        self.device, self._folder, self._name = device, folder, name
        chosen = record.choice.__name__
        about = {"suite": "sweep", "seed": seed, "kernel": kernel, "choice": chosen, "demo_scores": digest()}
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
        """The problems of the seed, in order, from where the records end, with as many tokens as the device
        is given; with a kernel, those that it takes. Raises Error when it takes none of very many."""
        seed, kernel = self.head["seed"], self.head["kernel"]
        refused = 0
        for index in count(1 + max((each["index"] for each in self.records), default=-1)):
            problem = self.device.fitted(draw(seed, index))
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
        """Why the kernel does not take it; empty where it does."""
        index = build_index(problem.case().make_pattern())
        what = (problem.direction, DTYPES[problem.dtype], problem.m)
        plan = ops.plan(index, *what, device=self.device.plan_device)
        found = [each["refusal"] for each in plan["candidates"] if each["kernel"] == kernel]
        return str(found[0]) if found else "no candidate of this build"

    def measure(
        self, problems: Iterable[Problem], wanted: int, seconds: float, again: Callable[[float], list[str]]
    ) -> None:
        """Until there are `wanted` records or `seconds` have passed. `again`: the arguments of a process that
        goes on, with so many seconds left, where this one's GPU context died."""
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
                if self.device.plan_device != "cpu":  # a CPU's kernel that never ends can be interrupted
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
        """The record, or one with the `error` of a problem that could not be measured. Raises DeadContext."""
        began = time.monotonic()
        try:
            found = self.device.measure(problem, self.head["kernel"])
        except DeadContext:
            raise
        except Exception as error:
            found = problem.fields() | {"error": one_line(error)}
        return found | {"seconds": round(time.monotonic() - began, 3)}

    def _add(self, found: Record) -> None:
        """Plans' texts stay with the worst problems only: they are what a text explains, and all the others
        would fill the file."""
        self.records.append(found)
        kept = {each["index"] for each in worst(self.records, WORST)}
        for each in self.records:
            if each["index"] not in kept:
                each.pop("plan", None)

    def save(self) -> Path:
        """Writes what there is. Raises Error when that fails."""
        self._saved = time.monotonic()
        return write_results(self._folder, self._name, self.head, self.records)


def replayed(records: Iterable[Record], done: Iterable[Record]) -> Iterator[Problem]:
    """The problems of another sweep's records, with the tokens they had there, that have no record yet."""
    there = {each["index"] for each in done}
    for each in records:
        if each["index"] not in there:
            yield problem_of(each)

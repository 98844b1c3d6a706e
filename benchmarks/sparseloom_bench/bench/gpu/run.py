"""Runs the suite as a whole: it runs the jobs in order, writes a results file that grows with them, and
starts a new process when a kernel broke the CUDA context."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tqdm import tqdm

from sparseloom.errors import Error

from ..results import header, write_results
from ..timing import busy_share, load_average
from .device import Monitor, describe, require_gpu, slug
from .jobs import Job
from .measure import DeadContext, Record, Settings

#: Seconds between two writes of the growing results file: a run that is stopped from outside loses no more
#: than these.
SAVE_EVERY = 15.0
#: Seconds after which a cell is given up: a kernel that never ends would otherwise block the whole run. The
#: slowest part, the compiled MLP, should take some forty.
CELL_LIMIT = 120.0
#: When torch has reserved more than this share of the GPU's memory, what graphs of former cells kept is given
#: back. Doing so always would cost 0.1 s a cell.
RESERVED_LIMIT = 0.3


class Run:
    """Runs jobs and writes their records to one results file."""

    def __init__(self, folder: Path, name: str, seconds: float, peers: bool, resume: bool) -> None:
        device = require_gpu()
        monitor = Monitor(device)
        gpu = describe(device, monitor)
        self.settings = Settings(device, gpu["l2_bytes"], seconds, peers, monitor)
        self.records: list[Record] = []
        self._folder, self._name, self._saved = folder, name, time.monotonic()
        self.head = header("burst", slug(gpu["name"])) | {
            "suite": "gpu",
            "gpu": gpu,
            "seconds_per_cell": seconds,
            "load": {"busy_before": round(busy_share(0.2), 3), "load_average": round(load_average(), 2)},
        }
        if resume:
            self._resume(folder / str(self.head["device"]) / f"{name}.json")

    def _resume(self, path: Path) -> None:
        """Takes up the records of that file.

        Raises Error when there is none, or when it is of another commit.
        """
        if not path.is_file():
            raise Error("bench", "a results file to go on with", f"no {path}", "run without --resume")
        before = json.loads(path.read_text())
        if before["commit"] != self.head["commit"]:
            raise Error(
                "bench",
                f"results of commit {self.head['commit']}",
                str(before["commit"]),
                "run without --resume",
            )
        self.records = before.pop("records")
        self.head = before

    def measure(self, jobs: list[Job]) -> None:
        """Runs every job that has no record yet.

        Raises DeadContext after its record was saved. A job that does not end is recorded, and a new process
        goes on.
        """
        start = time.monotonic()
        with tqdm([job for job in jobs if not job.done(self.records)], unit="cell", disable=None) as bar:
            for job in bar:
                bar.set_postfix_str(str(job))
                self._trim()
                watch = threading.Timer(CELL_LIMIT, self._give_up, [job])
                watch.daemon = True
                watch.start()
                try:
                    self._measured(lambda job=job: job.run(self.settings))  # type: ignore[misc]
                finally:
                    watch.cancel()
        self.head["seconds"] = round(self.head.get("seconds", 0.0) + time.monotonic() - start, 1)
        self.head["gpu"]["clock_mhz_at_end"] = self.settings.monitor.clock_mhz()

    def _trim(self) -> None:
        if torch.cuda.memory_reserved() > RESERVED_LIMIT * self.head["gpu"]["memory_bytes"]:
            torch.cuda.empty_cache()

    def _give_up(self, job: Job) -> None:
        """Records that the job did not end and starts again; runs in another thread, while the measuring one
        waits for the GPU."""
        death = DeadContext(job.fields | {"error": f"did not end within {CELL_LIMIT:.0f} s"})
        self.records.append(death.record)
        self.save()
        start_again(death)

    def _measured(self, one: Callable[[], Record]) -> None:
        try:
            self.records.append(one())
        except DeadContext as death:
            self.records.append(death.record)
            self.save()
            raise
        if time.monotonic() - self._saved > SAVE_EVERY:
            self.save()

    def save(self) -> Path:
        """Writes the records so far. Raises Error when that fails."""
        self._saved = time.monotonic()
        return write_results(self._folder, self._name, self.head, self.records)


def start_again(death: DeadContext, arguments: list[str] | None = None) -> None:
    """Replaces this process, whose CUDA context is unusable, by one that goes on with the next cell.

    `arguments` are the new process's, by default this one's with --resume. Does not return.
    """
    print(
        f"sparseloom bench: the GPU context died and a new process goes on: {death}",
        file=sys.stderr,
        flush=True,
    )
    if arguments is None:
        arguments = [*(argument for argument in sys.argv[1:] if argument != "--resume"), "--resume"]
    os.execv(sys.executable, [sys.executable, "-m", "sparseloom", *arguments])

"""What campaigns have done so far: bench/results/campaigns/NAME.json, to which every run adds."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parents[2] / "bench" / "results" / "campaigns"
#: So many findings of one run are kept in words; all are counted.
KEPT = 20


def machine(gpu: str = "") -> str:
    """Returns the CPU's name, the number of cores that this process may use, and the name of a ``gpu``."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    return f"{name}, {len(os.sched_getaffinity(0))} cores" + (f", {gpu}" if gpu else "")


def commit() -> str:
    """Returns the commit of the tree, with "+" if files of the product differ from it."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=here, capture_output=True, text=True, check=False
        ).stdout.strip()

    product = ("../../src", "../../include", "../../bindings", "../../python")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *product)
    return git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")


@dataclass
class Run:
    """One run: seeds from ``first`` up to ``next``, exclusive. ``counts``: cases by their kind."""

    first: int
    next: int = 0
    seconds: float = 0.0
    machine: str = field(default_factory=machine)
    commit: str = field(default_factory=commit)
    counts: dict[str, int] = field(default_factory=dict)
    found: int = 0
    findings: list[str] = field(default_factory=list)

    def add(self, counts: dict[str, int]) -> None:
        for kind, count in counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + count

    def report(self, seed: int, text: str) -> None:
        self.found += 1
        if len(self.findings) < KEPT:
            self.findings.append(f"seed {seed}: {text}"[:600])

    @property
    def cases(self) -> int:
        return sum(self.counts.values())


class Record:
    """The record of one campaign. ``path`` None: nothing is read or written."""

    def __init__(self, name: str, path: Path | None) -> None:
        self.name, self.path = name, path
        empty: dict[str, Any] = {"campaign": name, "runs": [], "mended": []}
        self.data = json.loads(path.read_text()) if path is not None and path.exists() else empty
        self._before = list(self.data["runs"])

    @property
    def next_seed(self) -> int:
        return max((run["next"] for run in self._before), default=0)

    def write(self, run: Run) -> None:
        """Writes the record with ``run`` as its last one; called again, with the run as it is by then."""
        row = {**vars(run), "seconds": round(run.seconds, 1), "counts": dict(sorted(run.counts.items()))}
        self.data["runs"] = [*self._before, row]
        runs = self.data["runs"]
        self.data["cases"] = sum(sum(each["counts"].values()) for each in runs)
        self.data["minutes"] = round(sum(each["seconds"] for each in runs) / 60, 1)
        self.data["found"] = sum(each["found"] for each in runs)
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps(self.data, indent=1) + "\n")
        beside.replace(self.path)

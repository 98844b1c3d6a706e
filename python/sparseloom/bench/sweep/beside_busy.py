"""Measures a problem on the CPU quietly, then beside one busy process a core: whether ours loses more by such
neighbours than torch's dense product does (`bench sweep --beside-busy`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ...timing.busy import BUSY, Watch
from ..timing import Call, interleaved
from .cpu import Cpu
from .record import Record

#: Ours over dense, beside the busy processes, may be at most this many times what it is without them.
MOST = 1.5
#: Seconds of timing: of the quiet and of the busy rounds each, and once more, longer, where MOST was passed.
#: A thread that waits for a core waits some milliseconds, and a sample holds few such waits: 0.3 s of them
#: move a ratio by a third at times.
SECONDS = (0.3, 1.5)
#: Spins until it is killed or its parent ends.
_SPIN = (
    "import os\nparent = os.getppid()\nprint('spins', flush=True)\n"
    "while os.getppid() == parent:\n    sum(range(100_000))"
)


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def busy_processes(many: int) -> Iterator[None]:
    """Keeps as many processes spinning, of this one's priority and bound to no core."""
    command = [sys.executable, "-S", "-c", _SPIN]
    spinning = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(many)]
    try:
        for each in spinning:
            assert each.stdout is not None
            each.stdout.readline()
        yield
    finally:
        for each in spinning:
            each.kill()
            each.communicate()


class BesideBusy(Cpu):
    """Measures as Cpu does, and each problem's choice beside busy processes too: records have
    ``beside_busy``, with ours over dense ``quiet`` and ``busy``, and the ``quotient`` of the two."""

    beside_busy = True

    def __init__(self, dense_copy: bool = False) -> None:
        super().__init__(dense_copy)
        self.about["busy_processes"] = cores()

    def also(self, record: Record, ours: Call, dense: Call) -> Record:
        for seconds in SECONDS:
            watch = Watch()
            quiet = _ratio(ours, dense, seconds)
            watch.look()
            with busy_processes(self.about["busy_processes"]):
                busy = _ratio(ours, dense, seconds)
            over = {"quiet": quiet, "busy": busy, "quotient": busy / quiet}
            if over["quotient"] <= MOST and watch.lost <= BUSY:
                break
        record = record | {"beside_busy": {name: round(ratio, 4) for name, ratio in over.items()}}
        if watch.lost <= BUSY:
            return record
        return record | {"unmeasured": f"others took {100 * watch.lost:.0f} % of the quiet rounds' CPU time"}


def _ratio(ours: Call, dense: Call, seconds: float) -> float:
    """Returns ours over dense, called in turn: the time of all calls of one over that of the other's. The
    median of the rounds would not see the waits, where a call is so short that most have none."""
    times, dense_times = interleaved([ours, dense], seconds)
    return sum(times) / sum(dense_times)

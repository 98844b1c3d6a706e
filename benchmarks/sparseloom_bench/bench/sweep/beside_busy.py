"""Measures a problem on the CPU quietly, then beside one busy process a core: whether ours loses more by such
neighbours than torch's dense product does (`bench sweep --beside-busy`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sparseloom.timing.busy import BUSY, Watch

from ..timing import Call, interleaved, ratios, rounded
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
    ``beside_busy``, with ours over dense ``quiet`` and ``busy``, and the ``quotient`` of the two. Those are
    medians of the rounds; ``of_sums`` is the quotient of whole times, and ``lost`` the share of the CPU time
    that others took in the quiet rounds."""

    beside_busy = True

    def __init__(self, dense_copy: bool = False) -> None:
        super().__init__(dense_copy)
        self.about["busy_processes"] = cores()

    def also(self, record: Record, ours: Call, dense: Call) -> Record:
        for seconds in SECONDS:
            watch = Watch()
            quiet = _ratios(ours, dense, seconds)
            watch.look()
            with busy_processes(self.about["busy_processes"]):
                busy = _ratios(ours, dense, seconds)
            found = {"quiet": quiet[0], "busy": busy[0], "quotient": busy[0] / quiet[0]}
            found |= {"of_sums": busy[1] / quiet[1], "lost": watch.lost}
            if found["quotient"] <= MOST and watch.lost <= BUSY:
                break
        return record | {"beside_busy": {name: rounded(value, 4, 4) for name, value in found.items()}}


def counts(record: Record) -> bool:
    """Returns whether the record says how ours fares beside busy processes: whether it was quiet without."""
    return "beside_busy" in record and record["beside_busy"]["lost"] <= BUSY


def _ratios(ours: Call, dense: Call, seconds: float) -> tuple[float, float]:
    """Returns ours over dense, called in turn: the median of the rounds, and all rounds of one over those of
    the other. The second has the waits that less than half of the calls have; of those a call of ours has
    more the longer dense takes, since it asks now and then anew whether threads come in time
    (Executor::late_us)."""
    # Beside busy processes, waking the threads would take the time that is to be measured.
    times, dense_times = interleaved([ours, dense], seconds, settled=False)
    return ratios(times, dense_times).median, sum(times) / sum(dense_times)

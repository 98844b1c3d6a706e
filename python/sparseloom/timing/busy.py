"""Tells whether a measurement had the machine to itself.

It times a fixed loop on torch's threads before, between and after the measurement. Neither the load average
nor /proc/stat would do: inside a container both are the host's, the first still counts what ended a minute
ago, and neither sees a limit on the container's own CPU time. The loop sees what the products see. It cannot
see what slows every round of it alike, such as a neighbour on the same physical core.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cache, partial

from .. import ops

#: Rounds of multiplying registers, which take a millisecond on every thread: shorter than a time slice, so
#: that some rounds are undisturbed.
_SPIN = 300_000
_ROUNDS = 20
_WAKING_SPIN = 1000
#: Above this share medians move by more than layers differ by. Two processes that spin beside two threads
#: take half.
BUSY = 0.2


class Watch:
    """Times the loop when made and whenever asked to."""

    def __init__(self) -> None:
        rate = _register_rate()
        # Without these rates, the loop runs on the calling thread alone.
        self._loop: Callable[[], object] = (
            partial(sum, range(50_000)) if rate is None else partial(ops.call, "spin_registers", rate, _SPIN)
        )
        self._times: list[float] = []
        self._loop()
        self.look()

    def look(self) -> None:
        """Times some twenty milliseconds of the loop."""
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            self._loop()
            self._times.append(time.perf_counter() - start)

    @property
    def lost(self) -> float:
        """The share of CPU time that something else took, 0 to 1: how far the mean round is from the
        fastest."""
        return 1 - min(self._times) / statistics.fmean(self._times)


def wake_threads() -> None:
    """Gives each of torch's threads some microseconds of work. Those that had none for some milliseconds
    sleep; on a virtual machine they then come up to half a millisecond late. Does nothing on a CPU of which
    no such loop is known."""
    rate = _register_rate()
    if rate is not None:
        ops.call("spin_registers", rate, _WAKING_SPIN)


@cache
def _register_rate() -> str | None:
    """Returns the rate whose loop of multiplications this CPU runs, or None."""
    rates = ops.info()["rates"]
    return next((name for name in ("f32_avx512", "f32_avx2") if rates.get(name, 0) > 0), None)


def loud(lost: float) -> str:
    """Returns the line that stands above figures of a busy machine; "" where it was not busy."""
    if lost <= BUSY:
        return ""
    return (
        f"!!! BUSY MACHINE: {100 * lost:.0f} % of the CPU time went to other "
        "work, or to a limit of this process's own, while "
        "this was measured. Do not trust the times below: measure again when the machine is idle. !!!"
    )

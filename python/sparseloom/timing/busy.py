"""Says whether a measurement had the machine to itself.

It times a fixed loop on torch's threads before, between and after the measurement. The load average and
/proc/stat would not do: inside a container both are the host's, the first still counts work that ended a
minute ago, and neither shows a limit on the container's own CPU time. The loop is slowed by whatever slows
the products. It does not show what slows all its rounds alike, such as a neighbour on the same physical core.
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
#: Above this share, medians move by more than the difference between layers. Two busy processes beside two
#: threads take half.
BUSY = 0.2


class Watch:
    """Times the loop when it is constructed and in each call of ``look``."""

    def __init__(self) -> None:
        rate = _register_rate()
        # without these rates, the loop runs on the calling thread alone
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

    @property
    def recent(self) -> float:
        """The same share since the look before the last one: that of what was measured in between."""
        return 1 - min(self._times) / statistics.fmean(self._times[-2 * _ROUNDS :])


def wake_threads() -> None:
    """Gives each of torch's threads some microseconds of work. Threads that had none for some milliseconds
    sleep; on a virtual machine they then start up to half a millisecond late. Does nothing on a CPU for which
    no such loop is known."""
    rate = _register_rate()
    if rate is not None:
        ops.call("spin_registers", rate, _WAKING_SPIN)


@cache
def _register_rate() -> str | None:
    """Returns the name of the rate whose loop of multiplications this CPU can run, or None."""
    rates = ops.info()["rates"]
    return next((name for name in ("f32_avx512", "f32_avx2") if rates.get(name, 0) > 0), None)


def loud(lost: float) -> str:
    """Returns the line above figures that were measured on a busy machine; "" if it was not busy."""
    if lost <= BUSY:
        return ""
    return (
        f"!!! BUSY MACHINE: {100 * lost:.0f} % of the CPU time went to other "
        "work, or to a limit of this process's own, while "
        "this was measured. Do not trust the times below: measure again when the machine is idle. !!!"
    )

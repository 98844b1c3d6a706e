"""Whether a measurement had the machine to itself: a fixed loop on torch's threads, timed before, between and
after it.

Not the load average, nor /proc/stat: inside a container both are the host's, the first still counts what
ended a minute ago, and neither sees a limit on the container's own CPU time. The loop sees what the products
see. What slows every round of it alike, a neighbour on the same physical core, say, is seen by none of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

from .. import ops

#: Of registers multiplied, a millisecond on every thread: shorter than a time slice, so that some rounds are
#: undisturbed.
_SPIN = 300_000
_ROUNDS = 20
#: Above this share medians move by more than what layers differ by. Two processes that spin beside two
#: threads take half.
BUSY = 0.2


class Watch:
    """Looks at the machine when made and whenever asked to."""

    def __init__(self) -> None:
        rate = next(
            (name for name in ("f32_avx512", "f32_avx2") if ops.info()["rates"].get(name, 0) > 0), None
        )
        # Elsewhere the calling thread alone is watched.
        self._loop: Callable[[], object] = (
            partial(sum, range(50_000)) if rate is None else partial(ops.call, "spin_registers", rate, _SPIN)
        )
        self._times: list[float] = []
        self._loop()
        self.look()

    def look(self) -> None:
        """Some twenty milliseconds of the loop."""
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            self._loop()
            self._times.append(time.perf_counter() - start)

    @property
    def lost(self) -> float:
        """The share of CPU time that something else took, 0 to 1: how far the mean round is from the
        fastest."""
        return 1 - min(self._times) / statistics.fmean(self._times)


def loud(lost: float) -> str:
    """What stands above figures of a busy machine; "" where it was not."""
    if lost <= BUSY:
        return ""
    return (
        f"!!! BUSY MACHINE: {100 * lost:.0f} % of the CPU time went to other "
        "work, or to a limit of this process's own, while "
        "this was measured. Do not trust the times below: measure again when the machine is idle. !!!"
    )

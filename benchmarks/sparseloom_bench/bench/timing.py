"""Times calls so that a noisy machine distorts the result least: all contenders in turn, medians and spread;
and tells how busy the machine was."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from sparseloom.timing.busy import wake_threads
from sparseloom.timing.rounds import Spread as Spread
from sparseloom.timing.rounds import ratios as ratios
from sparseloom.timing.rounds import rounded as rounded

Call = Callable[[], object]

# One sample lasts at least this long: the clock itself costs 0.1 us, and a scheduler's interruption some
# tens.
SAMPLE_SECONDS = 200e-6
# Even, so that of three calls both others follow the longest one equally often.
LEAST_ROUNDS = 8
_DRAWN_ORDERS = 24
# A shorter call runs once untimed behind a longer one.
_SHORT_SECONDS = 1e-3
#: Counts as much as a pair that was seen this often, squared: no call follows itself where there are others.
_FAR = 10_000


def interleaved(
    calls: list[Call], seconds: float, least: int = LEAST_ROUNDS, settled: bool = True
) -> list[list[float]]:
    """Times all calls in turn and returns the microseconds of one call, per call and round.

    Every round runs each call once (short ones repeatedly, to fill a sample), so that samples of one index
    belong together: a clock change or a neighbour affects all of them alike. Each call follows each other
    one about equally often: a call that always followed the dense product found its caches emptied, and lost
    10 to 30 % by that. There are at least `least` rounds.

    `settled`: before each sample torch's threads get some work, as they have in a loop of layers: behind one
    of torch's naive 16-bit products, which run on one thread for tens of milliseconds, the other thread
    slept, and a call took three times its time. And a call of less than a millisecond runs once untimed
    where the sample before took longer: else that one's operands, the dense weight, decided what the caches
    still held of it.
    """
    orders = _orders(len(calls))
    repeats = []
    for call in calls:
        call()  # makes plans, touches pages, fills caches
        start = time.perf_counter()
        call()
        repeats.append(max(1, round(SAMPLE_SECONDS / max(time.perf_counter() - start, 1e-7))))
    samples: list[list[float]] = [[] for _ in calls]
    before = 0.0  # seconds that the last sample took
    end = time.perf_counter() + seconds
    while len(samples[0]) < least or time.perf_counter() < end:
        for i in next(orders):
            if settled:
                wake_threads()
                if before > _SHORT_SECONDS and samples[i] and samples[i][-1] < 1e6 * _SHORT_SECONDS:
                    calls[i]()
            start = time.perf_counter()
            for _ in range(repeats[i]):
                calls[i]()
            before = time.perf_counter() - start
            samples[i].append(1e6 * before / repeats[i])
    return samples


def _orders(calls: int) -> Iterator[list[int]]:
    """Yields an order of the calls for each round: of some drawn ones the one whose neighbours have followed
    each other least. With drawn orders alone, the first of three calls followed the last in four of seven
    rounds, and the median was that of a call that finds its caches emptied."""
    draw = random.Random(0)
    followed: Counter[tuple[int, int]] = Counter()
    last: list[int] = []

    def repeated(order: list[int]) -> int:
        return sum(_FAR if a == b else followed[a, b] ** 2 for a, b in pairwise([*last, *order]))

    while True:
        order = min((draw.sample(range(calls), calls) for _ in range(_DRAWN_ORDERS)), key=repeated)
        followed.update(pairwise([*last, *order]))
        last = order[-1:]
        yield order


def busy_share(seconds: float = 1.0) -> float:
    """Returns how much of this machine's CPU time others use while this process sleeps: 0 to 1.

    Time stolen by the host counts. Returns 0 where there is no /proc to say.
    """

    def counters() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]  # all, idle + waiting for disks

    try:
        total, idle = counters()
        time.sleep(seconds)
        later_total, later_idle = counters()
    except (OSError, ValueError, IndexError):
        return 0.0
    return 1 - (later_idle - idle) / max(1, later_total - total)


def load_average() -> float:
    """Returns the load average of the last minute."""
    return os.getloadavg()[0]

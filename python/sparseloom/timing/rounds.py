"""Times calls in turn, on the CPU by the clock and on a GPU between events, and takes their ratios round by
round."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ..errors import Error

#: Calls between two events on a GPU: with a single call the events themselves would be measured.
_GPU_CALLS = 10
#: A call gets fewer rounds when the least number of them would take more than _PATIENCE times the seconds
#: asked for, and more than _PATIENCE_SECONDS.
_PATIENCE, _PATIENCE_SECONDS = 20.0, 5.0
#: The clock for calls on the CPU, in seconds. tools/check_advice.py replaces it by time.thread_time, which a
#: busy machine distorts less.
clock: Callable[[], float] = time.perf_counter


@dataclass(frozen=True)
class Spread:
    """The spread of repeated samples: microseconds, or a ratio."""

    median: float
    p20: float
    p80: float

    @staticmethod
    def of(samples: list[float]) -> Spread:
        ordered = sorted(samples)
        last = len(ordered) - 1
        return Spread(statistics.median(ordered), ordered[round(0.2 * last)], ordered[round(0.8 * last)])

    def around(self, value: float) -> Spread:
        """Returns the spread with another middle, widened to hold it."""
        return Spread(value, min(self.p20, value), max(self.p80, value))

    def rounded(self, digits: int) -> dict[str, float]:
        return {name: rounded(getattr(self, name), digits) for name in ("median", "p20", "p80")}

    @property
    def shows_none(self) -> bool:
        """Whether, for a ratio, the middle 60 % holds 1, so that neither side was shown to be faster."""
        return self.p20 <= 1 <= self.p80

    @property
    def words(self) -> str:
        """The text after a printed ratio: its spread, and whether a difference was shown."""
        return f" ({self.p20:.2f} to {self.p80:.2f})" + (", no difference shown" if self.shows_none else "")


def rounded(value: float, decimals: int, digits: int = 2) -> float:
    """Returns the value with so many decimals, a small value with at least so many digits: on a busy machine
    a call of 20 us may take 8 ms, and the ratio must not print as 0."""
    if 0 < abs(value) < 1:
        decimals = max(decimals, digits - 1 - math.floor(math.log10(abs(value))))
    return round(value, decimals)


def ratios(numerator: list[float], denominator: list[float]) -> Spread:
    """Returns the spread of the ratios of samples taken in the same round."""
    return Spread.of([a / b for a, b in zip(numerator, denominator, strict=True)])


def quotient(numerator: list[float], denominator: list[float]) -> Spread:
    """Returns the quotient of the medians, with the spread of the rounds' ratios around it. A printed pair of
    medians and its ratio then never contradict each other; where the rounds' own median lies on the other
    side of 1, the spread holds 1."""
    medians_of = Spread.of(numerator).median, Spread.of(denominator).median
    return ratios(numerator, denominator).around(medians_of[0] / medians_of[1])


def medians(
    calls: list[Callable[[], object]], seconds: float, gpu: torch.device | None = None
) -> list[float]:
    """Returns the median microseconds of each call; see in_turn."""
    return [statistics.median(times) for times in in_turn(calls, seconds, gpu)]


def in_turn(
    calls: list[Callable[[], object]],
    seconds: float,
    gpu: torch.device | None = None,
    *,
    least: int = 5,
    gpu_calls: int = _GPU_CALLS,
    pause: float = 0.0,
) -> list[list[float]]:
    """Returns the microseconds of each call, run in turn for about ``seconds`` together.

    Each call runs at least ``least`` times (once, where that would take far longer than asked for). Samples
    of one index are of the same round. The calls take turns so that a clock change or a neighbour on the
    machine affects all of them alike; compare them by the rounds' ratios. On a GPU they are timed between
    events of its current stream, ``gpu_calls`` at a time: this is what an eager loop sees, with the launches
    included where they take longer than the work. With a ``pause`` of seconds each sample waits for so long
    and makes a call that is not timed, as in a loop of that call alone: threads of another library's pool may
    take the cores for a while behind its calls. Raises Error when there is no call.
    """
    if not calls:
        raise Error("medians", "at least one call", "none", "pass the functions to time")
    patience = max(_PATIENCE * seconds, _PATIENCE_SECONDS)
    first = {call: _wall_us(call) for call in dict.fromkeys(calls)}
    if gpu is None and sum(first.values()) > 1e6 * patience:
        # torch's naive 16-bit products are this slow; what the first call loads takes far less time
        return [[first[call]] for call in calls]
    measure = _wall_us if gpu is None else lambda call: _gpu_us(call, gpu, gpu_calls)
    samples: list[list[float]] = [[] for _ in calls]
    start = time.perf_counter()
    end, limit = start + seconds, start + patience
    while not samples[0] or time.perf_counter() < (limit if len(samples[0]) < least else end):
        for call, times in zip(calls, samples, strict=True):
            if pause:
                time.sleep(pause)
                call()
            times.append(measure(call))
    return samples


@contextmanager
def without_cast_cache() -> Iterator[None]:
    """Turns off autocast's cache of cast weights.

    Torch keeps the cast weights of its own layers until an autocast context ends; a loop in one context would
    then time dense layers without the cast that every training step makes.
    """
    enabled_before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled_before)


def _wall_us(call: Callable[[], object]) -> float:
    start = clock()
    call()
    return 1e6 * (clock() - start)


def _gpu_us(call: Callable[[], object], gpu: torch.device, calls: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream(gpu)
    start.record(stream)
    for _ in range(calls):
        call()
    end.record(stream)
    end.synchronize()
    return 1e3 * start.elapsed_time(end) / calls

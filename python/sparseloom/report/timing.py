"""Medians of calls taken in turn, on the CPU by the clock and on a GPU between events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ..errors import Error

#: Calls between two events on a GPU: one alone would measure the events.
_GPU_CALLS = 10
#: A call so slow that the least rounds would take this many times what was asked for, and these seconds, gets fewer.
_PATIENCE, _PATIENCE_SECONDS = 20.0, 5.0


def medians(
    calls: list[Callable[[], object]],
    seconds: float,
    gpu: torch.device | None = None,
    *,
    least: int = 5,
    gpu_calls: int = _GPU_CALLS,
) -> list[float]:
    """Median microseconds of each call, run in turn for about ``seconds`` together, at least ``least`` times each (once, where
    that would take far longer than asked for).

    In turn, so that a clock change or a neighbour on the machine meets all of them alike. On a GPU between events of its current
    stream, ``gpu_calls`` at a time: what an eager loop sees, the launches included where they take longer than the work.
    """
    if not calls:
        raise Error("medians", "at least one call", "none", "pass the functions to time")
    for call in calls:
        call()
    measure = _wall_us if gpu is None else lambda call: _gpu_us(call, gpu, gpu_calls)
    samples: list[list[float]] = [[] for _ in calls]
    start = time.perf_counter()
    end, limit = start + seconds, start + max(_PATIENCE * seconds, _PATIENCE_SECONDS)
    while not samples[0] or time.perf_counter() < (limit if len(samples[0]) < least else end):
        for call, times in zip(calls, samples, strict=True):
            times.append(measure(call))
    return [statistics.median(times) for times in samples]


@contextmanager
def without_cast_cache() -> Iterator[None]:
    """Under autocast torch keeps the cast weights of its own layers until the context ends; a loop in one context would then time
    dense layers without the cast that every training step makes."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _wall_us(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - start)


def _gpu_us(call: Callable[[], object], gpu: torch.device, calls: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream(gpu)
    start.record(stream)
    for _ in range(calls):
        call()
    end.record(stream)
    end.synchronize()
    return 1e3 * start.elapsed_time(end) / calls

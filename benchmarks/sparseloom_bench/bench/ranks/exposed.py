"""How long communication keeps a GPU from computing, from torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile

Spans = list[tuple[float, float]]


def exposed_us(step: Callable[[], object]) -> tuple[float, float]:
    """Returns the microseconds of a step on this GPU in which NCCL's kernels run, and those of them in which
    no other kernel does."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    sent: Spans = []
    computed: Spans = []
    for event in found.events() or ():
        if event.device_type.name == "CUDA":
            span = (float(event.time_range.start), float(event.time_range.end))
            (sent if "nccl" in event.name.lower() else computed).append(span)
    return covered(sent), covered([*sent, *computed]) - covered(computed)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the union of spans (start, end)."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total

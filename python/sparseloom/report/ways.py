"""Times a whole model in other ways than eagerly: compiled, and as one CUDA graph; and on a GPU, whether the
host's launches or the GPU decide its time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import Error
from .inputs import run

#: The ways of report(ways=), and those that are rows of their own.
EAGER, COMPILED, GRAPH = "eager", "compiled", "graph"
MORE_WAYS = (COMPILED, GRAPH)
WAYS = (EAGER, *MORE_WAYS)
#: Calls on another stream before the captured one, as torch asks for.
_BEFORE_CAPTURE = 3
_LAUNCHES = 5


def require_ways(ways: Sequence[str], gpu: torch.device | None) -> tuple[str, ...]:
    """Returns the ways besides eager. Raises Error for an unknown one, and for a graph without a GPU."""
    chosen = [ways] if isinstance(ways, str) else list(ways)
    if unknown := [way for way in chosen if way not in WAYS]:
        raise Error("report", f"ways of {', '.join(WAYS)}", repr(unknown[0]), 'pass ways=["compiled"]')
    if GRAPH in chosen and gpu is None:
        raise Error(
            "report", "a model on a GPU for the way graph", "one on the CPU", "leave graph out of ways"
        )
    return tuple(way for way in dict.fromkeys(chosen) if way != EAGER)


def forward_call(way: str, model: nn.Module, example_input: Any) -> Callable[[], object]:
    """Returns a call of the model's forward pass, compiled, or the replay of a CUDA graph of it. Grad mode is
    the caller's. Raises RuntimeError for a graph of a model that waits for the GPU."""
    if way == COMPILED:
        compiled: Any = torch.compile(model)
        return lambda: run(compiled, example_input)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_BEFORE_CAPTURE):
            run(model, example_input)
        _require_no_wait(model, example_input)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = run(model, example_input)  # the graph writes to its memory

    def replay() -> object:
        graph.replay()
        return held

    return replay


def _require_no_wait(model: nn.Module, example_input: Any) -> None:
    """Raises RuntimeError if a call waits for the GPU. A capture that fails for it would leave torch's
    random generators (2.11) refusing every later call outside of a graph."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(model, example_input)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def launch_share(call: Callable[[], object], gpu: torch.device) -> float:
    """Returns the share of a call's time that passes until the host has launched it, the median of some
    calls. Near 1 the GPU waits for the host."""
    shares = []
    for _ in range(_LAUNCHES):
        torch.cuda.synchronize(gpu)
        start = time.perf_counter()
        call()
        launched = time.perf_counter()
        torch.cuda.synchronize(gpu)
        shares.append((launched - start) / (time.perf_counter() - start))
    return statistics.median(shares)

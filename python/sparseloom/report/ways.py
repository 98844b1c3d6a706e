"""Times a whole model in other ways than eagerly: compiled, exported, and as one CUDA graph; and on a GPU,
whether the host's launches or the GPU decide its time."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import Error
from .inputs import run

#: The ways of report(ways=), and those that are rows of their own.
EAGER, COMPILED, EXPORTED, GRAPH = "eager", "compiled", "exported", "graph"
MORE_WAYS = (COMPILED, EXPORTED, GRAPH)
WAYS = (EAGER, *MORE_WAYS)
#: Calls on another stream before the captured one, as torch asks for.
_BEFORE_CAPTURE = 3
_LAUNCHES = 5


def require_ways(ways: Sequence[str], gpu: torch.device | None) -> tuple[str, ...]:
    """Returns the ways besides eager. Raises Error for an unknown one, for a graph without a GPU, and for an
    export on one: torch 2.11 crashes as it loads any package there, and a CUDA graph spares the host too."""
    chosen = [ways] if isinstance(ways, str) else list(ways)
    if unknown := [way for way in chosen if way not in WAYS]:
        raise Error("report", f"ways of {', '.join(WAYS)}", repr(unknown[0]), 'pass ways=["compiled"]')
    if GRAPH in chosen and gpu is None:
        raise Error(
            "report", "a model on a GPU for the way graph", "one on the CPU", "leave graph out of ways"
        )
    if EXPORTED in chosen and gpu is not None:
        raise Error(
            "report", "a model on the CPU for the way exported", f"one on {gpu}", "pass graph instead"
        )
    return tuple(way for way in dict.fromkeys(chosen) if way != EAGER)


def forward_call(way: str, model: nn.Module, example_input: Any) -> Callable[[], object]:
    """Returns a call of the model's forward pass, compiled, exported and packed by AOTInductor, or the replay
    of a CUDA graph of it. Grad mode is the caller's. Raises RuntimeError for a model that torch cannot export
    or compile, and for a graph of one that waits for the GPU."""
    if way == COMPILED:
        compiled: Any = torch.compile(model)
        return lambda: run(compiled, example_input)
    if way == EXPORTED:
        packed = _packed(model, example_input)
        return lambda: run(packed, example_input)
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


def _packed(model: nn.Module, example_input: Any) -> Any:
    """Returns what AOTInductor made of the model for inputs like the example: compiled code that is called
    without Python and the guards of torch.compile."""
    listed: tuple[Any, ...] = (example_input,)
    named: dict[str, Any] = {}
    if isinstance(example_input, Mapping):
        listed, named = (), dict(example_input)
    elif isinstance(example_input, (tuple, list)):
        listed = tuple(example_input)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        try:
            program = torch.export.export(model, listed, named)
            path = torch._inductor.aoti_compile_and_package(program, package_path=f"{folder}/model.pt2")
            return torch._inductor.aoti_load_package(path)
        except Exception as error:  # of any class: of the model's code, torch's or the compiler's
            words = str(error).strip().splitlines() or [type(error).__name__]
            raise RuntimeError(words[0]) from error


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

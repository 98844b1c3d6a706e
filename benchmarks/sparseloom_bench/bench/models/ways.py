"""Times a model and its dense self in the ways in which users run them: inference and a training step, eager,
compiled, by torch.compile's own CUDA graphs and by one CUDA graph of all."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

from sparseloom.advise import advise
from sparseloom.errors import Error
from sparseloom.patch import BlockSparse, sparsify_

from ..timing import Spread
from .train import Trainer, rounds_in_turn
from .zoo import Spec

#: How a column runs: without torch.compile, compiled, compiled in the mode whose parts replay CUDA graphs,
#: and the compiled call captured in one graph, with the optimizer where it trains.
WAYS = ("eager", "compiled", "reduce-overhead", "graph")
#: Calls of one timed round at most, seconds that are enough for one, rounds, and calls before the first. All
#: models take turns.
CALLS, ROUND, ROUNDS, WARM_UP = 10, 0.3, 12, 3
#: Seconds of a layer where advise chooses the layers that gain.
ADVISED = 0.05
#: torch asks for some calls on another stream before it captures one.
BEFORE_CAPTURE = 3

Call = Callable[[], Any]


def inference(
    model: nn.Module, x: Tensor, way: str, backend: str, dtype: torch.dtype = torch.bfloat16
) -> Call:
    """Returns a call of the model in this dtype for inference."""
    model = model.to(dtype).eval()
    x = x.to(dtype) if x.is_floating_point() else x
    run = _compiled(model, way, backend)

    def call() -> Any:
        with torch.no_grad():
            return run(x)

    return _captured(call) if way == "graph" else call


def step(model: nn.Module, data: tuple[Tensor, Tensor], way: str, backend: str) -> Call:
    """Returns a training step under bf16 autocast with fused AdamW."""
    graph = way == "graph"
    trainer = Trainer(model.train(), data, _compiled(model, way, backend), capturable=graph)
    return _captured(trainer.step) if graph else trainer.step


def milliseconds(calls: Sequence[Call], device: torch.device) -> list[Spread]:
    """Returns the time of each call, in rounds taken in turn."""
    (once,) = rounds_in_turn(calls[:1], device, 1, 1, WARM_UP)
    count = max(1, min(CALLS, int(ROUND / once[0])))
    seconds = rounds_in_turn(calls, device, count, ROUNDS, WARM_UP)
    return [Spread.of([each / count * 1e3 for each in of_call]) for of_call in seconds]


def in_each_way(
    spec: Spec,
    device: torch.device,
    ways: Sequence[str] = WAYS,
    say: Callable[[str], None] = print,
    backend: str = "inductor",
) -> dict[str, Any]:
    """Returns a record of the model in each of these ways, {"step, graph": {"sparse": ms, "dense": ms,
    "speedup": of the medians}} and so on for the calls of the spec: a step and inference of the batch, and
    inference of the smallest call. What cannot run has "error" instead. Raises Error for a way that there is
    not."""
    if unknown := set(ways) - set(WAYS):
        raise Error(
            "bench", f"a way of {', '.join(WAYS)}", ", ".join(sorted(unknown)), "leave it out for all"
        )
    data, single = spec.data(device), spec.single(device)
    kinds: dict[str, Callable[[nn.Module, str], Call]] = {
        "inference": lambda model, way: inference(model, data[0], way, backend),
        "inference, smallest": lambda model, way: inference(model, single, way, backend),
        "inference in fp32": lambda model, way: inference(model, data[0], way, backend, torch.float32),
        "inference in fp32, smallest": lambda model, way: inference(
            model, single, way, backend, torch.float32
        ),
        "step": lambda model, way: step(model, data, way, backend),
    }
    found, layers = dict[str, dict[str, Any]](), dict[str, int]()
    made = spec.make(0, device)  # once: random weights of a large model take seconds
    for kind in spec.calls:
        call_of = kinds[kind]
        x = single if kind.endswith("smallest") else data[0]
        patterns = chosen(spec, made, x, kind) if spec.chosen else spec.patterns
        layers[kind] = len(patterns)
        for way in ways:
            if (way == "graph" and device.type != "cuda") or way not in spec.ways.get(kind, ways):
                continue
            torch._dynamo.reset()
            try:
                models = [_model(spec, made, kind, each) for each in (patterns, {})]
                calls = [call_of(model, way) for model in models]
                sparse, dense = milliseconds(calls, device)
            except RuntimeError as error:
                found[f"{kind}, {way}"] = {"error": str(error).strip().splitlines()[0][:200]}
                continue
            speedup = round(dense.median / sparse.median, 3)
            found[f"{kind}, {way}"] = {
                "sparse": sparse.rounded(4),
                "dense": dense.rounded(4),
                "speedup": speedup,
            }
            say(f"{spec}: {kind}, {way}: {sparse.median:.3f} / {dense.median:.3f} ms = {speedup}")
    return {
        "op": "ways",
        "model": spec.name,
        "package": spec.version(),
        "input": list(data[0].shape),
        "smallest": list(single.shape),
        "patterns": spec.described(),
        **({"layers": layers} if spec.chosen else {}),
        "ways": found,
    }


def chosen(spec: Spec, made: nn.Module, x: Tensor, kind: str) -> dict[str, Any]:
    """Returns the spec's recipe for each layer of its model that gains by it on this input, as advise times
    it in bf16."""
    model = _model(spec, made, kind, {}).bfloat16()
    found = dict[str, Any]()
    for regex, recipe in spec.patterns.items():
        assert isinstance(recipe, BlockSparse) and recipe.density is not None
        asked: Any = {"blocks": [recipe.shape], "densities": [recipe.density], "training": kind == "step"}
        advice = advise(model, x.bfloat16() if x.is_floating_point() else x, seconds=ADVISED, **asked)
        names = [name for layer in advice.layers if layer.best(recipe.density) for name in layer.names]
        found |= {re.escape(name): recipe for name in names if re.fullmatch(regex, name)}
    return found


def _model(spec: Spec, made: nn.Module, kind: str, patterns: Mapping[str, Any]) -> nn.Module:
    model = copy.deepcopy(made)
    if spec.chosen and kind != "step":
        model = fuse(model.eval())  # batch norms go into the convolutions
    if patterns:
        sparsify_(model, patterns)
    return model


def _compiled(model: nn.Module, way: str, backend: str) -> Callable[..., Any]:
    if way == "eager":
        return model
    mode = way if way == "reduce-overhead" else "default"
    if backend != "inductor":  # the other ones know no modes
        return torch.compile(model, backend=backend)
    return torch.compile(model, mode=mode)


def _captured(call: Call) -> Call:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(BEFORE_CAPTURE):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()

    def replay() -> None:
        graph.replay()

    replay.holds = call  # type: ignore[attr-defined]  # the graph reads the memory of all that it knows
    return replay

"""Implements `report`: times the layers of a model and the model itself, each against a dense twin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import ops
from .._arguments import named_arguments
from .._checks import not_negative, require_bool, several
from .._progress import Bar
from ..errors import Error
from ..nn import SparseLinear
from ..nn.arguments import require_module
from ..nn.conv.base import ConvModule
from ..nn.held.sparse_weight import sparse_layers
from ..nn.linears import Planned, planned_convolutions, planned_linears
from ..nn.masked.linear import MaskedLinear
from ..sparsify.gates import Gate
from ..timing.busy import Watch
from ..timing.rounds import without_cast_cache
from . import attentions, convs, layers, whole
from .inputs import as_arguments, evaluated, gpus_of, watched
from .result import LayerReport, Report
from .ways import require_ways


@named_arguments
def report(
    model: nn.Module,
    example_input: Any,
    *,
    seconds: float = 0.3,
    batch_sizes: Sequence[int] = (),
    strict: bool = False,
    ways: Sequence[str] = ("eager",),
    evaluate: Callable[[nn.Module], float] | None = None,
    quality: Mapping[str, float] | None = None,
) -> Report:
    """Runs the model once on example_input (a tensor, a tuple of arguments, or a mapping or
    dataclass of keywords, such as what a tokenizer returns), then
    measures its sparse layers and itself.

    Each sparse layer is timed alone, on random data of the size it saw there, for about ``seconds``. Its
    dense twin, nn.Linear or the convolution of the same shape and dtype, is timed in turn with it. The
    attention of each module that calls sparseloom.attention is timed against scaled_dot_product_attention.
    Layers that are not sparse are listed as they are. The whole model is timed on the example input, against
    a copy whose sparse layers and attention are dense: forward without gradients and, where it trains,
    backward. The
    model is left as it was (evaluation mode, no gradients kept). What torch.compile wraps is measured without
    it, unless ``ways`` asks for it; under autocast the products are those of autocast, weights cast in each
    call. On a GPU the report says "host-bound" where the GPU waits for the host's launches in an eager
    forward call.

    Args:
        seconds: of timing for each layer, and for the whole model at each batch size; 0: a few calls.
        batch_sizes: also times the whole model with so many rows, the example's own in turn: every tensor in
            it whose first dimension is that of the first tensor.
        strict: raises Error, before anything is timed, when a layer would run a dense or reference kernel,
            and names them.
        ways: also times the whole model's forward pass "compiled" (by torch.compile, which takes up to
            minutes), "exported" (packed by torch.export and AOTInductor, on the CPU; as long), and as one
            CUDA "graph", which a model that waits for the GPU cannot be.
        evaluate: called with the model in evaluation mode. The report shows the number as "now", beside what
            ``evaluate`` of prune_ returned before and after pruning.
        quality: {stage: number} of what you measured before, {"dense": 0.91} for example. It comes first.

    Raises Error for another way, for a graph of a model on the CPU and an export of one on a GPU; and what
    the model itself raises on the input.
    """
    require_module("report", model)
    require_bool("report", "strict", strict)
    seconds = not_negative("report", "seconds", seconds, "0.3")
    batch_sizes = several("report", "batch_sizes", batch_sizes, "[1, 16, 256]")
    inner = getattr(model, "_orig_mod", model)
    model = inner if isinstance(inner, nn.Module) else model
    example_input = as_arguments("report", example_input)
    known = _known_quality(model, evaluate, quality)
    more_ways = require_ways(ways, whole.gpu_of(model))
    with torch.random.fork_rng(devices=gpus_of(model)), without_cast_cache(), ExitStack() as stack:
        # The dense twins draw initial values; the fork leaves the caller's random numbers untouched.
        with attentions.watched_attention() as attending:
            tokens, seen = _inputs_seen(model, example_input)
        trains = any(parameter.requires_grad for parameter in model.parameters())
        attended: list[tuple[LayerReport, attentions.Seen]] = []
        entries = []
        sparse: list[tuple[LayerReport, Planned]] = []
        convolutions: list[tuple[LayerReport, ConvModule]] = []
        unplanned: list[tuple[LayerReport, SparseLinear]] = []
        linears = {layer: (layer, weight) for layer, weight in planned_linears(model)}
        spatial = dict(planned_convolutions(model))
        unplanned_weights = {entry.weight.owner: entry.weight for entry in sparse_layers(model)}
        for name, module in model.named_modules():
            if planned := linears.get(module):
                layer, weight = planned
                entries.append(layers.described(name, layer, weight, tokens.get(layer)))
                sparse.append((entries[-1], layer))
            elif isinstance(module, ConvModule) and module in spatial:
                entries.append(convs.described(name, module, spatial[module], seen.get(module)))
                convolutions.append((entries[-1], module))
            elif unplanned_weight := unplanned_weights.get(module):
                entries.append(layers.listed(name, module, unplanned_weight))
                if isinstance(module, SparseLinear):
                    layers.name_unplanned(entries[-1], module, unplanned_weight)
                    unplanned.append((entries[-1], module))
            elif isinstance(module, MaskedLinear):
                entries.append(layers.masked(name, module))
            elif isinstance(module, Gate):  # a part of the layer that holds it
                continue
            elif parameters := list(module.parameters(recurse=False)):
                size = sum(tensor.numel() * tensor.element_size() for tensor in parameters)
                shape = tuple(max(parameters, key=Tensor.numel).shape)
                entries.append(
                    LayerReport(name, type(module).__name__, shape, size, size, note="dense, not touched")
                )
            if asked := attending.get(module):
                entries.append(attentions.described(name, module, asked, trains))
                attended.append((entries[-1], asked))
        if strict:
            of_weights = [*sparse, *convolutions, *unplanned]
            trained = [(entry, layer.values.requires_grad) for entry, layer in of_weights]
            layers.require_sparse([*trained, *((entry, trains) for entry, _ in attended)])
        watch = Watch()
        whole_model, batches = whole.measured(
            model, example_input, batch_sizes, seconds, more_ways, attends=bool(attended)
        )
        break_evens: dict[tuple[Any, ...], dict[str, float | None]] = {}
        bar = stack.enter_context(Bar("report"))
        for entry, layer in bar.over(sparse, lambda each: each[0].name):
            layers.measure(entry, layer, seconds)
            watch.look()
            key = (
                entry.shape,
                entry.block,
                entry.tokens,
                entry.dtype,
                entry.times is None or tuple(entry.times),
            )
            if key not in break_evens:  # once for each shape: it takes some twenty plans
                break_evens[key] = layers.break_evens(entry, layer)
            entry.break_even = break_evens[key]
        for entry, convolution in convolutions:
            convs.measure(entry, convolution, seen.get(convolution), seconds)
            watch.look()
        for entry, asked in attended:
            attentions.measure(entry, asked, seconds)
            watch.look()
    devices = [
        *(layer.values.device for _, layer in [*sparse, *convolutions]),
        *(a.device for _, a in attended),
    ]
    gpus = {device for device in devices if device.type == "cuda"}
    machine = ", ".join(sorted({torch.cuda.get_device_name(gpu) for gpu in gpus})) or str(
        ops.info().get("cpu", "cpu")
    )
    totals = replace(whole.totals(model), copy_bytes=sum(entry.copy_bytes for entry, _ in sparse))
    timed = any(entry.times for entry in entries) or any(size.times for size in (whole_model, *batches))
    lost = watch.lost if timed else 0.0
    found = Report(entries, torch.get_num_threads(), machine, totals, whole_model, batches, lost)
    found.quality = known
    return found


def _known_quality(
    model: nn.Module, evaluate: Callable[[nn.Module], float] | None, quality: Mapping[str, float] | None
) -> dict[str, float]:
    """Returns what is known of the model's quality: the numbers given, those of prune_, and one of now."""
    if quality is not None and not isinstance(quality, Mapping):
        got, remedy = repr(quality), 'pass quality={"dense": 0.91}'
        raise Error("report", "quality as {when: number}", got, remedy)
    if evaluate is not None and not callable(evaluate):
        remedy = "pass a function of the model that returns a number"
        raise Error("report", "evaluate to be callable", type(evaluate).__name__, remedy)
    stages = {**(quality or {}), **vars(model).get("_pruning", {}).get("stages", {})}
    known = {str(stage): float(value) for stage, value in stages.items()}
    if evaluate is not None:
        with evaluated(model):
            known["now"] = float(evaluate(model))
    return known


def _inputs_seen(
    model: nn.Module, example_input: Any
) -> tuple[dict[nn.Module, int], dict[ConvModule, Tensor]]:
    """Returns the most rows that each layer saw in one call, and the largest inputs of convolutions."""
    tokens: dict[nn.Module, int] = {}
    seen: dict[ConvModule, Tensor] = {}

    def see(
        module: nn.Module, arguments: tuple[Tensor, ...], keywords: dict[str, Tensor], result: Tensor
    ) -> None:
        x = arguments[0] if arguments else keywords["x"]
        if isinstance(module, ConvModule):
            convs.see(module, x, seen)
        else:
            tokens[module] = max(tokens.get(module, 0), x.numel() // max(1, x.shape[-1]))

    modules = [layer for layer, _ in planned_linears(model)]
    watched(
        "report", model, [*modules, *(layer for layer, _ in planned_convolutions(model))], example_input, see
    )
    return tokens, seen

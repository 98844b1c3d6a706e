"""report(model, example_input): what every layer is, which kernel it runs, and its measured time against a dense twin."""

from __future__ import annotations

import html
import io
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from . import ops
from .errors import Error
from .nn import BlockSparseLinear
from .pattern import Pattern

Times = dict[str, float]  # "forward" and "backward": median microseconds of one call


@dataclass
class LayerReport:
    """One layer. Sizes in bytes, times in microseconds; times are None for layers that are not measured."""

    name: str
    kind: str
    shape: tuple[int, ...]  # out features, in features for linear layers
    bytes: int  # parameters and saved buffers as they are
    dense_bytes: int  # the same layer dense
    block: tuple[int, int] | None = None
    density: float | None = None
    tokens: int | None = None  # rows of the largest input seen
    dtype: str | None = None
    kernels: dict[str, str] = field(default_factory=dict)  # forward, dx, dw
    times: Times | None = None
    dense_times: Times | None = None
    note: str = ""
    pattern: Pattern | None = None

    @property
    def speedups(self) -> Times:
        """Dense time over this layer's time, by direction; below 1 the layer is slower than dense."""
        if self.times is None or self.dense_times is None:
            return {}
        return {direction: self.dense_times[direction] / self.times[direction] for direction in self.times}

    @property
    def slower(self) -> list[str]:
        """The directions in which dense is faster."""
        return [direction for direction, speedup in self.speedups.items() if speedup < 1]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without the pattern's bits."""
        plain = {key: value for key, value in asdict(self).items() if key != "pattern"}
        return plain | {"speedups": self.speedups, "slower_than_dense": self.slower}


@dataclass
class Report:
    """The layers of a model in order; prints as a table."""

    layers: list[LayerReport]
    threads: int
    machine: str

    def to_dict(self) -> dict[str, Any]:
        """{"machine", "threads", "layers": [...]}: plain data for JSON."""
        return {"machine": self.machine, "threads": self.threads, "layers": [layer.to_dict() for layer in self.layers]}

    def __str__(self) -> str:
        head, rows = self._table()
        try:
            text = _rich_table(head, rows)
        except ImportError:  # the cli extra is not installed
            text = _plain_table(head, rows)
        return f"{text}\n{self._legend()}"

    def to_html(self) -> str:
        """A self-contained fragment: the table and a picture of every pattern; no scripts, nothing fetched."""
        head, rows = self._table()
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        figures = "".join(
            f"<figure style='display:inline-block;margin:8px'>{layer.pattern.svg(160)}"
            f"<figcaption>{html.escape(layer.name or 'model')}</figcaption></figure>"
            for layer in self.layers
            if layer.pattern is not None
        )
        table = f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
        return f"<section class='sparseloom-report'>{table}<p>{html.escape(self._legend())}</p>{figures}</section>"

    def _repr_html_(self) -> str:
        return self.to_html()

    def _legend(self) -> str:
        return (
            f"{self.machine}, {self.threads} CPU threads. us: median of one call, sparse / dense twin, interleaved, warm; "
            "backward is everything that needs a gradient."
        )

    def _table(self) -> tuple[list[str], list[list[str]]]:
        head = ["layer", "kind", "shape", "block", "density", "bytes", "kernel", "forward us", "backward us", "note"]
        return head, [_row(layer) for layer in self.layers]


def report(model: nn.Module, example_input: Any, *, seconds: float = 0.3) -> Report:
    """Runs the model once on example_input (a tensor, a tuple of arguments or a dict of keywords) and measures its sparse layers.

    Each sparse layer is timed alone, on random data of the size it saw there, against nn.Linear of the same shape and dtype,
    interleaved, for about ``seconds`` a layer. Layers that are not sparse are listed as they are. The model is left as it was
    (evaluation mode for the one run, no gradients). Raises what the model itself raises on the input.
    """
    layers = []
    with torch.random.fork_rng(devices=[]):  # the dense twins draw initial values; the caller's random numbers go on untouched
        tokens = _tokens_seen(model, example_input)
        for name, module in model.named_modules():
            if isinstance(module, BlockSparseLinear):
                layers.append(_sparse_layer(name, module, tokens.get(module), seconds))
            elif parameters := list(module.parameters(recurse=False)):
                size = sum(tensor.numel() * tensor.element_size() for tensor in parameters)
                shape = tuple(max(parameters, key=Tensor.numel).shape)
                layers.append(LayerReport(name, type(module).__name__, shape, size, size, note="dense, not touched"))
    gpus = {layer.values.device for layer in model.modules() if isinstance(layer, BlockSparseLinear) and layer.values.is_cuda}
    machine = ", ".join(sorted({torch.cuda.get_device_name(gpu) for gpu in gpus})) or str(ops.info().get("cpu", "cpu"))
    return Report(layers, torch.get_num_threads(), machine)


def _tokens_seen(model: nn.Module, example_input: Any) -> dict[nn.Module, int]:
    """The most rows that each sparse layer saw in one call."""
    tokens: dict[nn.Module, int] = {}

    def see(module: nn.Module, arguments: tuple[Tensor, ...], keywords: Mapping[str, Tensor]) -> None:
        x = arguments[0] if arguments else keywords["x"]
        tokens[module] = max(tokens.get(module, 0), x.numel() // max(1, x.shape[-1]))

    hooks = [
        module.register_forward_pre_hook(see, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, BlockSparseLinear)
    ]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            if isinstance(example_input, Mapping):
                model(**example_input)
            elif isinstance(example_input, (tuple, list)):
                model(*example_input)
            else:
                model(example_input)
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes:
            module.training = training
    return tokens


def _sparse_layer(name: str, layer: BlockSparseLinear, tokens: int | None, seconds: float) -> LayerReport:
    weight = layer.values
    saved = [weight, layer.crow, layer.col] + ([] if layer.bias is None else [layer.bias])
    elements = layer.in_features * layer.out_features + (0 if layer.bias is None else layer.out_features)
    entry = LayerReport(
        name,
        type(layer).__name__,
        (layer.out_features, layer.in_features),
        sum(tensor.numel() * tensor.element_size() for tensor in saved),
        elements * weight.element_size(),
        layer.block,
        layer.density,
        tokens,
        str(weight.dtype).removeprefix("torch."),
        pattern=layer.pattern,
    )
    if not tokens:
        entry.note = "not reached by the example input"
        return entry
    if weight.is_meta:
        entry.note = "on meta: nothing to measure"
        return entry
    if layer.frozen:
        entry.kernels = {"forward": "dense (frozen)"}
    else:
        entry.kernels = {direction: layer.plan(tokens, direction)["kernel"] for direction in ops.DIRECTIONS}
    entry.times, entry.dense_times = _measured(layer, tokens, seconds)
    if entry.slower:
        entry.note = f"slower than dense: {', '.join(entry.slower)}"
    return entry


def _measured(layer: BlockSparseLinear, tokens: int, seconds: float) -> tuple[Times, Times]:
    """Median times of the layer and of its dense twin."""
    device, dtype = layer.values.device, layer.values.dtype
    linear = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device, dtype)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, layer.in_features, generator=generator).to(device, dtype)

    def dense(x: Tensor) -> Tensor:
        return ops.activate(linear(x), layer.activation)

    gpu = device if device.type == "cuda" else None
    with torch.no_grad():
        forward = medians([lambda: layer(x), lambda: dense(x)], seconds / 2, gpu)
    times, dense_times = {"forward": forward[0]}, {"forward": forward[1]}
    trains = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    if layer.frozen or not trains:
        return times, dense_times
    x.requires_grad_()
    gradient = torch.randn(tokens, layer.out_features, generator=generator).to(device, dtype)

    def backward(y: Tensor, inputs: list[Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(y, inputs, gradient, retain_graph=True)

    with torch.enable_grad():
        twin = [linear.weight] + ([] if linear.bias is None else [linear.bias])
        back = medians([backward(layer(x), [x, *trains]), backward(dense(x), [x, *twin])], seconds / 2, gpu)
    return times | {"backward": back[0]}, dense_times | {"backward": back[1]}


#: Calls between two events on a GPU: one alone would measure the events.
_GPU_CALLS = 10


def medians(calls: list[Callable[[], object]], seconds: float, gpu: torch.device | None = None) -> list[float]:
    """Median microseconds of each call, run in turn for about ``seconds`` together, at least five times each.

    In turn, so that a clock change or a neighbour on the machine meets all of them alike. On a GPU between events of its current
    stream, ten calls at a time: what an eager loop sees, the launches included where they take longer than the work.
    """
    if not calls:
        raise Error("medians", "at least one call", "none", "pass the functions to time")
    for call in calls:
        call()
    measure = _wall_us if gpu is None else lambda call: _gpu_us(call, gpu)
    samples: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while len(samples[0]) < 5 or time.perf_counter() < end:
        for call, times in zip(calls, samples, strict=True):
            times.append(measure(call))
    return [statistics.median(times) for times in samples]


def _wall_us(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - start)


def _gpu_us(call: Callable[[], object], gpu: torch.device) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream(gpu)
    start.record(stream)
    for _ in range(_GPU_CALLS):
        call()
    end.record(stream)
    end.synchronize()
    return 1e3 * start.elapsed_time(end) / _GPU_CALLS


def _row(layer: LayerReport) -> list[str]:
    block = "" if layer.block is None else f"{layer.block[0]}x{layer.block[1]}"
    density = "" if layer.density is None else f"{layer.density:.3g}"
    size = _size(layer.bytes) + ("" if layer.bytes == layer.dense_bytes else f" / {_size(layer.dense_bytes)}")
    return [
        layer.name or "model",
        layer.kind,
        " x ".join(str(side) for side in layer.shape),
        block,
        density,
        size,
        " ".join(dict.fromkeys(layer.kernels.values())),
        _time(layer, "forward"),
        _time(layer, "backward"),
        layer.note,
    ]


def _time(layer: LayerReport, direction: str) -> str:
    if layer.times is None or layer.dense_times is None or direction not in layer.times:
        return ""
    return f"{layer.times[direction]:.0f} / {layer.dense_times[direction]:.0f} = {layer.speedups[direction]:.2f}x"


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def _plain_table(head: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    return "\n".join(line.rstrip() for line in lines)


def _rich_table(head: list[str], rows: list[list[str]]) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(*head)
    for row in rows:
        table.add_row(*row, style="yellow" if row[-1].startswith("slower") else None)
    # Wide enough for every cell: a cut kernel name says nothing.
    buffer = io.StringIO()
    Console(file=buffer, width=sum(max(len(row[i]) for row in [head, *rows]) + 3 for i in range(len(head))) + 1).print(table)
    return buffer.getvalue().rstrip()

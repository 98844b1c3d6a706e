"""`sparseloom bench conv`: block-sparse convolutions beside torch's, forward, dX and dW.

Torch's convolution is called in channels-last and in channels-first memory, in turn with ours, and the faster
layout counts; on a GPU it is cuDNN's in channels-last memory, and each call is a CUDA graph. "plan" is what
the layer calls: the kernel, or torch's convolution with a dense copy of W, made in the call, where the plan
expects less time of that.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from sparseloom import pattern
from sparseloom.errors import Error
from sparseloom.nn import BlockSparseConv2d
from sparseloom.ops import call
from sparseloom.ops.conv import plans, product
from sparseloom.ops.operators import PLAN_CHOOSES, row_of
from sparseloom.ops.plans import dtype_name
from sparseloom.timing.rounds import in_turn, rounded

from .gpu.device import Monitor, describe, require_gpu, slug
from .gpu.replay import capture, capture_stream
from .results import default_folder, header, write_results

#: Images, channels in and out, extent of both axes; 3 x 3 taps, padding 1.
SHAPES = ((8, 512, 14), (1, 512, 14))
GPU_SHAPES = ((64, 512, 28), (64, 1024, 14))
SMOKE = ((2, 64, 5),)
DENSITIES = (0.125, 0.25, 0.5)
BLOCKS, GPU_BLOCKS = (32,), (64, 32)
GPU_ROWS = ("sm90_conv", "sm90_conv_narrow", "sm80_conv")
DIRECTIONS = ("forward", "dx", "dw")
#: Largest relative error, in norm, of a product beside torch's in fp32.
ERROR = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}

Calls = dict[str, dict[str, Callable[[], Tensor]]]


def calls_of(layer: Any, x: Tensor, dy: Tensor) -> dict[str, Calls]:
    """Returns {direction: {"ours", "plan" or "torch": calls by name}}. A GPU has one memory format."""
    window, index, values = window_of(layer), layer.index, layer.values.detach()
    lists = [list(each) for each in window]
    weight = product.dense(values, index, window.kernel)
    pixels, grad = x.movedim(1, -1), dy.movedim(1, -1)
    sizes, extents = (index.blocks, index.bm, index.bn), x.shape[2:]
    formats = {"channels last": torch.channels_last, "channels first": torch.contiguous_format}
    if x.is_cuda:
        del formats["channels first"]

    def gradient(kind: int, memory: torch.memory_format) -> Callable[[], Tensor]:
        operands = [each.contiguous(memory_format=memory) for each in (dy, x, weight)]
        wanted = [kind == 0, kind == 1, False]
        how = window.stride, window.padding, window.dilation, False, [0, 0], 1, wanted
        backward = torch.ops.aten.convolution_backward
        return lambda: backward(*operands, None, *how)[kind]

    def forward(memory: torch.memory_format) -> Callable[[], Tensor]:
        a, w = (each.contiguous(memory_format=memory) for each in (x, weight))
        return lambda: torch.conv2d(a, w, None, *window[1:])

    def rows(op: str, *how: Any) -> Calls:
        """Our calls: by the fastest sparse row, by the plan's choice, which may be torch's convolution, and
        on a GPU by each row that does not refuse."""
        names = [name for name in GPU_ROWS if _runs(op, *how, row_of(name))] if x.is_cuda else []
        return {
            "ours": {"row": lambda: call(op, *how, PLAN_CHOOSES, True)},
            "each": {name: partial(call, op, *how, row_of(name)) for name in names},
            "plan": {"layer": lambda: call(op, *how)},
        }

    no_epilogue = None, 0, None
    dx = grad, values, index.packed, index.cols, 1, *extents, *lists, *no_epilogue
    return {
        "forward": {
            **rows("bsr_conv", pixels, values, index.packed, index.rows, *lists, *no_epilogue),
            "torch": {name: forward(memory) for name, memory in formats.items()},
        },
        "dx": {
            **rows("bsr_conv_dx", *dx),
            "torch": {name: gradient(0, memory) for name, memory in formats.items()},
        },
        "dw": {
            **rows("bsr_conv_dw", grad, pixels, index.packed, *sizes, *lists),
            "torch": {name: gradient(1, memory) for name, memory in formats.items()},
        },
    }


def window_of(layer: BlockSparseConv2d) -> product.Window:
    return product.Window(layer.kernel_size, layer.stride, layer.padding, layer.dilation)


def _runs(op: str, *how: Any) -> bool:
    try:
        call(op, *how)
    except Error:
        return False
    return True


def even(channels: int, block: int, density: float, generator: torch.Generator) -> pattern.Pattern:
    """Draws a pattern with as many blocks in each block row as in each block column."""
    side = -(-channels // block)
    rows, cols, shifts = (torch.randperm(side, generator=generator) for _ in range(3))
    mask = torch.zeros(side, side, dtype=torch.bool)
    for shift in shifts[: max(1, round(density * side))]:
        mask[rows, cols[(torch.arange(side) + shift) % side]] = True
    return pattern.from_mask(channels, channels, block, mask)


def _replayed(call: Callable[[], Tensor]) -> Callable[[], object]:
    """Returns the replay of a CUDA graph with the call."""

    def body() -> None:
        call()

    with torch.cuda.stream(capture_stream(torch.cuda.current_device())):
        call()  # what libraries look for and keep at a first call
    torch.cuda.synchronize()
    return capture(body).replay


def peak_of(call: Callable[[], Tensor], gpu: torch.device) -> int:
    """Returns the most bytes that a call holds beside what is there: its result, workspaces and copies."""
    call()  # what libraries look for and keep at a first call
    torch.cuda.synchronize(gpu)
    torch.cuda.reset_peak_memory_stats(gpu)
    before = torch.cuda.memory_allocated(gpu)
    result = call()
    torch.cuda.synchronize(gpu)
    del result
    return int(torch.cuda.max_memory_allocated(gpu) - before)


def measured(
    images: int,
    channels: int,
    extent: int,
    density: float,
    dtype: torch.dtype,
    seconds: float,
    block: int = 32,
    gpu: torch.device | None = None,
) -> dict[str, Any]:
    """Returns the record of a cell: for each direction our kernel, its relative error, the
    microseconds of each call in its fastest round, and of the rounds' ratios of torch's faster layout over
    ours the median and the quartiles; the bytes of the weight with its index beside the dense one's, our
    workspace's, and on a GPU what each call holds at most beside its operands."""
    generator = torch.Generator().manual_seed(0)
    options: dict[str, Any] = {"padding": 1, "bias": False, "generator": generator}
    options["pattern"] = even(channels, block, density, generator)
    layer = BlockSparseConv2d(channels, channels, 3, **options).to(gpu, dtype)
    shape = images, channels, extent, extent
    x, dy = (
        torch.randn(shape, generator=generator).to(gpu, dtype).contiguous(memory_format=torch.channels_last)
        for _ in range(2)
    )
    record: dict[str, Any] = {"op": "conv", "dtype": dtype_name("bench", dtype), "images": images}
    record |= {"channels": channels, "extent": extent, "kernel": 3, "block": block, "density": density}
    record |= {"kernels": {}, "error": {}, "us": {}, "ratio": {}, "workspace_bytes": {}, "peak_bytes": {}}
    weight = layer.sparse_weights()["values"]
    dense_bytes = channels * channels * weight.taps * weight.values.element_size()
    ours_bytes = weight.values.nbytes + weight.index_bytes
    record["weight_bytes"] = {"ours": ours_bytes, "torch": dense_bytes}
    exact = calls_of(layer.float(), x.float(), dy.float())
    layer = layer.to(dtype)
    for direction, kinds in calls_of(layer, x, dy).items():
        want = next(iter(exact[direction]["torch"].values()))()
        own = kinds["ours"]["row"]().double()
        got = own if direction == "dw" else own.movedim(-1, 1)
        want = product.blocks_of(want, layer.index) if direction == "dw" else want
        record["error"][direction] = float(f"{float((got - want).norm() / want.norm()):.3g}")
        flat = [(kind, name, run) for kind, calls in kinds.items() for name, run in calls.items()]
        runs = [_replayed(run) if gpu else run for *_, run in flat]
        samples = in_turn(runs, seconds, gpu, gpu_calls=3)
        us: dict[str, dict[str, float]] = {}
        rounds: dict[str, list[float]] = {}
        for (kind, name, _), taken in zip(flat, samples, strict=True):
            us.setdefault(kind, {})[name] = round(min(taken), 1)
            rounds[kind] = [min(pair) for pair in zip(rounds.get(kind, taken), taken, strict=True)]
        record["us"][direction] = us
        ratios = [theirs / ours for theirs, ours in zip(rounds["torch"], rounds["ours"], strict=True)]
        # a product so slow that it ran once has one ratio
        quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        record["ratio"][direction] = [rounded(each, 2) for each in quartiles]
        how = direction, dtype, images, (extent, extent), window_of(layer), layer.index
        plan = plans.plan(*how, -1 if gpu is None else gpu.index or 0, strict=True)
        record["kernels"][direction] = plan["kernel"]
        record["workspace_bytes"][direction] = int(plan["workspace_bytes"])
        if gpu:
            record["peak_bytes"][direction] = {
                kind: max(peak_of(run, gpu) for run in kinds[kind].values())
                for kind in ("ours", "plan", "torch")
            }
    return record


def speedup(record: dict[str, Any], direction: str, kind: str = "ours") -> float:
    """Returns how much longer torch takes in its faster layout, fastest rounds compared."""
    us = record["us"][direction]
    return float(min(us["torch"].values()) / min(us[kind].values()))


def _table(records: list[dict[str, Any]]) -> Table:
    out = Table("images, channels, extent", "block", "dtype", "density")
    for direction in DIRECTIONS:
        for column in (f"{direction} us", "over torch", "by plan"):
            out.add_column(column, justify="right")
    for each in records:
        row = [f"{each['images']}, {each['channels']}, {each['extent']}", f"{each['block']}", each["dtype"]]
        row.append(f"{each['density']}")
        for direction in DIRECTIONS:
            row.append(f"{min(each['us'][direction]['ours'].values()):.0f}")
            row += [f"{speedup(each, direction, kind):.2f}" for kind in ("ours", "plan")]
        out.add_row(*row)
    return out


def conv(
    seconds: Annotated[
        float, typer.Option(min=0.0, help="of each product's calls, all together; five rounds at least")
    ] = 2.0,
    dtype: Annotated[
        str | None, typer.Option(help="float32 (the default on a CPU), bfloat16 (on a GPU) or float16")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    smoke: Annotated[bool, typer.Option(help="one tiny layer: does it run?")] = False,
    results: Annotated[
        Path | None, typer.Option(help="default: bench/results of the checkout, else here")
    ] = None,
) -> None:
    """Times convolutions of 3 x 3 taps, forward, dX and dW, beside torch's and writes
    <results>/<device>/bsr_conv.json (other dtypes than float32: bsr_conv_<dtype>.json)."""
    kinds = {str(each).removeprefix("torch."): each for each in ERROR}
    dtype = dtype or ("bfloat16" if device == "cuda" else "float32")
    # On a GPU fp32 would be rounded to TF32, of which `bench sweep --family bsr_conv` tells.
    dtypes = [name for name in kinds if device == "cpu" or name != "float32"]
    for what, allowed, got in (("device", ["cpu", "cuda"], device), ("dtype", dtypes, dtype)):
        if got not in allowed:
            error = Error("bench", f"a {what} of {', '.join(allowed)}", got, "see --help")
            typer.echo(f"sparseloom bench conv: {error}", err=True)
            raise typer.Exit(1)
    kind = kinds[dtype]
    gpu = require_gpu("conv") if device == "cuda" else None
    about = {"gpu": describe(gpu, Monitor(gpu))} if gpu else {}
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
        records = [
            measured(*shape, density, kind, seconds, block, gpu)
            for shape in (SMOKE if smoke else GPU_SHAPES if gpu else SHAPES)
            for block in (GPU_BLOCKS if gpu else BLOCKS)
            for density in DENSITIES
        ]
    console = Console()
    console.width = max(console.width, 140)
    console.print(_table(records))
    name = "bsr_conv" if kind is torch.float32 else f"bsr_conv_{dtype}"
    head = header("burst", slug(about["gpu"]["name"]) if gpu else None) | {"suite": "bsr_conv"} | about
    path = write_results(results or default_folder(Path(".")), name, head, records)
    typer.echo(f"results: {path.resolve()}")
    wrong = [each for each in records if max(each["error"].values()) > ERROR[kind]]
    for each in wrong:
        typer.echo(f"wrong: {each['channels']} {each['density']}: {each['error']}", err=True)
    if wrong:
        raise typer.Exit(1)

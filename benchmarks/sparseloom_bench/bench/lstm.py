"""`sparseloom bench lstm`: recurrent layers beside torch's dense ones of the same sizes.

On the CPU both layers map whole sequences, in turn. On a GPU a step's product and gates run in a CUDA graph
beside the dense product alone, over the density, and the cell with steps inside each step runs forward and
backward. States follow from the step before, so that weights stay in the L2 cache where they fit; ``cold``
steps read them from memory, as a network of many layers would.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from sparseloom import pattern
from sparseloom.errors import Error
from sparseloom.nn import BlockSparseLSTM, SmallWorldLSTM
from sparseloom.nn.recurrent.weights import beside_of, side_by_side, weight_of
from sparseloom.ops.plans import dtype_name
from sparseloom.ops.recurrent.steps import Products, lstm_cell
from sparseloom.timing import rounds
from sparseloom.timing.rounds import Spread, in_turn, ratios

from .gpu.device import Monitor, describe, require_gpu, slug
from .gpu.replay import capture
from .results import default_folder, header, write_results
from .timing import busy_share, load_average

#: On the CPU: least times faster than nn.LSTM, and the aim, at 2048 units, 5 % and batch 16.
MUST, GOAL = 3.0, 6.0
#: Times the dense product's time that a step may take on a GPU, and densities of the curve in percent.
GPU_MUST, GPU_GOAL, DENSITIES = 16.0, 28.0, (1, 3, 5, 10, 20, 50)
#: Largest relative error, in norm, beside the dense layer with the same weights.
ERROR = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
#: Steps of a sequence, and bytes that no L2 cache holds.
STEPS, FLUSH = 32, 512 * 2**20


@dataclass(frozen=True)
class Cell:
    """One size: units, density of all weights, batch and block."""

    units: int
    density: float
    batch: int
    block: int = 32

    def named(self) -> dict[str, Any]:
        return {"units": self.units, "density": self.density, "batch": self.batch, "block": self.block}


CPU = (Cell(2048, 0.05, 16), Cell(2048, 0.1, 16), Cell(1024, 0.05, 16), Cell(2048, 0.05, 1))
SMOKE = (Cell(128, 0.25, 4, 16),)
GPU, WORLD = Cell(12288, 0.03, 32), Cell(18432, 0.03, 128)

Calls = dict[str, Callable[[], object]]


def sequences(cell: Cell) -> tuple[float, dict[str, Calls]]:
    """Returns the error beside the dense layer of the same weights, and by direction the calls "ours" and
    "dense", over one sequence each."""
    generator = torch.Generator().manual_seed(0)
    ours = BlockSparseLSTM(cell.units, cell.units, density=cell.density, block=cell.block, seed=generator)
    dense, same = nn.LSTM(cell.units, cell.units), ours.to_dense()
    x = torch.randn(STEPS, cell.batch, cell.units, generator=generator)
    with torch.no_grad():
        exact = same(x)[0]
        error = float((ours(x)[0] - exact).norm() / exact.norm())

    def forward(layer: nn.Module) -> Tensor:
        with torch.no_grad():
            y: Tensor = layer(x)[0]
        return y

    def both(layer: nn.Module) -> Tensor:
        layer.zero_grad()
        y: Tensor = layer(x)[0]
        y.sum().backward()
        return y

    return error, {
        name: {"ours": partial(call, ours), "dense": partial(call, dense)}
        for name, call in (("forward", forward), ("forward + backward", both))
    }


def on_cpu(cell: Cell, seconds: float) -> list[dict[str, Any]]:
    """Returns the records of a size: the microseconds of a step, and how many times faster than nn.LSTM."""
    error, directions = sequences(cell)
    records = []
    for direction, calls in directions.items():
        ours, dense = in_turn([calls["ours"], calls["dense"]], seconds, None)
        faster = ratios(dense, ours)
        records.append(
            {"op": "lstm", "direction": direction, "dtype": "f32", **cell.named(), "steps": STEPS}
            | {"us": Spread.of([us / STEPS for us in ours]).rounded(1)}
            | {"dense_us": Spread.of([us / STEPS for us in dense]).rounded(1)}
            | {"speedup": faster.rounded(3), "error": float(f"{error:.3g}")}
        )
    return records


def on_gpu(cell: Cell, hubs: bool, seconds: float, device: torch.device) -> dict[str, Any]:
    """Returns the record of a step of all gates in bf16: ours with its gates, warm and cold, the dense
    product alone, and cuSPARSE's where it takes the pattern."""
    size = cell.units, cell.units, cell.block
    # a node of the graph has twice the neighbours that it came with, and itself
    neighbours = max(1, round((cell.density * cell.units / cell.block - 1) / 2))
    made = pattern.barabasi_albert(*size, neighbours, 0) if hubs else pattern.balanced(*size, cell.density, 0)
    kind = torch.bfloat16
    how: dict[str, Any] = {"pattern": made, "input_pattern": made, "device": device, "dtype": kind}
    layer = BlockSparseLSTM(cell.units, cell.units, bias=False, **how)
    weight = beside_of(layer.get_submodule("hh_l0"), 4, kind)  # as the layer multiplies from some steps on
    if weight is None:
        weight = weight_of(layer.get_submodule("hh_l0"), kind)[0]
    product, side = Products(weight), weight.side
    h = torch.randn(cell.batch, cell.units, device=device, dtype=kind)
    c = torch.zeros(cell.batch, cell.units, device=device)
    dense = layer.get_submodule("hh_l0").to_dense().weight  # type: ignore[operator]
    flushed = torch.empty(FLUSH, dtype=torch.uint8, device=device)

    def steps() -> None:
        now, state = h, c
        for _ in range(STEPS):
            now, state = lstm_cell(product(now), state, side=side)

    def products() -> None:
        for _ in range(STEPS):
            torch.nn.functional.linear(h, dense)

    def cold() -> None:
        flushed.zero_()
        lstm_cell(product(h), c, side=side)

    csr = dense.to_sparse_csr()
    calls: Calls = {"ours": steps, "dense": products, "cold": cold, "flush": flushed.zero_}
    calls["cusparse"] = lambda: csr @ h.t()
    us: dict[str, list[float]] = {}
    with torch.no_grad():
        graphs = {}
        for name, call in calls.items():
            try:
                call()
                torch.cuda.synchronize()
                graphs[name] = capture(_queued(call))
            except RuntimeError:  # cuSPARSE refuses some dtypes, and a capture
                if name != "cusparse":
                    raise
        taken = in_turn([graph.replay for graph in graphs.values()], seconds, device, gpu_calls=3)
        each = {"ours": STEPS, "dense": STEPS}
        us = {name: [x / each.get(name, 1) for x in times] for name, times in zip(graphs, taken, strict=True)}
        y, exact = product(h).float(), torch.nn.functional.linear(h, dense).float()
        exact = side_by_side(exact, 4, side) if side else exact
    error = float((y - exact).norm() / exact.norm())
    us["cold"] = [max(0.0, a - b) for a, b in zip(us["cold"], us.pop("flush"), strict=True)]
    named = cell.named() | {"density": made.density, "pattern": "barabasi_albert" if hubs else "balanced"}
    return (
        {"op": "lstm", "direction": "forward", "dtype": dtype_name("bench", kind), **named, "steps": STEPS}
        | {"us": Spread.of(us["ours"]).rounded(2), "dense_us": Spread.of(us["dense"]).rounded(2)}
        | {name: Spread.of(us[name]).rounded(2) for name in ("cold", "cusparse") if name in us}
        | {"speedup": ratios(us["dense"], us["ours"]).rounded(3), "error": float(f"{error:.3g}")}
    )


def _queued(call: Callable[[], object]) -> Callable[[], None]:
    def body() -> None:
        call()

    return body


def world_on_gpu(cell: Cell, seconds: float, device: torch.device) -> dict[str, Any]:
    """Returns the record of the cell with five steps inside each step, forward and backward over 64 steps of
    time by graph: the microseconds of a step of time."""
    neighbours = max(1, round((cell.density * cell.units / cell.block - 1) / 2))
    size, steps = (cell.units, cell.units, cell.block), 64

    def drawn(step: int) -> pattern.Pattern:
        return pattern.barabasi_albert(*size, neighbours, step)

    net = SmallWorldLSTM(64, cell.units, pattern=drawn, inputs=512, outputs=512, device=device)
    net.to(torch.bfloat16)
    x = torch.randn(steps, cell.batch, 64, device=device, dtype=torch.bfloat16)

    def both() -> None:
        for each in net.parameters():
            each.grad = None
        net(x)[0].float().square().mean().backward()

    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        for _ in range(2):
            both()
    torch.cuda.synchronize()
    (taken,) = in_turn([capture(both).replay], seconds, device, gpu_calls=1)
    us = Spread.of([each / steps for each in taken]).rounded(1)
    return {
        "op": "small_world_lstm",
        "direction": "forward + backward",
        **cell.named(),
        "steps": steps,
        "us": us,
    }


def lstm(
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    seconds: Annotated[
        float, typer.Option(min=0.0, help="of each pair of calls; five rounds at least")
    ] = 5.0,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="default: torch's own number")] = None,
    smoke: Annotated[bool, typer.Option(help="one tiny layer: does it run?")] = False,
    units: Annotated[int | None, typer.Option(help="cpu: the sizes of so many units alone")] = None,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="one thread by its own clock, for a busy machine")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="exit 1 where a target was missed")] = False,
    results: Annotated[
        Path | None, typer.Option(help="default: bench/results of the checkout, else here")
    ] = None,
) -> None:
    """Times recurrent layers beside torch's dense ones and writes <results>/<device>/lstm.json."""
    if device not in ("cpu", "cuda"):
        raise Error("bench lstm", "cpu or cuda", device, "see --help")
    if threads is not None or cpu_time:
        torch.set_num_threads(1 if cpu_time else threads or 1)
    if cpu_time:
        rounds.clock = time.thread_time
    gpu, busy = None, busy_share()
    if device == "cpu":
        cells = [cell for cell in (SMOKE if smoke else CPU) if units in (None, cell.units)]
        records = [each for cell in cells for each in on_cpu(cell, seconds)]
    else:
        where = require_gpu("lstm")
        gpu = describe(where, Monitor(where))
        if smoke:
            records = [on_gpu(Cell(512, 0.1, 32), False, seconds, where)]
        else:
            records = [on_gpu(GPU, True, seconds, where)]
            records += [
                on_gpu(Cell(GPU.units, percent / 100, GPU.batch), False, seconds, where)
                for percent in DENSITIES
            ]
            records.append(world_on_gpu(WORLD, seconds, where))
    console = Console()
    console.width = max(console.width, 120)
    console.print(table(records))
    load = {"busy_before": round(busy, 3), "load_average": round(load_average(), 2)}
    head = header("burst", slug(gpu["name"]) if gpu else None) | {"suite": "lstm", "load": load}
    head["clock"] = "the thread's" if cpu_time else "wall"
    path = write_results(
        results or default_folder(Path(".")), "lstm", head | ({"gpu": gpu} if gpu else {}), records
    )
    typer.echo(f"results: {path.resolve()}")
    failed = [] if smoke else missed(records)
    for sentence in [*wrong(records), *failed]:
        typer.echo(f"missed: {sentence}", err=True)
    if wrong(records) or (check and failed):
        raise typer.Exit(1)


def wrong(records: list[dict[str, Any]]) -> list[str]:
    """Returns what differs from the dense layer."""
    limits = {dtype_name("bench", dtype): limit for dtype, limit in ERROR.items()}
    return [
        f"{each['units']} units: an error of {each['error']}"
        for each in records
        if "error" in each and not each["error"] <= limits[each["dtype"]]
    ]


def missed(records: list[dict[str, Any]]) -> list[str]:
    """Returns the targets that were not reached, of the sizes that have one."""
    found = []
    for each in records:
        size = each["units"], each["batch"]
        least = {(2048, 16): MUST, (12288, 32): GPU_MUST}.get(size)
        held = round(each["density"], 2) == (0.05 if size[0] == 2048 else 0.03)
        if least and held and each["direction"] == "forward" and each["speedup"]["median"] < least:
            text = f"{size[0]} units, batch {size[1]}: {each['speedup']['median']:.2f} of dense"
            found.append(f"{text}, target {least:.0f}")
    return found


def table(records: list[dict[str, Any]]) -> Table:
    """Returns the records for the terminal."""
    out = Table("units", "density", "batch", "direction", "us a step", "dense us", "faster")
    for each in records:
        speed, dense = each.get("speedup"), each.get("dense_us")
        faster = f"{speed['median']:.2f} ({speed['p20']:.2f} to {speed['p80']:.2f})" if speed else ""
        row = [str(each["units"]), f"{100 * each['density']:.1f} %", str(each["batch"]), each["direction"]]
        out.add_row(*row, f"{each['us']['median']:.1f}", f"{dense['median']:.1f}" if dense else "", faster)
    return out

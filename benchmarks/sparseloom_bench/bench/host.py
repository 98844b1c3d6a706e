"""`sparseloom bench host`: what a call of each kind of layer costs the host, beside torch's dense layer.

The layers are tiny, so that what is timed is the way to the kernel and back through autograd, not the kernel.
On a GPU the time is that of queueing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import sparseloom.nn as snn
from sparseloom import pattern
from sparseloom.errors import Error

from .gpu.device import Monitor, describe, require_gpu, slug
from .gpu.host import per_call_us
from .results import default_folder, header, write_results
from .timing import Spread, load_average

WIDTH, BLOCK, DENSITY = 64, 16, 0.5
MATRIX, IMAGE, SEQUENCE = (8, WIDTH), (2, WIDTH, 6, 6), (4, 2, WIDTH)
ROUNDS = 9
Make = Callable[[], nn.Module]


def _blocks(cls: Any, *sizes: int, **options: Any) -> Make:
    return partial(cls, *sizes, density=DENSITY, block=BLOCK, **options)


def _in_layout(layout: str, **options: Any) -> Make:
    return partial(snn.SparseLinear, WIDTH, WIDTH, layout=layout, **options)


def _gated() -> nn.Module:
    layer = snn.BlockSparseLinear(WIDTH, WIDTH, density=DENSITY, block=BLOCK)
    return snn.GatedBlockSparseLinear(layer)


def _small_world() -> nn.Module:
    return snn.SmallWorldLSTM(WIDTH, WIDTH, pattern=lambda _: pattern.random(WIDTH, WIDTH, BLOCK, DENSITY))


_LINEAR: Make = partial(nn.Linear, WIDTH, WIDTH)
#: Kind -> what makes it, what makes torch's dense layer of the same call, and the shape of x. The dense twin
#: of the small-world LSTM, which torch has no layer for, is nn.LSTM.
KINDS: dict[str, tuple[Make, Make, tuple[int, ...]]] = {
    "BlockSparseLinear": (_blocks(snn.BlockSparseLinear, WIDTH, WIDTH), _LINEAR, MATRIX),
    "BlockSparseLinear, relu": (
        _blocks(snn.BlockSparseLinear, WIDTH, WIDTH, activation="relu"),
        lambda: nn.Sequential(_LINEAR(), nn.ReLU()),
        MATRIX,
    ),
    "BlockSparseLinear, gelu": (
        _blocks(snn.BlockSparseLinear, WIDTH, WIDTH, activation="gelu"),
        lambda: nn.Sequential(_LINEAR(), nn.GELU()),
        MATRIX,
    ),
    "Semi24Linear": (partial(snn.Semi24Linear, WIDTH, WIDTH), _LINEAR, MATRIX),
    "SparseLinear csr": (_in_layout("csr", density=0.1), _LINEAR, MATRIX),
    "SparseLinear coo": (_in_layout("coo", density=0.1), _LINEAR, MATRIX),
    "SparseLinear nm": (_in_layout("nm", n=2, m=8), _LINEAR, MATRIX),
    "SparseLinear nmg": (_in_layout("nmg", n=1, m=8, g=2), _LINEAR, MATRIX),
    "MaskedLinear": (partial(snn.MaskedLinear, WIDTH, WIDTH, block=BLOCK), _LINEAR, MATRIX),
    "GatedBlockSparseLinear": (_gated, _LINEAR, MATRIX),
    "BlockSparseConv2d": (
        _blocks(snn.BlockSparseConv2d, WIDTH, WIDTH, 3),
        partial(nn.Conv2d, WIDTH, WIDTH, 3),
        IMAGE,
    ),
    "BlockSparseConvTranspose2d": (
        _blocks(snn.BlockSparseConvTranspose2d, WIDTH, WIDTH, 3),
        partial(nn.ConvTranspose2d, WIDTH, WIDTH, 3),
        IMAGE,
    ),
    "BlockSparseLSTM": (_blocks(snn.BlockSparseLSTM, WIDTH, WIDTH), partial(nn.LSTM, WIDTH, WIDTH), SEQUENCE),
    "BlockSparseGRU": (_blocks(snn.BlockSparseGRU, WIDTH, WIDTH), partial(nn.GRU, WIDTH, WIDTH), SEQUENCE),
    "SmallWorldLSTM": (_small_world, partial(nn.LSTM, WIDTH, WIDTH), SEQUENCE),
}


def _run(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x)
    result: Tensor = y[0] if isinstance(y, tuple) else y
    return result


def _without(layer: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        _run(layer, x)


def _with(layer: nn.Module, x: Tensor, dy: Tensor) -> None:
    _run(layer, x).backward(dy)


def measured(kind: str, device: torch.device, calls: int) -> dict[str, Any]:
    """Returns the record of a kind: microseconds of a call without gradients, and of a forward and a backward
    pass, ours and dense's: medians over ROUNDS rounds in turn of the rounds' medians, and their ratios."""
    make, make_dense, shape = KINDS[kind]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    layers = [each().to(device, dtype) for each in (make, make_dense)]
    x = torch.randn(*shape, device=device, dtype=dtype, requires_grad=True)
    dys = [torch.randn_like(_run(layer, x)) for layer in layers]
    record: dict[str, Any] = {"op": "host", "kind": kind, "x": list(shape), "calls": calls * ROUNDS}
    for name, steps in (
        ("without_gradients", [partial(_without, layer, x) for layer in layers]),
        ("with_gradients", [partial(_with, layer, x, dy) for layer, dy in zip(layers, dys, strict=True)]),
    ):
        rounds = [[per_call_us(step, calls, wait).median for step in steps] for _ in range(ROUNDS)]
        over = Spread.of([ours / dense for ours, dense in rounds])
        ours, dense = (median(each) for each in zip(*rounds, strict=True))
        record[name] = {"us": round(ours, 1), "dense_us": round(dense, 1), "over": over.rounded(2)}
    return record


def table(records: list[dict[str, Any]]) -> str:
    """Returns the records in Markdown: microseconds, and in brackets the ratio to dense's with its spread."""
    lines = ["| layer | without gradients | forward and backward |", "|---|---|---|"]
    for record in records:
        cells = []
        for name in ("without_gradients", "with_gradients"):
            each = record[name]
            over = each["over"]
            cells.append(
                f"{each['us']} / {each['dense_us']} ({over['median']}, {over['p20']} to {over['p80']})"
            )
        lines.append(f"| {record['kind']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def host(
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    calls: Annotated[int, typer.Option(min=1, help="of each layer in each of nine rounds")] = 300,
    only: Annotated[list[str] | None, typer.Option(help="kinds whose name holds this text")] = None,
    results: Annotated[
        Path | None, typer.Option(help="default: bench/results of the checkout, else here")
    ] = None,
) -> None:
    """Times calls of tiny layers of every kind beside torch's dense ones on one thread, prints a table in
    Markdown, ours / dense in microseconds, and writes <results>/<device>/host.json."""
    if device not in ("cpu", "cuda"):
        raise Error("bench host", "--device cpu or cuda", device, "pass one of them")
    where = require_gpu("host") if device == "cuda" else torch.device("cpu")
    folder = slug(describe(where, Monitor(where))["name"]) if device == "cuda" else None
    torch.set_num_threads(1)
    kinds = [kind for kind in KINDS if not only or any(text in kind for text in only)]
    records = [measured(kind, where, calls) for kind in kinds]
    typer.echo(table(records))
    head = header("burst", folder) | {"suite": "host", "load_average": load_average()}
    typer.echo(f"results: {write_results(results or default_folder(Path('.')), 'host', head, records)}")

"""`sparseloom bench csr`: CSR products beside dense ones and torch.sparse, on the CPU or a GPU.

Of the spellings of torch.sparse that a user would try, the fastest is called in turn with ours. With all of
them in turn, ours took a third longer for one token of a small layer; older records have it so. The index
of torch.sparse has 32 bits, as MKL and cuSPARSE take it, and W^T for dX is made before.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from sparseloom.errors import Error
from sparseloom.layouts import Csr
from sparseloom.ops.plans import dtype_name
from sparseloom.timing.rounds import in_turn

from .gpu.device import Monitor, describe, require_gpu, slug
from .results import default_folder, header, write_results

SHAPES = ((4096, 4096), (3072, 768))  # out features, in features
SMOKE = ((48, 40),)
SPARSITIES = (0.9, 0.95, 0.99)
TOKENS = (1, 64, 1024)
#: What the columns of the tables add up.
PRODUCTS = {"forward": ("forward",), "forward + backward": ("forward", "dx", "dw")}
#: Largest relative error, in norm, of a product beside the dense one.
ERROR = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3}

Calls = dict[str, Callable[[], Tensor]]


def calls_of(
    rows: int, cols: int, sparsity: float, tokens: int, dtype: torch.dtype, device: torch.device
) -> tuple[Csr, dict[str, dict[str, Calls]]]:
    """Returns the layout and {product: {"ours", "dense" or "torch": calls by name}} on random operands."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, cols, generator=generator)
    weight *= torch.rand(rows, cols, generator=generator) >= sparsity
    weight = weight.to(device, dtype)
    x, dy = (torch.randn(tokens, size, generator=generator).to(device, dtype) for size in (cols, rows))
    layout, turned = Csr.from_dense(weight), Csr.from_dense(weight.t().contiguous())
    layout = layout.with_tensors(layout.tensors(), layout.derived())  # as a layer keeps them
    values = layout.pack(weight)
    w, w_t = layout.to_torch(values), turned.to_torch(turned.pack(weight.t()))
    forward: Calls = {
        "mm": lambda: torch.sparse.mm(w, x.t()),
        "mm, x^T contiguous": lambda: torch.sparse.mm(w, x.t().contiguous()),
        "linear": lambda: functional.linear(x, w),
    }
    dx: Calls = {
        "mm": lambda: torch.sparse.mm(w_t, dy.t()),
        "mm, dy^T contiguous": lambda: torch.sparse.mm(w_t, dy.t().contiguous()),
    }
    if tokens == 1:
        forward["mv"], dx["mv"] = lambda: w @ x[0], lambda: w_t @ dy[0]
    return layout, {
        "forward": {
            "ours": {"csr": lambda: layout.linear(x, values, None)},
            "dense": {"linear": lambda: functional.linear(x, weight)},
            "torch": forward,
        },
        "dx": {
            "ours": {"csr": lambda: layout.dx(dy, values)},
            "dense": {"mm": lambda: dy @ weight},
            "torch": dx,
        },
        "dw": {
            "ours": {"csr": lambda: layout.dw(dy, x)},
            "dense": {"mm": lambda: dy.t() @ x},
            "torch": {"sampled_addmm": lambda: torch.sparse.sampled_addmm(w, dy.t(), x, beta=0.0)},
        },
    }


def measured(
    rows: int,
    cols: int,
    sparsity: float,
    tokens: int,
    dtype: torch.dtype,
    device: torch.device,
    seconds: float,
) -> dict[str, Any]:
    """Returns the record of a cell: for every product the kernel of ours, its relative error beside the dense
    product, and the microseconds of each call in its fastest round, which other processes disturb least. A
    call that torch refuses is left out."""
    layout, products = calls_of(rows, cols, sparsity, tokens, dtype, device)
    record: dict[str, Any] = {"op": "csr", "dtype": dtype_name("bench", dtype), "shape": [rows, cols]}
    record |= {"sparsity": sparsity, "tokens": tokens, "kernels": {}, "error": {}, "us": {}}
    for product, kinds in products.items():
        own, dense = kinds["ours"]["csr"](), next(iter(kinds["dense"].values()))()
        exact = (layout.pack(dense) if product == "dw" else dense).double()
        error = float((own.double() - exact).norm() / exact.norm().clamp(min=1e-30))
        gpu = device if device.type == "cuda" else None
        torchs = {name: call for name, call in kinds["torch"].items() if _runs(call)}
        if len(torchs) > 1:
            tried = in_turn(list(torchs.values()), seconds / 4, gpu)
            fastest = min(zip(torchs, tried, strict=True), key=lambda each: min(each[1]))[0]
            torchs = {fastest: torchs[fastest]}
        flat = [
            (kind, name, call)
            for kind, calls in (kinds | {"torch": torchs}).items()
            for name, call in calls.items()
        ]
        samples = in_turn([call for *_, call in flat], seconds, gpu)
        us: dict[str, dict[str, float]] = {}
        for (kind, name, _), taken in zip(flat, samples, strict=True):
            us.setdefault(kind, {})[name] = round(min(taken), 1)
        record["us"][product] = us
        record["error"][product] = float(f"{error:.3g}")
        record["kernels"][product] = layout.plan(tokens, product, dtype, False)["kernel"]
    return record


def _runs(call: Callable[[], Tensor]) -> bool:
    try:
        call()
    except RuntimeError:
        return False
    return True


def speedups(record: dict[str, Any], products: tuple[str, ...]) -> dict[str, float]:
    """Returns our microseconds for these products together as "ours", and how much longer "dense" and the
    fastest calls of "torch" take; without "torch" where it refuses one of them."""
    fastest = {
        kind: sum(min(record["us"][product][kind].values()) for product in products)
        for kind in ("ours", "dense", "torch")
        if all(kind in record["us"][product] for product in products)
    }
    return {kind: us if kind == "ours" else us / fastest["ours"] for kind, us in fastest.items()}


def _table(records: list[dict[str, Any]]) -> Table:
    out = Table("W", "dtype", "sparsity", "tokens")
    for name in PRODUCTS:
        for column in (f"{name} us", "over dense", "over torch.sparse"):
            out.add_column(column, justify="right")
    for each in records:
        row = [
            " x ".join(map(str, each["shape"])),
            each["dtype"],
            f"{each['sparsity']:.0%}",
            f"{each['tokens']}",
        ]
        for products in PRODUCTS.values():
            found = speedups(each, products)
            row.append(f"{found['ours']:.0f}")
            row += [f"{found[kind]:.2f}" if kind in found else "" for kind in ("dense", "torch")]
        out.add_row(*row)
    return out


def _summary(records: list[dict[str, Any]]) -> list[str]:
    """Says of each column how it compares with torch.sparse: the worst cell and the geometric mean."""
    lines = []
    for name, products in PRODUCTS.items():
        ratios = [found["torch"] for each in records if "torch" in (found := speedups(each, products))]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            lines.append(
                f"{name} over torch.sparse: {mean:.2f} in geometric mean, {min(ratios):.2f} at least"
            )
    return lines


def csr(
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    seconds: Annotated[
        float, typer.Option(min=0.0, help="of each product's calls, all together; five rounds at least")
    ] = 0.5,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16")] = "float32",
    smoke: Annotated[bool, typer.Option(help="one tiny weight: does it run?")] = False,
    results: Annotated[
        Path | None, typer.Option(help="default: bench/results of the checkout, else here")
    ] = None,
) -> None:
    """Times CSR products, forward, dX and dW, beside dense ones and torch.sparse and writes
    <results>/<device>/csr_linear.json (other dtypes than float32: csr_linear_<dtype>.json)."""
    try:
        if device not in ("cpu", "cuda") or dtype not in map(_name, ERROR):
            got = f"{device}, {dtype}"
            raise Error("bench", "cpu or cuda, and a dtype of 16 or 32 bits", got, "see --help")
        where = require_gpu("csr") if device == "cuda" else torch.device("cpu")
    except Error as error:
        typer.echo(f"sparseloom bench csr: {error}", err=True)
        raise typer.Exit(1) from None
    kind: torch.dtype = getattr(torch, dtype)
    warnings.filterwarnings("ignore", message="Sparse")
    with torch.no_grad():
        records = [
            measured(*shape, sparsity, tokens, kind, where, seconds)
            for shape in (SMOKE if smoke else SHAPES)
            for sparsity in SPARSITIES
            for tokens in TOKENS
        ]
    gpu = describe(where, Monitor(where)) if where.type == "cuda" else None
    head = header("burst", slug(gpu["name"]) if gpu else None) | {"suite": "csr_linear"}
    console = Console()
    console.width = max(console.width, 140)
    console.print(_table(records))
    typer.echo("\n".join(_summary(records)))
    name = "csr_linear" if kind is torch.float32 else f"csr_linear_{dtype}"
    path = write_results(
        results or default_folder(Path(".")), name, head | ({"gpu": gpu} if gpu else {}), records
    )
    typer.echo(f"results: {path.resolve()}")
    wrong = [each for each in records if max(each["error"].values()) > ERROR[kind]]
    for each in wrong:
        typer.echo(f"wrong: {each['shape']} {each['sparsity']} {each['tokens']}: {each['error']}", err=True)
    if wrong:
        raise typer.Exit(1)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

"""`sparseloom bench attention`: attention over kept blocks beside torch's dense call on the CPU: forward,
backward, and the transposition of the lists. On a GPU: `sparseloom bench gpu --group attention`.

All are called in turn. Rates count the products of kept blocks alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import sparseloom
from sparseloom import AttentionPattern
from sparseloom.attention import plan
from sparseloom.errors import Error
from sparseloom.timing.rounds import in_turn

from .results import default_folder, header, write_results

#: Tokens and head size; 8 heads, one sequence.
SHAPES, SMOKE = ((4096, 64),), ((256, 64),)
HEADS, BLOCKS, DENSITIES, KINDS = 8, (128, 64), (0.25, 0.1), ("random", "trained")
#: Largest relative error, in norm, beside softmax in fp32.
ERROR = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}

Calls = dict[str, Callable[[], Any]]


def drawn(kind: str, tokens: int, block: int, density: float, generator: torch.Generator) -> Tensor:
    """Returns a map of each head, with the same number of blocks in each row: at random, or as trained ones
    are, near the diagonal and in columns that all rows look at."""
    side = tokens // block
    scores = torch.rand(1, HEADS, side, side, generator=generator)
    if kind == "trained":
        apart = (torch.arange(side)[:, None] - torch.arange(side)).abs() / side
        columns = torch.randn(1, HEADS, 1, side, generator=generator).exp()
        scores = scores * columns + 4 * (-16 * apart).exp()
    kept = torch.zeros_like(scores, dtype=torch.bool)
    return kept.scatter(-1, scores.topk(max(1, round(density * side)), -1).indices, True)


def with_gradient(forward: Callable[..., Tensor], inputs: list[Tensor], dout: Tensor) -> Calls:
    """Returns the calls "forward", without a graph for gradients, and "backward"."""
    out = forward(*inputs)

    def alone() -> Tensor:
        with torch.no_grad():
            return forward(*inputs)

    return {
        "forward": alone,
        "backward": lambda: torch.autograd.grad(out, inputs, dout, retain_graph=True),
    }


def contenders(inputs: list[Tensor], dout: Tensor, kept: Tensor, block: int) -> Iterator[tuple[str, Calls]]:
    """Yields names and calls."""
    pattern = AttentionPattern.from_map(kept, block)
    yield "dense", with_gradient(scaled_dot_product_attention, inputs, dout)
    ours = with_gradient(lambda q, k, v: sparseloom.attention(q, k, v, pattern), inputs, dout)
    fresh = AttentionPattern(pattern.counts, pattern.indices, block, dynamic=True)
    yield "ours", ours | {"transpose": lambda: fresh.keys(kept.shape[-1])}


def error_of(inputs: list[Tensor], kept: Tensor, block: int) -> float:
    """Returns the relative error of our result of the first head's first 512 queries."""
    q, k, v = (each.detach()[:, :1].contiguous() for each in inputs)
    rows = min(512, q.shape[2])
    own = sparseloom.attention(q, k, v, AttentionPattern.from_map(kept[:, :1], block))
    mask = kept[:, :1].repeat_interleave(block, 2)[:, :, :rows].repeat_interleave(block, 3)
    exact = scaled_dot_product_attention(q[:, :, :rows].double(), k.double(), v.double(), mask)
    return float((own[:, :, :rows].double() - exact).norm() / exact.norm())


def measured(
    tokens: int, dim: int, block: int, density: float, kind: str, dtype: torch.dtype, seconds: float
) -> dict[str, Any]:  # fmt: skip
    """Returns the record of a cell: microseconds of each call in its fastest round, and useful TFLOP/s."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn(1, HEADS, tokens, dim, generator=generator).to(dtype) for _ in range(4))
    inputs = [each.requires_grad_() for each in (q, k, v)]
    kept = drawn(kind, tokens, block, density, generator)
    flat = [
        (name, part, call)
        for name, calls in contenders(inputs, dout, kept, block)
        for part, call in calls.items()
    ]
    runs = [call for *_, call in flat]
    us: dict[str, dict[str, float]] = {}
    for (name, part, _), taken in zip(flat, in_turn(runs, seconds, None), strict=True):
        us.setdefault(name, {})[part] = round(min(taken), 1)
    share = kept.float().mean().item()
    products = {"forward": 4, "backward": 10}
    rate = {
        name: {
            part: round(
                count * HEADS * tokens**2 * dim * (1 if name == "dense" else share) / parts[part] / 1e6, 2
            )
            for part, count in products.items()
        }
        for name, parts in us.items()
    }
    pattern = AttentionPattern.from_map(kept, block)
    rows = {part: plan(q, k, pattern, backward=part == "backward")["kernel"] for part in products}
    return {
        "op": "block_attention", "dtype": str(dtype).removeprefix("torch."), "shape": [HEADS, tokens, dim],
        "block": block, "density": density, "kind": kind, "us": us, "tflops": rate, "kernels": rows,
        "error": float(f"{error_of(inputs, kept, block):.3g}"),
    }  # fmt: skip


def table(records: list[dict[str, Any]]) -> str:
    """Returns the records in Markdown: microseconds, and in brackets useful TFLOP/s."""
    names = "dense", "ours"
    parts = [(name, part) for part in ("forward", "backward") for name in names]
    head = ["tokens, head size", "block", "density", "map", *(f"{part}, {name}" for name, part in parts)]
    lines = [f"| {' | '.join([*head, 'transpose'])} |", "|---" * (len(head) + 1) + "|"]
    for each in records:
        _, tokens, dim = each["shape"]
        row = [f"{tokens}, {dim}", f"{each['block']}", f"{each['density']}", each["kind"]]
        for name, part in parts:
            told = each["us"].get(name)
            row.append(f"{told[part]:.0f} ({each['tflops'][name][part]:.3g})" if told else "-")
        lines.append(f"| {' | '.join([*row, format(each['us']['ours']['transpose'], '.0f')])} |")
    return "\n".join(lines)


def attention(
    seconds: Annotated[
        float, typer.Option(min=0.0, help="of each cell's calls, all together; five rounds at least")
    ] = 2.0,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16")] = "float32",
    smoke: Annotated[bool, typer.Option(help="one tiny sequence: does it run?")] = False,
    results: Annotated[
        Path | None, typer.Option(help="default: bench/results of the checkout, else here")
    ] = None,
) -> None:
    """Times attention over kept blocks beside dense attention, prints a table in Markdown and writes
    <results>/<device>/block_attention.json."""
    kinds = {str(each).removeprefix("torch."): each for each in ERROR}
    if dtype not in kinds:
        error = Error("bench", f"a dtype of {', '.join(kinds)}", dtype, "see --help")
        typer.echo(f"sparseloom bench attention: {error}", err=True)
        raise typer.Exit(1)
    records = [
        measured(*shape, block, density, kind, kinds[dtype], seconds)
        for shape in (SMOKE if smoke else SHAPES)
        for block in BLOCKS
        for density in DENSITIES
        for kind in KINDS
    ]
    typer.echo(table(records))
    head = header("burst", None) | {"suite": "block_attention"}
    path = write_results(results or default_folder(Path(".")), "block_attention", head, records)
    typer.echo(f"results: {path.resolve()}")
    wrong = [each for each in records if each["error"] > ERROR[kinds[dtype]]]
    for each in wrong:
        typer.echo(f"wrong: {each['shape']} {each['density']}: {each['error']}", err=True)
    if wrong:
        raise typer.Exit(1)

"""`sparseloom bench nmg`: n:m:g products on the CPU beside dense ones and CSR of the same density.

All three are called in turn on weights drawn from a normal distribution, in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from torch.nn import functional

from sparseloom.layouts import Csr, Nm, Nmg
from sparseloom.timing.rounds import in_turn

from .results import default_folder, header, write_results

SHAPES = ((4096, 4096), (3072, 768), (768, 3072))  # out features, in features
SMOKE = ((64, 96),)
KEPT, SMOKE_KEPT = 1024, 64  # the side of the weight whose magnitudes are summed
GROUPS = ((1, 4, 16), (1, 8, 16), (2, 16, 2), (1, 16, 16), (1, 32, 8))  # n, m, g
TOKENS = (1, 16, 64, 1024)


def kept(weight: Tensor, n: int, m: int, g: int) -> dict[str, float]:
    """Returns the share of the sum of magnitudes that n:m:g, n:m and the largest elements keep."""
    size = weight.abs()
    layouts = {
        "nmg": Nmg.from_dense(weight, n=n, m=m, g=g),
        "nm": Nm.from_dense(weight, n=n, m=m),
        "any": Csr.from_dense(weight, density=n / m),
    }
    return {name: float(layout.pack(size).sum() / size.sum()) for name, layout in layouts.items()}


def measured(seconds: float, shapes: tuple[tuple[int, int], ...] = SHAPES) -> list[dict[str, Any]]:
    """Returns a record of every cell: the microseconds of each call in its fastest round, which other
    processes disturb least, and what the plan predicted."""
    records = []
    for rows, cols in shapes:
        weight = torch.randn(rows, cols, generator=torch.Generator().manual_seed(0))
        for n, m, g in GROUPS:
            nmg, csr = Nmg.from_dense(weight, n=n, m=m, g=g), Csr.from_dense(weight, density=n / m)
            values, elements = nmg.pack(weight), csr.pack(weight)
            for tokens in TOKENS:
                x = torch.randn(tokens, cols, generator=torch.Generator().manual_seed(1))
                calls: dict[str, Callable[[], object]] = {
                    "nmg": partial(nmg.linear, x, values, None),
                    "csr": partial(csr.linear, x, elements, None),
                    "dense": partial(functional.linear, x, weight),
                }
                samples = in_turn(list(calls.values()), seconds, None)
                us = {name: round(min(taken), 1) for name, taken in zip(calls, samples, strict=True)}
                plan = nmg.plan(tokens, "forward", torch.float32, False)
                record: dict[str, Any] = {
                    "op": "nmg",
                    "dtype": "f32",
                    "shape": [rows, cols],
                    "group": [n, m, g],
                }
                record |= {"tokens": tokens, "us": us, "kernel": plan["kernel"]}
                records.append(record | {"predicted_us": round(plan["predicted_us"], 1)})
    return records


def scores(side: int) -> dict[str, dict[str, float]]:
    """Returns what each group of GROUPS keeps of a normal weight [side, side]; see kept."""
    weight = torch.randn(side, side, generator=torch.Generator().manual_seed(0))
    return {f"{n}:{m}:{g}": kept(weight, n, m, g) for n, m, g in GROUPS}


def table(records: list[dict[str, Any]], shares: dict[str, dict[str, float]]) -> str:
    """Returns the records in Markdown: our microseconds, and in brackets dense's and CSR's over them."""
    lines = [f"| W (out x in) | n:m:g | {' | '.join(map(str, TOKENS))} |", "|---" * (2 + len(TOKENS)) + "|"]
    rows: dict[tuple[str, str], list[str]] = {}
    for record in records:
        us = record["us"]
        key = (" x ".join(map(str, record["shape"])), ":".join(map(str, record["group"])))
        over = (f"{us[other] / us['nmg']:.2f}" for other in ("dense", "csr"))
        rows.setdefault(key, []).append(f"{us['nmg']:.0f} ({', '.join(over)})")
    lines += [f"| {' | '.join((*key, *told))} |" for key, told in rows.items()]
    lines += ["", "| n:m:g | kept | of n:m | of the largest |", "|---|---|---|---|"]
    for name, each in shares.items():
        parts = (each["nmg"], each["nmg"] / each["nm"], each["nmg"] / each["any"])
        lines.append(f"| {name} | {' | '.join(f'{part:.1%}' for part in parts)} |")
    return "\n".join(lines)


def nmg(
    seconds: Annotated[
        float, typer.Option(min=0.0, help="of each cell's calls, all together; five rounds at least")
    ] = 0.5,
    smoke: Annotated[bool, typer.Option(help="one tiny weight: does it run?")] = False,
    results: Annotated[
        Path | None, typer.Option(help="default: bench/results of the checkout, else here")
    ] = None,
) -> None:
    """Times n:m:g products beside dense ones and CSR, prints two tables in Markdown and writes
    <results>/<device>/nmg_linear.json."""
    with torch.no_grad():
        records = measured(seconds, SMOKE if smoke else SHAPES)
        shares = scores(SMOKE_KEPT if smoke else KEPT)
    typer.echo(table(records, shares))
    head = header("burst") | {"suite": "nmg_linear", "kept": shares}
    typer.echo(f"results: {write_results(results or default_folder(Path('.')), 'nmg_linear', head, records)}")

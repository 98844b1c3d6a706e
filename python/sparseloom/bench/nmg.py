"""Times n:m:g products on the CPU beside dense ones and CSR of the same density: ``python -m
sparseloom.bench.nmg``.

All three are called in turn on weights drawn from a normal distribution, in fp32.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..layouts import Csr, Nm, Nmg
from ..timing.rounds import in_turn

SHAPES = ((4096, 4096), (3072, 768), (768, 3072))  # out features, in features
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


def measured(seconds: float) -> dict[str, Any]:
    """Returns the record: for every cell the microseconds of each call in its fastest round, which other
    processes disturb least, and what the plan predicted."""
    cells = []
    for rows, cols in SHAPES:
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
                told = {"kernel": plan["kernel"], "predicted_us": round(plan["predicted_us"], 1)}
                cells.append({"shape": [rows, cols], "group": [n, m, g], "tokens": tokens, "us": us, **told})
    weight = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0))
    scores = {f"{n}:{m}:{g}": kept(weight, n, m, g) for n, m, g in GROUPS}
    threads = torch.get_num_threads()
    return {"torch": torch.__version__, "threads": threads, "dtype": "f32", "kept": scores, "cells": cells}


def table(record: dict[str, Any]) -> str:
    """Returns the record in Markdown: our microseconds, and in brackets dense's and CSR's over them."""
    lines = [f"| W (out x in) | n:m:g | {' | '.join(map(str, TOKENS))} |", "|---" * (2 + len(TOKENS)) + "|"]
    rows: dict[tuple[str, str], list[str]] = {}
    for cell in record["cells"]:
        us = cell["us"]
        key = (" x ".join(map(str, cell["shape"])), ":".join(map(str, cell["group"])))
        over = (f"{us[other] / us['nmg']:.2f}" for other in ("dense", "csr"))
        rows.setdefault(key, []).append(f"{us['nmg']:.0f} ({', '.join(over)})")
    lines += [f"| {' | '.join((*key, *told))} |" for key, told in rows.items()]
    lines += ["", "| n:m:g | kept | of n:m | of the largest |", "|---|---|---|---|"]
    for name, each in record["kept"].items():
        shares = (each["nmg"], each["nmg"] / each["nm"], each["nmg"] / each["any"])
        lines.append(f"| {name} | {' | '.join(f'{share:.1%}' for share in shares)} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, writes the record and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m sparseloom.bench.nmg", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each cell's calls, all together")
    parser.add_argument("--out", type=Path, help="the file for the record, JSON")
    given = parser.parse_args()
    record = measured(given.seconds)
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()

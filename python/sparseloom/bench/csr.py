"""Times CSR products on the CPU beside dense ones and torch.sparse: ``python -m sparseloom.bench.csr``.

Every spelling of torch.sparse that a user would try is called in turn with ours, and the fastest counts. Its
index has 32 bits, as MKL takes it, and W^T for dX is made before.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from .. import ops
from ..layouts import Csr
from ..timing.rounds import in_turn

SHAPES = ((4096, 4096), (3072, 768))  # out features, in features
SPARSITIES = (0.9, 0.95, 0.99)
TOKENS = (1, 64, 1024)

Calls = dict[str, Callable[[], object]]


def calls_of(rows: int, cols: int, sparsity: float, tokens: int) -> dict[str, dict[str, Calls]]:
    """Returns {product: {"ours", "dense" or "torch": calls by name}} on random operands."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, cols, generator=generator)
    weight *= torch.rand(rows, cols, generator=generator) >= sparsity
    x, dy = (torch.randn(tokens, size, generator=generator) for size in (cols, rows))
    layout, turned = Csr.from_dense(weight), Csr.from_dense(weight.t().contiguous())
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
    return {
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


def measured(seconds: float) -> dict[str, Any]:
    """Returns the record: for every cell and product the microseconds of each call in its fastest round,
    which other processes disturb least."""
    cells = []
    for rows, cols in SHAPES:
        for sparsity in SPARSITIES:
            for tokens in TOKENS:
                us: dict[str, dict[str, dict[str, float]]] = {}
                for product, kinds in calls_of(rows, cols, sparsity, tokens).items():
                    flat = [
                        (kind, name, call) for kind, calls in kinds.items() for name, call in calls.items()
                    ]
                    samples = in_turn([call for *_, call in flat], seconds, None)
                    for (kind, name, _), taken in zip(flat, samples, strict=True):
                        us.setdefault(product, {}).setdefault(kind, {})[name] = round(min(taken), 1)
                cells.append({"shape": [rows, cols], "sparsity": sparsity, "tokens": tokens, "us": us})
    told = ops.info()
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "dtype": "f32",
            "machine": told.get("cpu", ""), "cells": cells}  # fmt: skip


def table(record: dict[str, Any]) -> str:
    """Returns the record in Markdown: our times, and those of dense and of torch.sparse over them."""
    lines = [
        "| W (out x in) | sparsity | tokens | forward us | over dense | over torch.sparse "
        "| forward + backward us | over dense | over torch.sparse |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in record["cells"]:
        row = [f"{cell['shape'][0]} x {cell['shape'][1]}", f"{cell['sparsity']:.0%}", str(cell["tokens"])]
        for products in (("forward",), ("forward", "dx", "dw")):
            best = {
                kind: sum(min(cell["us"][product][kind].values()) for product in products)
                for kind in ("ours", "dense", "torch")
            }
            row += [
                f"{best['ours']:.0f}",
                *(f"{best[kind] / best['ours']:.2f}" for kind in ("dense", "torch")),
            ]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, writes the record and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m sparseloom.bench.csr", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each product's calls, all together")
    parser.add_argument("--out", type=Path, help="the file for the record, JSON")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", message="Sparse")
    record = measured(given.seconds)
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()

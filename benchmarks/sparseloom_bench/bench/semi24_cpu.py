"""`sparseloom bench semi24`: 2:4 products of few tokens on the CPU beside torch's dense ones.

Few tokens are bound by the bytes of W, of which 2:4 reads 9/16 in 16 bits. Equal weights take turns until
they hold more than any cache, so that each call reads W from memory, as a model of many layers does.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer

from sparseloom.errors import Error
from sparseloom.ops import semi24 as ops_semi24
from sparseloom.ops.plans import dtype_name
from sparseloom.testing import check_tiles
from sparseloom.testing.tolerance import TILE_TOKENS

from . import semi24
from .measure import ROTATED_BYTES
from .results import default_folder, header, write_results
from .timing import Spread, interleaved, ratios

#: In features, out features.
SHAPES = ((4096, 14336),)
SMOKE = ((64, 96),)
TOKENS = (1, 2, 4, 8, 12, 16)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Products:
    """A 2:4 weight [n, k] in turns, ours and dense, and what its product with x [m, k] is."""

    def __init__(self, k: int, n: int, dtype: torch.dtype, rotated_bytes: int) -> None:
        self._generator, self._dtype, self._k = torch.Generator().manual_seed(0), dtype, k
        kept = semi24.places(n, k, self._generator)
        self._weight = semi24.draw((n, k), dtype, self._generator, kept)
        self._packed = ops_semi24.pack(self._weight)
        copies = 1 + rotated_bytes // sum(each.nbytes for each in self._packed)
        own = [self._packed] + [tuple(each.clone() for each in self._packed) for _ in range(copies - 1)]
        dense = [self._weight] + [self._weight.clone() for _ in range(copies - 1)]
        self._own, self._dense = itertools.cycle(own), itertools.cycle(dense)
        self.weight_bytes = sum(each.nbytes for each in self._packed)

    def measured(self, m: int, seconds: float) -> dict[str, Any]:
        """Returns the record of m tokens: the spreads of both products' microseconds and of their ratio, and
        our share of the error allowed in the worst tile."""
        n = self._weight.shape[0]
        x = semi24.draw((m, self._k), self._dtype, self._generator)
        plan = ops_semi24.plan("forward", self._dtype, m, (n, self._k), False, None, False, "cpu")

        def ours() -> torch.Tensor:
            values, positions = next(self._own)
            return ops_semi24.linear(x, values, positions, self._k)

        def dense() -> torch.Tensor:
            return F.linear(x, next(self._dense))

        wide, exact = x.double(), self._weight.double()
        references = dense(), wide @ exact.T, wide.abs() @ exact.abs().T
        found = check_tiles(ours(), *references, (TILE_TOKENS, semi24.TILE[0]))
        own_us, dense_us = interleaved([ours, dense], seconds)
        us = Spread.of(own_us)
        return {
            "op": "semi24",
            "dtype": dtype_name("bench", self._dtype),
            "m": m,
            "k": self._k,
            "n": n,
            "kernel": plan["kernel"],
            "predicted_us": round(plan["predicted_us"], 1),
            "us": us.rounded(1),
            "dense_us": Spread.of(dense_us).rounded(1),
            "speedup": ratios(dense_us, own_us).rounded(3),
            "weight_gb_s": round(self.weight_bytes / us.median / 1e3, 2),
            "tile_excess": round(found.excess, 4),
            "samples": len(own_us),
            "threads": torch.get_num_threads(),
        }


def table(records: list[dict[str, Any]]) -> str:
    """Returns the records in Markdown."""
    lines = ["| dtype | tokens x in x out | kernel | us | GB/s of W | over dense |", "|---" * 6 + "|"]
    for each in records:
        ratio = Spread(**each["speedup"])
        told = [
            each["dtype"],
            "{m} x {k} x {n}".format(**each),
            each["kernel"],
            f"{each['us']['median']:.0f}",
        ]
        told += [f"{each['weight_gb_s']:.1f}", f"{ratio.median:.2f}{ratio.words}"]
        lines.append(f"| {' | '.join(told)} |")
    return "\n".join(lines)


def semi24_command(
    seconds: Annotated[
        float, typer.Option(min=0.0, help="of each cell's calls, both together; eight rounds at least")
    ] = 4.0,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32")] = "bfloat16",
    smoke: Annotated[bool, typer.Option(help="one tiny weight: does it run?")] = False,
    results: Annotated[
        Path | None, typer.Option(help="default: bench/results of the checkout, else here")
    ] = None,
) -> None:
    """Times 2:4 products of 1 to 16 tokens on the CPU beside torch's dense ones, weights from memory, and
    writes <results>/<device>/semi24_cpu.json (other dtypes than bfloat16: semi24_cpu_<dtype>.json)."""
    kinds = {str(each).removeprefix("torch."): each for each in DTYPES}
    if dtype not in kinds:
        error = Error("bench", f"a dtype of {', '.join(kinds)}", dtype, "see --help")
        typer.echo(f"sparseloom bench semi24: {error}", err=True)
        raise typer.Exit(1)
    records = []
    with torch.no_grad():
        for shape in SMOKE if smoke else SHAPES:
            products = Products(*shape, kinds[dtype], 0 if smoke else ROTATED_BYTES)
            records += [products.measured(m, seconds) for m in TOKENS]
    typer.echo(table(records))
    name = "semi24_cpu" if kinds[dtype] is torch.bfloat16 else f"semi24_cpu_{dtype}"
    head = header("burst") | {"suite": "semi24_cpu"}
    typer.echo(
        f"results: {write_results(results or default_folder(Path('.')), name, head, records).resolve()}"
    )
    wrong = [each for each in records if each["tile_excess"] > 1]
    for each in wrong:
        typer.echo(f"wrong: {each['m']} tokens: {each['tile_excess']} times the error allowed", err=True)
    if wrong:
        raise typer.Exit(1)

"""Measures the int8 cells of the CPU suite.

x is int8 already, with one scale per token and per output feature, and y is bf16. Beside it run our own bf16
product of the same blocks and torch's dense int8 products of the same sizes.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sparseloom import ops
from sparseloom.errors import Error
from sparseloom.testing import sparse_product

from .cells import Cell
from .measure import Peak, timed_record
from .peak import Spin
from .timing import Call, Spread, interleaved, ratios

Record = dict[str, Any]


def runs_here() -> bool:
    """Returns whether a fast kernel multiplies int8 on this CPU."""
    rates = ops.info()["rates"]
    return max(rates.get("i8_avx512", 0), rates.get("i8_amx", 0)) > 0


class Int8Bench:
    """Holds the operands of one cell, drawn as bf16 and quantized, and computes the result that every int8
    kernel has to give."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.case = cell, replace(cell, dtype="bf16").case()
        self.inputs = self.case.inputs()
        self.x, self.x_scale = ops.quantize_rows(self.inputs.x, torch.int8)
        weight = self.inputs.weight().float()
        self.weight, self.w_scale = ops.quantize_rows(weight, torch.int8)
        index = self.inputs.index
        self.values = ops.call("pack", self.weight, index.crow, index.col, index.bm, index.bn)
        self.kernel = str(ops.plan(index, "forward", torch.int8, cell.m)["kernel"])
        self.bf16_kernel = str(ops.plan(index, "forward", torch.bfloat16, cell.m, strict=True)["kernel"])
        self.flops = 2.0 * cell.m * self.inputs.pattern.stats().elements

    def sparse(self) -> Tensor:
        scales = self.x_scale, self.w_scale
        return ops.scaled_linear(
            self.x, self.values, self.inputs.index, *scales, out_dtype=torch.bfloat16, kernel=self.kernel
        )

    def bf16(self) -> Tensor:
        return sparse_product(self.case, self.inputs, self.bf16_kernel)

    def expected(self) -> Tensor:
        """Returns the exact result: the sums are below 2^53, so that fp64 holds them exactly in any order."""
        sums = (self.x.double() @ self.weight.double().t()).float()
        return ((sums * self.x_scale).double() * self.w_scale.flatten().double()).float().bfloat16()

    def dense(self) -> dict[str, Call]:
        """Returns torch's dense int8 products by name.

        They are the plain one into int32, and the quantized linear layer of the engine that torch prefers
        here, with 8-bit input and output.
        """
        turned = self.weight.t()
        calls: dict[str, Call] = {"int_mm": lambda: torch._int_mm(self.x, turned)}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns that it is deprecated
                n = self.cell.n
                scales, zeros = self.w_scale.flatten().double(), torch.zeros(n, dtype=torch.long)
                weight = torch._make_per_channel_quantized_tensor(self.weight, scales, zeros, 0)
                packed = torch.ops.quantized.linear_prepack(weight, torch.zeros(n))
                x = torch._make_per_tensor_quantized_tensor(
                    self.x.to(torch.int16).add(128).to(torch.uint8), 0.02, 128
                )
            calls["quantized_linear"] = lambda: torch.ops.quantized.linear(x, packed, 1.0, 128)
            calls["quantized_linear"]()
        except RuntimeError:  # a build without that engine
            calls.pop("quantized_linear", None)
        return calls


def measure_int8(cell: Cell, seconds: float) -> Record:
    """Times int8, our bf16 and torch's dense products in turn for about ``seconds``.

    ``over_bf16`` is our bf16 product's time over int8's. Raises Error for another direction than forward.
    """
    if cell.direction != "forward":
        raise Error(
            "bench", "int8 cells of the forward product", str(cell), "8-bit products have no gradients"
        )
    bench = Int8Bench(cell)
    wrong = int((bench.sparse() != bench.expected()).sum())
    dense = bench.dense()
    spin = Spin(cell.dtype)
    ours, bf16, spun, *others = interleaved([bench.sparse, bench.bf16, spin, *dense.values()], seconds)
    times = dict(zip(dense, others, strict=True))
    best = min(times, key=lambda name: Spread.of(times[name]).median)
    check = {
        # int8 results are exact by contract: one element that differs is as wrong as all.
        "worst_tile_error": float(wrong > 0),
        "dense_tile_error": 0.0,
        "tile_excess": float("inf") if wrong else 0.0,
    }
    by = {"flops": bench.flops, "weight_bytes": bench.values.nbytes}
    record = timed_record(cell, bench.kernel, ours, times[best], Peak(spin, spun), check=check, **by)
    return record | {
        "bf16_kernel": bench.bf16_kernel,
        "bf16_us": round(Spread.of(bf16).median, 2),
        "over_bf16": ratios(bf16, ours).rounded(3),
        "dense_by": best,
        "peers": {name: round(Spread.of(samples).median, 2) for name, samples in times.items()},
    }

"""Measures the host overhead of a module call: the time from the call until it returns, launches included,
with nothing to wait for."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from sparseloom.nn import BlockSparseLinear

from ..timing import Spread

TOKENS, FEATURES, BLOCK, DENSITY = 16, 4096, 32, 0.1
CALLS = 10_000
#: Calls between two waits; the waits are not timed. The launch queue holds about 1000 launches and must never
#: fill.
BATCH = 100


def per_call_us(call: Callable[[], object], calls: int, wait: Callable[[], None]) -> Spread:
    """Times single calls in microseconds and calls `wait` after every BATCH of them."""
    for _ in range(BATCH):
        call()
    wait()
    times: list[float] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        while len(times) < calls:
            for _ in range(BATCH):
                start = time.perf_counter_ns()
                call()
                times.append((time.perf_counter_ns() - start) / 1e3)
            wait()
    finally:
        if collecting:
            gc.enable()
    return Spread.of(times)


def host_cost(device: torch.device, calls: int = CALLS) -> dict[str, Any]:
    """Returns a record of op "host": the times of BlockSparseLinear and F.linear of one size, first under
    no_grad, then with gradients."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(0)
    layer = BlockSparseLinear(
        FEATURES, FEATURES, density=DENSITY, block=BLOCK, dtype=dtype, seed=generator
    ).to(device)
    dense = torch.nn.Linear(FEATURES, FEATURES, dtype=dtype).to(device)
    x = torch.randn(TOKENS, FEATURES, generator=generator).to(device, dtype)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    record: dict[str, Any] = {
        "op": "host",
        "dtype": "bf16" if dtype == torch.bfloat16 else "f32",
        "m": TOKENS,
        "k": FEATURES,
        "n": FEATURES,
        "block": [BLOCK, BLOCK],
        "density": DENSITY,
        "calls": calls,
    }
    for name, mode in (("without_gradients", torch.no_grad()), ("with_gradients", contextlib.nullcontext())):
        with mode:
            ours = per_call_us(lambda: layer(x), calls, wait)
            linear = per_call_us(lambda: F.linear(x, dense.weight, dense.bias), calls, wait)
        record[name] = {"us": ours.rounded(2), "linear_us": linear.rounded(2)}
    return record

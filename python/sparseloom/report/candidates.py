"""What each candidate of a plan takes, beside what was predicted for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from .. import ops
from ..errors import Error
from .timing import medians

if TYPE_CHECKING:
    from ..nn import BlockSparseLinear

#: Candidates predicted to take so many times the fastest one are not run: the reference one would take seconds.
_SLOWEST = 10.0


def measure(
    plan: dict[str, Any],
    layer: BlockSparseLinear,
    tokens: int,
    direction: str,
    dtype: torch.dtype,
    residual: bool = False,
    accumulate: bool = False,
    seconds: float = 1.0,
) -> dict[str, Any]:
    """The plan with ``measured_us`` in its candidates (None where it was not run) and beside the predictions of its text.

    Medians of calls in turn on random operands, on the layer's device, for about ``seconds`` in all. The calls follow each other on
    the same operands, so that what fits into a cache stays there; plans predict for operands outside of it. Raises Error where
    the layer has no values (device meta).
    """
    device = layer.values.device
    if device.type == "meta":
        raise Error(
            "plan", "a layer with values to measure with", "one on meta", "create or move it to a device, or leave measure out"
        )
    runs = [c for c in plan["candidates"] if not c["refusal"]]
    fastest = min(c["predicted_us"] for c in runs)
    runs = [c for c in runs if c["kernel"] == plan["kernel"] or c["predicted_us"] <= _SLOWEST * fastest]

    def random(*shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").to(device, dtype)

    index, values = layer.index, layer.values.detach().to(dtype)
    bias = None if layer.bias is None else layer.bias.detach().to(dtype)
    x, dy = random(tokens, layer.in_features), random(tokens, layer.out_features)
    addend = random(tokens, layer.out_features) if residual else None
    out = torch.zeros(values.shape, dtype=torch.float32, device=device) if accumulate else None

    def product(kernel: str) -> torch.Tensor:
        if direction == "forward":
            return ops.linear(x, values, index, bias, layer.activation, layer.strict, kernel, addend)
        if direction == "dx":
            return ops.linear_dx(dy, values, index, layer.strict, kernel)
        return ops.linear_dw(dy, x, index, layer.strict, kernel, out)

    calls: list[Callable[[], object]] = [partial(product, c["kernel"]) for c in runs]
    with torch.no_grad():
        times = medians(calls, seconds, device if device.type == "cuda" else None)
    measured = {c["kernel"]: us for c, us in zip(runs, times, strict=True)}
    candidates = [c | {"measured_us": measured.get(c["kernel"])} for c in plan["candidates"]]
    return plan | {"candidates": candidates, "measured_us": measured[plan["kernel"]], "text": _told(plan["text"], measured)}


def _told(text: str, measured: dict[str, float]) -> str:
    """Every line of a candidate that was run, with its time."""
    lines = text.split("\n")
    for kernel, us in measured.items():
        time = f", measured {us:.1f} us" if us < 100 else f", measured {us:.0f} us"
        for i, line in enumerate(lines):
            if line.startswith(f"  runs {kernel}, predicted "):
                lines[i] = line.replace(", workspace", time + ", workspace", 1)
            elif line.startswith(f"  not {kernel}: predicted "):
                lines[i] = line + time
    return "\n".join(lines)

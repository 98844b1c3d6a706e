"""Measures the time of each candidate of a plan, beside its prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from .. import ops
from ..errors import Error
from .busy import Watch, loud
from .rounds import Spread, in_turn, quotient

if TYPE_CHECKING:
    from ..nn import BlockSparseLinear

#: Candidates predicted to take more than this many times the fastest one's time are not run: the reference
#: one would take seconds.
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
    """Returns the plan with the measured times of its candidates (None where they were not run).

    The candidates' entries get ``measured_us``, the median, ``measured_spread`` (median, p20 and p80) and
    ``over_chosen``, the time over the chosen kernel's, round by round; the plan's text shows them beside the
    predictions. ``lost`` is the share of CPU time that other work took; the text begins with a loud line when
    that is much.

    Candidates are called in turn on random operands, on the layer's device, for about ``seconds`` in all. All
    calls use the same operands, so that what fits into a cache stays there. The predictions of CPU kernels
    were fitted to such calls; the predictions of GPU kernels are for operands outside of L2. Raises Error
    where the layer has no values (device meta).
    """
    device = layer.values.device
    if device.type == "meta":
        raise Error(
            "plan",
            "a layer with values to measure with",
            "one on meta",
            "create or move it to a device, or leave measure out",
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
    watch = Watch()
    with torch.no_grad():
        samples = in_turn(calls, seconds, device if device.type == "cuda" else None)
    watch.look()
    times = {c["kernel"]: sample for c, sample in zip(runs, samples, strict=True)}
    measured = {kernel: Spread.of(sample) for kernel, sample in times.items()}
    relative = {kernel: quotient(sample, times[plan["kernel"]]) for kernel, sample in times.items()}
    candidates = [
        c | _figures(measured.get(c["kernel"]), relative.get(c["kernel"])) for c in plan["candidates"]
    ]
    report = _with_times(plan["text"], plan["kernel"], measured, relative)
    text = "\n".join(part for part in (loud(watch.lost), report) if part)
    chosen_us = measured[plan["kernel"]].median
    return plan | {"candidates": candidates, "measured_us": chosen_us, "lost": watch.lost, "text": text}


def _figures(us: Spread | None, relative: Spread | None) -> dict[str, Any]:
    """Returns the figures of one candidate as plain data."""
    if us is None or relative is None:
        return {"measured_us": None, "measured_spread": None, "over_chosen": None}
    return {"measured_us": us.median, "measured_spread": asdict(us), "over_chosen": asdict(relative)}


def _with_times(text: str, chosen: str, measured: dict[str, Spread], relative: dict[str, Spread]) -> str:
    """Returns the text with the measured time in the line of every candidate that was run, and its ratio to
    the time of the chosen candidate."""
    lines = text.split("\n")
    for kernel, us in measured.items():
        digits = 1 if us.median < 100 else 0
        time = f", measured {us.median:.{digits}f} us ({us.p20:.{digits}f} to {us.p80:.{digits}f})"
        if kernel != chosen:
            time += f", {relative[kernel].median:.2f} of {chosen}'s{relative[kernel].words}"
        for i, line in enumerate(lines):
            if line.startswith(f"  runs {kernel}, predicted "):
                lines[i] = line.replace(", workspace", time + ", workspace", 1)
            elif line.startswith(f"  not {kernel}: predicted "):
                lines[i] = line + time
    return "\n".join(lines)

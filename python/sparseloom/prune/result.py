"""Pruned: the result of prune_, and Plan: what it will do and need."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..patch.result import Patched

_GB = 1e9


@dataclass(frozen=True)
class Layer:
    """One pruned weight. ``error`` is the squared error of its outputs divided by their mean square, over
    the calibration data; None where no Hessian was summed up. ``kept`` is the share of the sum of |w| that
    the kept elements had."""

    name: str
    density: float
    tokens: int
    kept: float
    error: float | None = None
    swaps: int = 0


@dataclass(frozen=True)
class Plan:
    """The work and the memory of a prune_ call, in bytes, beside the activations inside of one block.

    ``on_device`` counts the weights of the largest block, what lies outside of the blocks, and the sums and
    the factorisation of the largest layer; ``on_host`` the activations between blocks and the copy of the
    weights that an error restores.
    """

    method: str
    layers: int
    blocks: int
    outside: int  # layers outside of repeated blocks
    batches: int
    device: str
    on_device: int
    on_host: int

    def __str__(self) -> str:
        data = f" over {self.batches} batches" if self.batches else ""
        outside = f" and {self.outside} layers outside" if self.outside else ""
        device, host = (f"{size / _GB:.2g} GB" for size in (self.on_device, self.on_host))
        return (
            f"pruning {self.layers} layers by {self.method}{data}: {self.blocks} blocks one after the other"
            f"{outside}; at most {device} on {self.device} beside a block's activations, {host} on the host"
        )


@dataclass(repr=False)
class Pruned(Patched):
    """What ``sparsify_`` returns, with the layers' errors, the plan, and the evaluation after each stage."""

    plan: Plan | None = None
    layers: list[Layer] = field(default_factory=list)
    stages: list[tuple[str, float]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [super().__str__()]
        known = [layer for layer in self.layers if layer.error is not None]
        if known:
            worst = max(known, key=lambda layer: layer.error or 0.0)
            mean = sum(layer.error or 0.0 for layer in known) / len(known)
            average = f"squared error of the layers' outputs: {mean:.3g} of their own on average"
            lines.append(f"{average}, {worst.error:.3g} at most ({worst.name})")
        if self.stages:
            lines.append("evaluation: " + ", ".join(f"{name} {value:.5g}" for name, value in self.stages))
        return "\n".join(lines)


def with_kept(patched: Patched, layers: list[Layer]) -> list[Any]:
    """Returns the changes with the share of the sum of |w| that was kept of the weight before pruning."""
    kept_of = {layer.name: layer.kept for layer in layers}
    return [
        replace(change, kept=kept_of[change.names[0]]) if change.names[0] in kept_of else change
        for change in patched.changed
    ]

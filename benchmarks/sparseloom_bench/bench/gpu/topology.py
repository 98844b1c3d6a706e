"""Measures what a changed topology costs: a new index and its plans on the host, and index tables rewritten
in place on the device."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from sparseloom import ops
from sparseloom import pattern as patterns
from sparseloom.nn.held.state import build_index

from ..timing import Spread
from . import goals
from .measure import Record
from .operands import Call
from .replay import Replay, in_turn

FEATURES, BLOCK, TOKENS, DENSITY = 4096, 32, 8192, 0.1
CHANGES, WARM_UP, ROUNDS = 30, 3, 7
#: Different masks that take turns on the device.
MASKS = 4


def fields(where: str) -> Record:
    """Returns the fields that name a record. `where` is "host" or "device"."""
    size = {"m": TOKENS, "k": FEATURES, "n": FEATURES, "block": [BLOCK, BLOCK], "density": DENSITY}
    return {
        "op": "plan",
        "name": f"topology-{where}-{FEATURES}x{FEATURES}-{BLOCK}x{BLOCK}-d{DENSITY:g}",
        "where": where,
        **size,
    }


def host_plan(device: torch.device | str) -> Record:
    """Measures a new index and its plans on the host, for patterns never seen before.

    The time runs from a pattern's mask to an index of both directions and plans of all three products.
    Returns microseconds of the whole, and medians of its parts.
    """
    dtype = torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
    parts: dict[str, list[float]] = {"index": [], "forward": [], "dx": [], "dw": []}
    for seed in range(WARM_UP + CHANGES):
        pattern = patterns.balanced(FEATURES, FEATURES, BLOCK, DENSITY, seed)
        laps: dict[str, float] = {}
        start = time.perf_counter()
        index = build_index(pattern)
        laps["index"] = 1e6 * (time.perf_counter() - start)
        for direction in ops.DIRECTIONS:
            start = time.perf_counter()
            ops.plan(index, direction, dtype, TOKENS, device=device)
            laps[direction] = 1e6 * (time.perf_counter() - start)
        if seed >= WARM_UP:
            for name, us in laps.items():
                parts[name].append(us)
    sums = [sum(change) for change in zip(*parts.values(), strict=True)]
    return fields("host") | {
        "us": Spread.of(sums).rounded(1),
        "parts_us": {name: round(Spread.of(times).median, 1) for name, times in parts.items()},
        "changes": CHANGES,
        "target_us": goals.HOST_PLAN_US,
    }


def device_plan(device: torch.device) -> Record:
    """Measures one rewriting of the tables of both directions, in microseconds.

    It runs in a CUDA graph: what needs the host could not be captured. Raises RuntimeError when the index
    differs from the one that the host makes of the same mask.
    """
    changes = [patterns.balanced(FEATURES, FEATURES, BLOCK, DENSITY, seed) for seed in range(MASKS)]
    masks = [pattern.mask.to(device) for pattern in changes]
    index = build_index(changes[0]).to(device)._replace(digest=ops.UNKNOWN)
    moved, requested = index.packed.new_empty(index.blocks), index.packed.new_zeros(1)

    def rewrite(mask: Tensor) -> Tensor:
        ops.set_topology(index, mask, moved, requested)
        return index.packed

    for mask, pattern in zip(reversed(masks), reversed(changes), strict=True):
        rewrite(mask)
        expected = build_index(pattern)
        if not torch.equal(index.packed.cpu(), expected.packed):
            raise RuntimeError("the rewritten index is not what the host makes of the mask")
    calls: list[Call] = [lambda mask=mask: rewrite(mask) for mask in masks]  # type: ignore[misc]
    times = in_turn({"device": Replay(calls)}, ROUNDS)["device"]
    return fields("device") | {
        "us": Spread.of(times).rounded(2),
        "blocks": index.blocks,
        "target_us": goals.DEVICE_PLAN_US,
    }

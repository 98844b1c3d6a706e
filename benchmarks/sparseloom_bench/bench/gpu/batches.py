"""Walks over all batch sizes of one layer: where another kernel takes over, the time may neither jump nor
fall, since a fall says that it should have taken over earlier."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from sparseloom import ops
from sparseloom.nn.held.state import build_index

from ..cells import Cell
from ..skewed import TRAINED
from .measure import Settings
from .operands import sets_needed
from .replay import Replay, in_turn

Record = dict[str, Any]

#: In and out features of an 8B model's MLP, and the batches of a walk.
FEATURES, LEAST, MOST = (4096, 14336), 16, 256
WALKS = [
    (block, density, pattern)
    for block in (32, 64)
    for density in (0.1, 0.25)
    for pattern in ("balanced", TRAINED)
]
#: One token more may take RISE times as long; one token fewer may not take more than FALL times as long.
RISE, FALL = 1.15, 1.05
#: Rounds of the walk, and rounds in which a step beyond RISE or FALL is timed again, both sizes in turn.
ROUNDS, AGAIN = 3, 5


def fields(block: int, density: float, pattern: str) -> Record:
    """Returns the fields that name a record."""
    k, n = FEATURES
    return {
        "op": "batches",
        "name": f"batches-{LEAST}..{MOST}x{k}x{n}-{block}x{block}-d{density:g}-{pattern}",
        "k": k,
        "n": n,
        "block": [block, block],
        "density": density,
        "pattern": pattern,
    }


def walk(settings: Settings, block: int, density: float, pattern: str) -> Record:
    """Returns the record of a walk, bf16 forward: microseconds for each batch size, the kernels and the first
    batch of each, and the steps that stay beyond RISE or FALL in the median of AGAIN rounds."""
    k, n = FEATURES
    cell = Cell("forward", "bf16", MOST, k, n, (block, block), density, pattern)
    drawn = cell.case("cuda").make_pattern()
    host_index = build_index(drawn)
    generator = torch.Generator(settings.device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=settings.device).to(torch.bfloat16)

    values, x = draw(drawn.blocks, block, block), draw(MOST, k)
    copies = sets_needed(values.nbytes + x.nbytes, settings.l2_bytes)
    sets = [(x.clone(), values.clone(), host_index.to(settings.device)) for _ in range(copies)]

    def replay(m: int) -> Replay:
        return Replay([lambda own=own: ops.linear(own[0][:m], own[1], own[2]) for own in sets])  # type: ignore[misc]

    batches = range(LEAST, MOST + 1)
    us = {m: statistics.median(in_turn({"ours": replay(m)}, ROUNDS)["ours"]) for m in batches}
    steps = []
    for m in batches[:-1]:
        if not beyond(us[m], us[m + 1]):
            continue
        again = in_turn({"here": replay(m), "next": replay(m + 1)}, AGAIN)
        here, following = statistics.median(again["here"]), statistics.median(again["next"])
        if beyond(here, following):
            steps.append({"m": m, "us": round(here, 2), "next_us": round(following, 2)})
    return fields(block, density, pattern) | {
        "us": {str(m): round(each, 2) for m, each in us.items()},
        "kernels": kernels(host_index, batches),
        "steps": steps,
    }


def beyond(us: float, next_us: float) -> bool:
    """Whether a step from one batch to the next rises or falls by too much."""
    return next_us > RISE * us or us > FALL * next_us


def kernels(index: ops.Index, batches: range) -> dict[str, str]:
    """Returns the kernels that the plans choose, by the first batch of each run of batches."""
    found: dict[str, str] = {}
    before = None
    for m in batches:
        plan = ops.plan(index, "forward", torch.bfloat16, m, device="cuda")
        if plan["kernel"] != before:
            before = found[str(m)] = plan["kernel"]
    return found

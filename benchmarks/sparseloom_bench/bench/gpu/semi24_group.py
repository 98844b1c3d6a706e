"""The group `semi24` of the GPU suite: products of 2:4 weights beside dense and cuSPARSELt, at once and under
load, and pruning with packing beside torch's."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparseloom.ops import semi24 as ops_semi24

from .. import semi24
from ..cells import Cell
from ..timing import Spread, ratios
from .measure import (
    CALM_ROUNDS,
    Candidate,
    Settings,
    cell_fields,
    entered,
    one_line,
    plan_of,
    rounds,
    under_load,
)
from .operands import DENSE, Reference, sets_needed
from .replay import Replay, in_turn
from .semi24_operands import Semi24Operands
from .semi24_peers import PEERS, version

Record = dict[str, Any]
GROUP = "semi24"
#: Candidates that the plan expects to take more than this many times the choice's time are not timed.
NEAR = 3.0


class Goal(NamedTuple):
    """The least speed-up over dense that a cell must have, and the least over cuSPARSELt's best."""

    dense: float
    cusparselt: float | None = None


BF16, DECODE_BF16, DECODE_FP8, INT8 = Goal(1.2, 0.97), Goal(1.4), Goal(1.25), Goal(1.1)
LARGE = ((8192, 4096, 4096), (8192, 4096, 16384))
MORE = ((50432, 768, 3072), (50432, 3072, 768), (8192, 4096, 14336), (2048, 5120, 13824))
DECODE = ((1, 4096, 14336), (16, 4096, 14336), (64, 4096, 14336), (32, 12288, 12288))
CELLS: dict[Cell, Goal] = {
    semi24.cell("forward", dtype, *shape): goal
    for dtype, shapes, goal in (
        ("bf16", (*LARGE, *MORE), BF16),
        ("fp8", LARGE, Goal(1.1)),
        ("fp8_promoted", LARGE, Goal(1.0)),
        ("int8", LARGE, INT8),
        ("bf16", DECODE, DECODE_BF16),
        ("fp8", DECODE, DECODE_FP8),
    )
    for shape in shapes
}
#: Side and dtype of the weight that is pruned, and the most microseconds for W with W^T, cold, on an H200.
SIDE, PRUNED = 4096, torch.bfloat16
PRUNING = {"transposable_greedy": 25.0, "transposable_exact": 40.0}


def fields(cell: Cell) -> Record:
    """Returns the fields that name a cell's record."""
    return cell_fields(cell) | {"op": "semi24", "name": f"semi24-{cell.dtype}-{cell.m}x{cell.k}x{cell.n}"}


def measure(cell: Cell, settings: Settings) -> Record:
    """Returns the cell's record. Raises what a product raised, and DeadContext."""
    with torch.no_grad():
        operands = Semi24Operands(cell, settings.device, settings.l2_bytes)
        plan, reference = plan_of(operands), Reference(operands)
        near = [
            Candidate(each["kernel"], each["predicted_us"])
            for each in plan["candidates"]
            if not each["refusal"] and each["predicted_us"] <= NEAR * plan["predicted_us"]
        ]
        candidates = [entered(each, operands, reference) for each in near]
        chosen = next(each for each in candidates if each.kernel == plan["kernel"])
        if chosen.replay is None or chosen.found is None:
            raise RuntimeError(f"the plan's choice {chosen.kernel}: {chosen.error}")
        ours = {each.kernel: each.replay for each in candidates if each.replay is not None}
        peers, absent = _peers(operands, reference) if settings.peers else ({}, {})
        del reference
        contenders = ours | peers | {DENSE: Replay(operands.dense_calls()[DENSE])}
        samples, clock = rounds(contenders, chosen.kernel, set(), settings)
        medians = {name: Spread.of(times).median for name, times in samples.items()}
        peer = min(peers, key=medians.__getitem__, default=None)
        names = [DENSE, chosen.kernel, *([peer] if peer else [])]
        loaded, loaded_clock, watts = under_load({name: contenders[name] for name in names}, settings.monitor)
    us, ratio, goal = medians[chosen.kernel], ratios(samples[DENSE], samples[chosen.kernel]), CELLS[cell]
    best = min(ours, key=medians.__getitem__)
    return fields(cell) | {
        "kernel": chosen.kernel,
        "us": Spread.of(samples[chosen.kernel]).rounded(2),
        "dense_us": round(medians[DENSE], 2),
        "speedup": round(ratio.median, 3),
        "speedup_spread": ratio.rounded(3),
        "goal": goal._asdict(),
        "peer": peer,
        "peer_version": version() if peer else None,
        "over_peer": round(medians[peer] / us, 3) if peer else None,
        "peers": {name: round(medians[name], 2) for name in peers},
        "peers_absent": absent,
        "sustained": {
            "us": loaded[chosen.kernel],
            "dense_us": loaded[DENSE],
            "speedup": round(loaded[DENSE] / loaded[chosen.kernel], 3),
            "over_peer": round(loaded[peer] / loaded[chosen.kernel], 3) if peer else None,
        },
        "predicted_us": round(chosen.predicted_us, 2),
        "over_predicted": round(us / chosen.predicted_us, 3),
        "best": best,
        "over_best": round(us / medians[best], 4),
        "candidates": [
            {"kernel": each.kernel}
            | ({"us": round(medians[each.kernel], 2)} if each.replay else {"error": each.error})
            for each in candidates
        ],
        "worst_tile_error": chosen.found.worst_tile_error,
        "tile_excess": round(max(each.found.excess for each in candidates if each.found is not None), 4),
        "same_bits": ours[chosen.kernel].same_bits(),
        "samples": len(samples[chosen.kernel]),
        "clock_mhz": {"burst": clock, "sustained": loaded_clock},
        "sustained_watts": watts,
    }


def _peers(operands: Semi24Operands, reference: Reference) -> tuple[dict[str, Replay], dict[str, str]]:
    """Returns the peers that take part, and the reasons why the others do not."""
    present, absent = {}, {}
    for name, calls_of in PEERS.items():
        try:
            replay = Replay(calls_of(operands))
            found = reference.check(replay.poisoned())
            if not found.ok:
                raise RuntimeError(f"its result is wrong: {found}")
            present[name] = replay
        except Exception as error:
            absent[name] = one_line(error)
    return present, absent


def pruning_fields(method: str, transposed: bool) -> Record:
    """Returns the fields that name a record of pruning and packing."""
    of = "W and W^T" if transposed else "W"
    name = f"semi24-prune-{method}-{of.replace(' ', '-')}-{SIDE}x{SIDE}"
    return {"op": "semi24_prune", "name": name, "method": method, "of": of, "side": SIDE, "dtype": "bf16"}


def prune(settings: Settings, method: str, transposed: bool) -> Record:
    """Returns the record of `compress` on weights that no cache holds, beside torch's pruning of 4x4 tiles,
    which has the greedy masks of W and W^T alone. The CPU's result is compared bit by bit."""
    generator = torch.Generator(settings.device).manual_seed(0)
    weight = torch.randn(SIDE, SIDE, generator=generator, device=settings.device).to(PRUNED)
    found = ops_semi24.compress(weight, method, transposed)
    expected = ops_semi24.compress(weight.cpu(), method, transposed)
    same = all(torch.equal(a.cpu(), b) for a, b in zip(found, expected, strict=True))
    weights = [weight] + [weight.clone() for _ in range(sets_needed(weight.nbytes, settings.l2_bytes) - 1)]

    def replay(of: Any) -> Replay:
        return Replay([partial(of, own) for own in weights])

    contenders = {"ours": replay(partial(_first, method=method, transposed=transposed))}
    if transposed and method == "transposable_greedy":
        contenders["torch"] = replay(_torchs)
    samples = in_turn(contenders, CALM_ROUNDS)
    us = {name: Spread.of(times).rounded(2) for name, times in samples.items()}
    most = PRUNING.get(method) if transposed else None
    return pruning_fields(method, transposed) | {
        "us": us["ours"],
        "torch_us": us["torch"]["median"] if "torch" in us else None,
        "most_us": most,
        "same_bits": same,
    }


def _first(weight: Tensor, method: str, transposed: bool) -> Tensor:
    return ops_semi24.compress(weight, method, transposed)[0]


def _torchs(weight: Tensor) -> Tensor:
    return torch._sparse_semi_structured_tile(weight, algorithm="", use_cutlass=True)[0]

"""One cell on the GPU: every candidate, torch's dense product and the peers, checked and timed in turn; a record of the results."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import torch

from ... import ops
from ...testing import TileCheck, tf32_switch
from ..cells import Cell
from ..timing import LEAST_ROUNDS, Spread, ratios
from .device import Monitor, alive
from .operands import Operands, Reference
from .peers import PEERS, enter
from .replay import Replay, pause_after

Record = dict[str, Any]
#: Candidates that are no sparse kernel.
NOT_SPARSE = ("dense", "reference")
DENSE = "torch"  # the dense baseline's name among the contenders
#: A peer whose call takes longer than this takes part in so many rounds only.
SLOW_PEER_US, SLOW_PEER_ROUNDS = 1500.0, 3


class DeadContext(RuntimeError):
    """A kernel left the CUDA context unusable. `record` is the cell's, with the error; nothing more can run in this process."""

    def __init__(self, record: Record) -> None:
        super().__init__(record["error"])
        self.record = record


@dataclass
class Candidate:
    """One kernel of ours in this cell."""

    kernel: str
    predicted_us: float
    replay: Replay | None = None
    found: TileCheck | None = None
    error: str = ""


@dataclass(frozen=True)
class Settings:
    """Of a run: where, the L2 to get past, timing per cell beyond the least rounds, and whether peers take part."""

    device: torch.device
    l2_bytes: int
    seconds: float
    peers: bool
    monitor: Monitor


def cell_fields(cell: Cell) -> Record:
    """What cell_of needs to read the cell back, and the op."""
    fields = ("direction", "dtype", "m", "k", "n", "density", "pattern")
    return {"op": "linear"} | {name: getattr(cell, name) for name in fields} | {"block": list(cell.block)}


def one_line(error: BaseException) -> str:
    """The kind of error and its first line: torch appends advice and stacks."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def measure(cell: Cell, settings: Settings) -> Record:
    """The cell's record; one with `error` when it could not be measured. Raises DeadContext when no other cell can be either."""
    try:
        with torch.no_grad(), tf32_switch(cell.tf32):
            return _measure(cell, settings)
    except DeadContext:
        raise
    except Exception as error:
        record = cell_fields(cell) | {"error": one_line(error)}
        if not alive():
            raise DeadContext(record) from error
        return record


def _measure(cell: Cell, settings: Settings) -> Record:
    operands = Operands(cell, settings.device, settings.l2_bytes)
    plan = plan_of(operands)
    reference = Reference(operands)
    candidates = [
        _entered(Candidate(each["kernel"], each["predicted_us"]), operands, reference)
        for each in plan["candidates"]
        if not each["refusal"]
    ]
    chosen = next(candidate for candidate in candidates if candidate.kernel == plan["kernel"])
    if chosen.replay is None:
        raise RuntimeError(f"the plan's choice {chosen.kernel}: {chosen.error}")
    contenders = {each.kernel: each.replay for each in candidates if each.replay is not None}
    contenders[DENSE] = Replay(operands.dense_calls())
    peers, absent = _peers(operands, reference, settings)
    del reference
    samples, burst_clock = _rounds(contenders | peers, set(peers), settings)
    medians = {name: Spread.of(times).median for name, times in samples.items()}
    sparse = min((name for name in contenders if name not in (*NOT_SPARSE, DENSE)), key=medians.__getitem__, default=None)
    names = dict.fromkeys([DENSE, chosen.kernel, *([sparse] if sparse else [])])
    sustained, sustained_clock, watts = _sustained({name: contenders[name] for name in names}, settings.monitor)

    us, ratio = Spread.of(samples[chosen.kernel]), ratios(samples[DENSE], samples[chosen.kernel])
    assert chosen.found is not None
    best = min((each.kernel for each in candidates if each.replay is not None), key=medians.__getitem__)
    return cell_fields(cell) | {
        "kernel": chosen.kernel,
        "us": us.rounded(2),
        "dense_us": round(medians[DENSE], 2),
        "speedup": round(ratio.median, 3),
        "speedup_spread": ratio.rounded(3),
        "useful_tflops": round(2.0 * cell.m * operands.elements / us.median / 1e6, 3),
        "sparse_kernel": sparse,
        "sparse_us": round(medians[sparse], 2) if sparse else None,
        "best": best,
        "over_best": round(medians[chosen.kernel] / medians[best], 4),
        "worst_tile_error": chosen.found.worst_tile_error,
        "dense_tile_error": chosen.found.dense_tile_error,
        "tile_excess": round(chosen.found.excess, 4),
        "samples": len(samples[chosen.kernel]),
        "launches": {"ours": contenders[chosen.kernel].launches, "dense": contenders[DENSE].launches},
        "sets": {"ours": len(operands.copies), "dense": len(operands.dense_calls())},
        "sustained": {
            "us": sustained[chosen.kernel],
            "dense_us": sustained[DENSE],
            "sparse_us": sustained[sparse] if sparse else None,
            "speedup": round(sustained[DENSE] / sustained[chosen.kernel], 3),
        },
        "clock_mhz": {"burst": burst_clock, "sustained": sustained_clock},
        "sustained_watts": watts,
        "candidates": [_candidate_record(each, samples) for each in candidates],
        "peers": {name: round(medians[name], 2) if name in peers else None for name in PEERS},
        "peers_by": {name: "graph" if replay.graphed else "events" for name, replay in peers.items()},
        "peers_absent": absent,
    }


def plan_of(operands: Operands) -> Record:
    """What the plan says of the cell on the current device, under torch's switches as they stand."""
    return ops.plan(operands.host_index, operands.cell.direction, operands.case.dtype, operands.cell.m, device="cuda")


def _entered(candidate: Candidate, operands: Operands, reference: Reference) -> Candidate:
    """The candidate ready to be timed and checked, or with its error. Raises DeadContext when it took the context with it."""
    try:
        replay = Replay(operands.calls(candidate.kernel))
        candidate.found = reference.check(replay.poisoned())
        candidate.replay = replay
    except Exception as error:
        candidate.error = one_line(error)
        if not alive():
            raise DeadContext(cell_fields(operands.cell) | {"error": f"{candidate.kernel}: {candidate.error}"}) from error
    return candidate


def _peers(operands: Operands, reference: Reference, settings: Settings) -> tuple[dict[str, Replay], dict[str, str]]:
    """The peers that take part, and why the others do not."""
    cell, present, absent = operands.cell, {}, {}
    for name in PEERS:
        if cell.direction != "forward" or cell.dtype != "bf16":
            absent[name] = "compared in bf16 forward only"
        elif not settings.peers:
            absent[name] = "left out by --no-peers"
        else:
            try:
                present[name] = enter(name, operands, reference)
            except Exception as error:
                absent[name] = one_line(error)
                if not alive():
                    raise DeadContext(cell_fields(cell) | {"error": f"peer {name}: {absent[name]}"}) from error
    return present, absent


def _rounds(contenders: dict[str, Replay], peers: set[str], settings: Settings) -> tuple[dict[str, list[float]], int | None]:
    """Microseconds of a call by contender and round; one burst of each in a new order every round, so that samples of one round
    belong together. And the clock right after the last burst of ours or dense's."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    draw, order, spent, clock = random.Random(0), list(contenders), 0.0, None
    end, done = time.perf_counter() + settings.seconds, 0
    while done < LEAST_ROUNDS or time.perf_counter() < end:
        draw.shuffle(order)
        for name in order:
            if name in peers and done >= SLOW_PEER_ROUNDS and Spread.of(samples[name]).median > SLOW_PEER_US:
                continue
            time.sleep(pause_after(spent))
            samples[name].append(contenders[name].burst())
            spent = samples[name][-1] * contenders[name].launches * 1e-6
            if name not in peers:
                clock = settings.monitor.clock_mhz()
        done += 1
    return samples, clock


def _sustained(contenders: dict[str, Replay], monitor: Monitor) -> tuple[dict[str, float], int | None, float | None]:
    """Median microseconds of a call under load without a pause, by contender; clock and power while the last one ran."""
    found: list[tuple[int | None, float | None]] = []
    medians = {}
    for name, replay in contenders.items():
        times = replay.sustained(lambda: found.append((monitor.clock_mhz(), monitor.power_watts())))
        medians[name] = round(Spread.of(times).median, 2)
    return medians, *found[-1]


def _candidate_record(candidate: Candidate, samples: dict[str, list[float]]) -> Record:
    record: Record = {"kernel": candidate.kernel, "predicted_us": round(candidate.predicted_us, 2)}
    if candidate.replay is None or candidate.found is None:
        return record | {"error": candidate.error}
    return record | {
        "us": Spread.of(samples[candidate.kernel]).rounded(2),
        "worst_tile_error": candidate.found.worst_tile_error,
        "tile_excess": round(candidate.found.excess, 4),
        "same_bits": candidate.replay.same_bits(),
    }

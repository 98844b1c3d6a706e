"""Measures one cell on the GPU: checks every candidate and peer, times them and torch's dense product in
turn, and returns a record of the results."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import torch

from sparseloom.testing import TileCheck, tf32_switch

from ..cells import Cell
from ..timing import Spread, ratios
from . import goals
from .device import Monitor, alive
from .groups import compared
from .operands import DENSE, DENSE_FAST, Operands, Reference
from .peers import PEERS, enter
from .replay import Replay, pause_after
from .semi24_operands import Semi24Operands

Record = dict[str, Any]
#: Candidates that are not sparse kernels.
NOT_SPARSE = ("dense", "reference")
#: Rounds of ours and of dense: CALM_ROUNDS when their speed-ups agree within CALM, else up to MOST_ROUNDS.
#: Most samples of an H200 agree within 0.3 %.
CALM_ROUNDS, MOST_ROUNDS, CALM = 5, 9, 0.01
#: Rounds of peers, and of candidates that take more than OUT_OF_REACH times the fastest's time. Candidates
#: that take more than FAR times its time get only the first round. Fewer rounds pay: most of a suite's run
#: goes into the pauses between bursts.
SHORT_ROUNDS, OUT_OF_REACH, FAR = 3, 1.15, 2.0


class DeadContext(RuntimeError):
    """A kernel left the CUDA context unusable. `record` is the cell's, with the error; nothing more can run
    in this process."""

    def __init__(self, record: Record) -> None:
        super().__init__(record["error"])
        self.record = record


@dataclass
class Candidate:
    """One of our kernels in this cell."""

    kernel: str
    predicted_us: float
    replay: Replay | None = None
    found: TileCheck | None = None
    accuracy: dict[str, float] | None = None  # fp32 forward: errors over those of cuBLAS fp32
    error: str = ""


class Stopwatch:
    """Records the seconds of a cell's parts, in order, to show what the suite's time goes into."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = round(now - self._last, 3), now


@dataclass(frozen=True)
class Settings:
    """The settings of a run: the device, its L2 size, the seconds of timing per cell beyond the least rounds,
    whether peers take part, and the monitor."""

    device: torch.device
    l2_bytes: int
    seconds: float
    peers: bool
    monitor: Monitor


def cell_fields(cell: Cell) -> Record:
    """Returns the op and the fields that cell_of needs to read the cell back."""
    fields = ("direction", "dtype", "m", "k", "n", "density", "pattern")
    return {"op": "linear"} | {name: getattr(cell, name) for name in fields} | {"block": list(cell.block)}


def failed_record(cell: Cell, error: str) -> Record:
    """Returns the record of a cell that could not be measured; its goal counts as missed."""
    promised = goals.goal(cell)
    return cell_fields(cell) | {"goal": promised.record() if promised else None, "error": error}


def one_line(error: BaseException) -> str:
    """Returns the kind of the error and the first line of its message: torch appends advice and stacks."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def measure(cell: Cell, settings: Settings) -> Record:
    """Returns the cell's record, which has `error` when the cell could not be measured.

    Raises DeadContext when no other cell can be measured either.
    """
    try:
        with torch.no_grad(), tf32_switch(cell.tf32):
            return _measure(cell, settings)
    except DeadContext:
        raise
    except Exception as error:
        record = failed_record(cell, one_line(error))
        if not alive():
            raise DeadContext(record) from error
        return record


def _measure(cell: Cell, settings: Settings) -> Record:
    watch = Stopwatch()
    operands = Operands(cell, settings.device, settings.l2_bytes)
    plan = plan_of(operands)
    watch.lap("operands")
    reference = Reference(operands)
    candidates = [
        entered(Candidate(each["kernel"], each["predicted_us"]), operands, reference)
        for each in plan["candidates"]
        if not each["refusal"]
    ]
    chosen = next(candidate for candidate in candidates if candidate.kernel == plan["kernel"])
    if chosen.replay is None:
        raise RuntimeError(f"the plan's choice {chosen.kernel}: {chosen.error}")
    contenders = {each.kernel: each.replay for each in candidates if each.replay is not None}
    ours = list(contenders)
    contenders |= {name: Replay(calls) for name, calls in operands.dense_calls().items()}
    peers, absent = _peers(operands, reference, settings)
    del reference
    watch.lap("checks")
    samples, burst_clock = rounds(contenders | peers, chosen.kernel, set(peers), settings)
    medians = {name: Spread.of(times).median for name, times in samples.items()}
    dense = min((name for name in (DENSE, DENSE_FAST) if name in contenders), key=medians.__getitem__)
    sparse = min((name for name in ours if name not in NOT_SPARSE), key=medians.__getitem__, default=None)
    watch.lap("bursts")
    names = dict.fromkeys([dense, chosen.kernel, *([sparse] if sparse else [])])
    sustained, sustained_clock, watts = under_load(
        {name: contenders[name] for name in names}, settings.monitor
    )
    watch.lap("sustained")

    us, ratio = Spread.of(samples[chosen.kernel]), ratios(samples[dense], samples[chosen.kernel])
    assert chosen.found is not None
    best = min(ours, key=medians.__getitem__)
    promised = goals.goal(cell)
    return cell_fields(cell) | {
        "kernel": chosen.kernel,
        "us": us.rounded(2),
        "dense_us": round(medians[dense], 2),
        "dense": dense,
        "speedup": round(ratio.median, 3),
        "speedup_spread": ratio.rounded(3),
        "goal": promised.record() if promised else None,
        "predicted_us": round(chosen.predicted_us, 2),
        "over_predicted": round(us.median / chosen.predicted_us, 3) if chosen.predicted_us else None,
        "stored": round(operands.elements / (cell.k * cell.n), 5),
        "useful_tflops": round(2.0 * cell.m * operands.elements / us.median / 1e6, 3),
        "sparse_kernel": sparse,
        "sparse_us": round(medians[sparse], 2) if sparse else None,
        "best": best,
        "over_best": round(medians[chosen.kernel] / medians[best], 4),
        "worst_tile_error": chosen.found.worst_tile_error,
        "dense_tile_error": chosen.found.dense_tile_error,
        "tile_excess": round(chosen.found.excess, 4),
        "accuracy": chosen.accuracy,
        "samples": len(samples[chosen.kernel]),
        "launches": {"ours": contenders[chosen.kernel].launches, "dense": contenders[dense].launches},
        "sets": {"ours": len(operands.copies), "dense": len(operands.dense_calls()[dense])},
        "sustained": {
            "us": sustained[chosen.kernel],
            "dense_us": sustained[dense],
            "sparse_us": sustained[sparse] if sparse else None,
            "speedup": round(sustained[dense] / sustained[chosen.kernel], 3),
        },
        "clock_mhz": {"burst": burst_clock, "sustained": sustained_clock},
        "sustained_watts": watts,
        "candidates": [_candidate_record(each, samples) for each in candidates],
        "peers": {name: round(medians[name], 2) if name in peers else None for name in PEERS},
        "peers_by": {name: "graph" if replay.graphed else "events" for name, replay in peers.items()},
        "peers_absent": absent,
        "seconds": watch.laps,
    }


def plan_of(operands: Operands | Semi24Operands) -> Record:
    """Returns the plan for the operands' cell."""
    return operands.plan()


def entered(
    candidate: Candidate, operands: Operands | Semi24Operands, reference: Reference, accuracy: bool = True
) -> Candidate:
    """Makes the candidate ready to be timed and checks its result, or notes its error.

    With `accuracy`, its errors are compared with cuBLAS's too, in fp32 forward. Raises DeadContext when the
    candidate broke the CUDA context.
    """
    try:
        replay = Replay(operands.calls(candidate.kernel))
        result = replay.poisoned()
        candidate.found = reference.check(result)
        if accuracy and operands.cell.dtype == "f32" and operands.cell.direction == "forward":
            candidate.accuracy = reference.accuracy(result)
        candidate.replay = replay
    except Exception as error:
        candidate.error = one_line(error)
        if not alive():
            raise DeadContext(
                failed_record(operands.cell, f"{candidate.kernel}: {candidate.error}")
            ) from error
    return candidate


def _peers(
    operands: Operands, reference: Reference, settings: Settings
) -> tuple[dict[str, Replay], dict[str, str]]:
    """Returns the peers that take part, and the reasons why the others do not."""
    cell, present, absent = operands.cell, {}, {}
    for name in PEERS:
        if not compared(cell):
            absent[name] = "compared in bf16 forward, on the cells that groups.compared names"
        elif not settings.peers:
            absent[name] = "left out by --no-peers"
        else:
            try:
                present[name] = enter(name, operands, reference)
            except Exception as error:
                absent[name] = one_line(error)
                if not alive():
                    raise DeadContext(failed_record(cell, f"peer {name}: {absent[name]}")) from error
    return present, absent


def rounds(
    contenders: dict[str, Replay],
    chosen: str,
    peers: set[str],
    settings: Settings,
    least: int = CALM_ROUNDS,
    most: int = MOST_ROUNDS,
) -> tuple[dict[str, list[float]], int | None]:
    """Times one burst of each contender in every round, in a new order each round.

    Samples of one round thus belong together. There are `least` rounds when the speed-ups of those agree,
    else up to `most`. Returns the microseconds of a call by contender and round, and the clock in MHz right
    after the last burst of ours or of dense.
    """
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    draw, order, spent, clock = random.Random(0), list(contenders), 0.0, None
    end, done = time.perf_counter() + settings.seconds, 0
    while done < least or time.perf_counter() < end or (done < most and not _calm(samples, chosen)):
        if done == 1:
            order = _in_reach(samples, chosen, peers, FAR) + sorted(peers)
        if done == SHORT_ROUNDS:
            order = _in_reach(samples, chosen, peers, OUT_OF_REACH)
        draw.shuffle(order)
        for name in order:
            time.sleep(pause_after(spent))
            samples[name].append(contenders[name].burst())
            spent = samples[name][-1] * contenders[name].launches * 1e-6
            if name not in peers:
                clock = settings.monitor.clock_mhz()
        done += 1
    return samples, clock


def _calm(samples: dict[str, list[float]], chosen: str) -> bool:
    """Returns whether the speed-ups of all rounds so far agree."""
    found = ratios(samples[DENSE], samples[chosen])
    return found.p80 - found.p20 <= CALM * found.median


def _in_reach(samples: dict[str, list[float]], chosen: str, peers: set[str], times: float) -> list[str]:
    """Returns who is timed further: dense, the plan's choice, those of ours within `times` the fastest's
    time, and the fastest sparse kernel."""
    dense = [name for name in (DENSE, DENSE_FAST) if name in samples]
    ours = {
        name: Spread.of(found).median
        for name, found in samples.items()
        if name not in peers and name not in dense
    }
    near = [name for name, us in ours.items() if us <= times * min(ours.values())]
    sparse = [name for name in ours if name not in NOT_SPARSE]
    return list(
        dict.fromkeys([*dense, chosen, *near, *([min(sparse, key=ours.__getitem__)] if sparse else [])])
    )


def under_load(
    contenders: dict[str, Replay], monitor: Monitor
) -> tuple[dict[str, float], int | None, float | None]:
    """Returns the median microseconds of a call under load without a pause, by contender, and the clock in
    MHz and the power in watts while the last one ran."""
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
        "samples": len(samples[candidate.kernel]),
        "worst_tile_error": candidate.found.worst_tile_error,
        "tile_excess": round(candidate.found.excess, 4),
        "same_bits": candidate.replay.same_bits(),
    }

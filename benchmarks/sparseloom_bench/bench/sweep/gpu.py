"""Measures a problem on the GPU: replays CUDA graphs with operands rotated past the L2, ours and dense's, as
the suite `gpu` does; some problems are launched eagerly too."""

from __future__ import annotations

import statistics
import time
from functools import partial

import torch

from sparseloom.testing import tf32_switch

from ..gpu.device import Monitor, alive, describe, require_gpu, slug
from ..gpu.measure import Candidate, DeadContext, Settings, entered, one_line, plan_of, rounds
from ..gpu.operands import DENSE, PLAIN, Call, Operands
from ..gpu.replay import Replay, pause_after
from ..gpu.semi24_operands import Semi24Operands
from .attention_operands import AttentionOperands
from .conv_operands import ConvOperands
from .problems import Problem
from .record import Record, Timed, named, predicted_us, record_of, with_copy

#: Rounds: three when the speed-ups of those agree within 1 %, else up to seven. 300 problems then take two to
#: three minutes.
LEAST_ROUNDS, MOST_ROUNDS = 3, 7
#: Eager calls of one sample: so many that they take about EAGER_US, and never more than a launch queue holds.
EAGER_US, LEAST_CALLS, MOST_CALLS, EAGER_ROUNDS = 5_000.0, 5, 200, 3
#: When torch has reserved more than this share of the GPU's memory, what graphs of former problems kept is
#: given back before a problem is measured.
RESERVED_LIMIT = 0.3


class Gpu:
    """Measures on the current CUDA device. ``dense_copy`` lets products take a dense copy of the weight
    where Problem.copies allows it. Raises Error where torch sees no device."""

    plan_device = "cuda"
    beside_busy = False

    def __init__(self, dense_copy: bool = False) -> None:
        self.dense_copy = dense_copy
        device = require_gpu("sweep")
        monitor = Monitor(device)
        gpu = describe(device, monitor)
        self.slug, self.about = slug(gpu["name"]), {"gpu": gpu}
        self._settings = Settings(device, gpu["l2_bytes"], 0.0, False, monitor)
        self._memory = int(gpu["memory_bytes"])

    def fitted(self, problem: Problem) -> Problem:
        """Returns the problem as drawn, but for what no kernel of GPUs takes: no product is too long."""
        return problem.on_gpu()

    def measure(self, problem: Problem, forced: str | None = None) -> Record:
        """Returns the record of the problem. `forced`: a kernel to time, with every other candidate.

        Raises what a product raised; raises DeadContext, with a record of the problem, when no other problem
        can be measured in this process.
        """
        if torch.cuda.memory_reserved() > RESERVED_LIMIT * self._memory:
            torch.cuda.empty_cache()
        # What torch allows unless told otherwise: TF32 in convolutions, none in matrix products.
        cudnn = torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True)
        try:
            with torch.no_grad(), tf32_switch(False), cudnn:
                return self._measure(problem, forced)
        except DeadContext as death:
            raise DeadContext(problem.fields() | {"error": death.record["error"]}) from death
        except Exception as error:
            if not alive():
                raise DeadContext(problem.fields() | {"error": one_line(error)}) from error
            torch.cuda.empty_cache()  # memory may be what was missing
            raise

    def _measure(self, problem: Problem, forced: str | None) -> Record:
        operands = problem.operands(self._settings.device, self._settings.l2_bytes)
        plan = plan_of(operands)
        plan = with_copy(plan) if self.dense_copy and problem.copies else plan
        kernels = named(plan, problem.all_candidates or forced is not None, forced)
        chosen, reference = kernels[0], problem.reference(operands)
        entrants = (Candidate(kernel, predicted_us(plan, kernel)) for kernel in kernels)
        candidates = [entered(each, operands, reference, accuracy=False) for each in entrants]
        del reference
        if candidates[0].error:
            raise RuntimeError(f"the plan's choice {chosen}: {candidates[0].error}")
        contenders = {each.kernel: each.replay for each in candidates if each.replay is not None}
        dense = operands.dense_calls()[DENSE]
        everybody = contenders | {DENSE: Replay(dense)}
        samples, clock = rounds(everybody, chosen, set(), self._settings, LEAST_ROUNDS, MOST_ROUNDS)
        checks = {each.kernel: each.found for each in candidates if each.found is not None}
        failed = {each.kernel: each.error for each in candidates if each.error}
        timed = Timed({kernel: samples[kernel] for kernel in contenders}, checks, samples[DENSE], failed)
        record = record_of(problem, plan, timed, operands.elements / (problem.k * problem.n))
        record |= {"clock_mhz": clock, "same_bits": contenders[chosen].same_bits()}
        if problem.eager:
            record["eager"] = eager(operands.calls(chosen), plain(operands), record["us"]["median"])
        return record


def plain(operands: Operands | Semi24Operands | ConvOperands | AttentionOperands) -> list[Call]:
    """Returns torch's product as a user writes it, one call for each copy: the calls that are checked beside
    ours cost the host more, but those of convolutions and attention."""
    if isinstance(operands, (ConvOperands, AttentionOperands)):
        return operands.dense_calls()[DENSE]
    return [partial(PLAIN[operands.cell.direction], *own) for own in operands.dense_sets]


def eager(ours: list[Call], dense: list[Call], device_us: float) -> Record:
    """Times calls launched one after another from the host, as a model without graphs launches them.

    Ours and dense take turns. `host_us` is the time of a call until it returns. `host_share` is the share of
    our time in which the device was idle, given `device_us`, our time in a graph.
    """
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "dense": []}
    for calls in (ours, dense):
        calls[0]()
    for _ in range(EAGER_ROUNDS):
        for name, calls in (("ours", ours), ("dense", dense)):
            found[name].append(back_to_back(calls, device_us))
    (us, host_us), (dense_us, dense_host_us) = (
        (statistics.median(part) for part in zip(*found[name], strict=True)) for name in ("ours", "dense")
    )
    return {
        "us": round(us, 2),
        "dense_us": round(dense_us, 2),
        "speedup": round(dense_us / us, 4),
        "host_us": round(host_us, 2),
        "dense_host_us": round(dense_host_us, 2),
        "host_share": round(max(0.0, 1 - device_us / us), 4),
    }


def back_to_back(calls: list[Call], us: float) -> tuple[float, float]:
    """Times many calls without a wait between them; returns the microseconds of one call until all are done,
    and until the last one returned."""
    many = round(min(max(EAGER_US / max(us, 0.1), LEAST_CALLS), MOST_CALLS))
    torch.cuda.synchronize()
    start = time.perf_counter()
    for turn in range(many):
        calls[turn % len(calls)]()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    done = time.perf_counter()
    time.sleep(pause_after(done - start))
    return 1e6 * (done - start) / many, 1e6 * (returned - start) / many

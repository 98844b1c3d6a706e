"""Stand-ins for what the GPU suite asks of CUDA, so that its runs can be tested on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sparseloom import cli, ops
from sparseloom.testing import dense_product
from sparseloom_bench.bench import cells
from sparseloom_bench.bench.cells import Cell
from sparseloom_bench.bench.gpu import host, jobs, measure, run
from sparseloom_bench.bench.gpu.operands import Operands, Reference

CPU = torch.device("cpu")
TINY = [
    Cell("forward", "bf16", 32, 64, 96, (16, 16), 0.5),
    Cell("dx", "bf16", 32, 64, 96, (16, 32), 0.5),
    Cell("dw", "f32", 32, 64, 96, (32, 32), 0.5),
]


def bench(*arguments: object) -> int:
    try:
        return cli.main(["bench", "gpu", *(str(argument) for argument in arguments)])
    except SystemExit as end:
        return int(end.code or 0)


def scattered_calls(made: Operands) -> list[Callable[[], torch.Tensor]]:
    """torch's product with the scattered weight, one call for each copy: a right answer that no kernel of
    ours gave."""
    return [
        lambda copy=copy: dense_product(made.case, copy.x, copy.dy, made.weight, None) for copy in made.copies
    ]


class Stand:
    """A Replay on the CPU."""

    launches = 2

    def __init__(self, calls: Sequence[Callable[[], torch.Tensor]], graphed: bool = True) -> None:
        self._calls, self.outputs, self.graphed = calls, [call() for call in calls], graphed

    def poisoned(self) -> torch.Tensor:
        return self.outputs[0]

    def same_bits(self) -> bool:
        return True

    def burst(self) -> float:
        start = time.perf_counter()
        self._calls[0]()
        return 1e6 * (time.perf_counter() - start)

    def sustained(self, during: Callable[[], None]) -> list[float]:
        during()
        return [self.burst()]


def few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's cost alone beside the cells, of 200 calls."""
    real_extras, real_cost = jobs.extras, host.host_cost
    monkeypatch.setattr(host, "host_cost", lambda where: real_cost(where, calls=200))
    monkeypatch.setattr(jobs, "extras", lambda: [job for job in real_extras() if job.group == "host"])


def stand_in(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Everything that asks CUDA, replaced; `settings` to measure with."""

    def plan_of(made: Operands) -> dict[str, Any]:
        return ops.plan(made.host_index, made.cell.direction, made.case.dtype, made.cell.m)

    def enter(name: str, made: Operands, reference: Reference) -> Stand:
        if name == "cusparse_ell":
            raise ValueError("no such library")
        return Stand(scattered_calls(made))

    monitor = SimpleNamespace(
        clock_mhz=lambda: 1980, power_watts=lambda: 500.0, driver=lambda: "1", reason=""
    )
    gpu = {"name": "NVIDIA H200", "driver": "1", "l2_bytes": 1000, "memory_bytes": 1}
    monkeypatch.setattr(measure, "Replay", Stand)
    monkeypatch.setattr(measure, "enter", enter)
    monkeypatch.setattr(measure, "plan_of", plan_of)
    monkeypatch.setattr(measure, "alive", lambda: True)
    monkeypatch.setattr(measure, "pause_after", lambda seconds: 0)
    monkeypatch.setattr(run, "require_gpu", lambda: CPU)
    monkeypatch.setattr(run, "Monitor", lambda _: monitor)
    monkeypatch.setattr(run, "describe", lambda *_: gpu)
    few_calls(monkeypatch)
    monkeypatch.setattr(host, "FEATURES", 256)
    monkeypatch.setattr(measure, "compared", lambda cell: cell.direction == "forward")
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 2)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setitem(cells.SUITES, "gpu", lambda: TINY)
    monkeypatch.setattr(jobs, "alive", lambda: True)
    return SimpleNamespace(settings=measure.Settings(CPU, 1000, 0.0, True, monitor))  # type: ignore[arg-type]

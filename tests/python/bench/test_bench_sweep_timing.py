"""What the sweep times of a problem, on the CPU and on a GPU or its stand-ins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from second_best import second_best
from sweep_stand import DRAWS, gpu_on_the_cpu, made_up_weights, sweep, tiny_problems, written

from sparseloom import ops
from sparseloom_bench.bench.gpu.operands import Operands
from sparseloom_bench.bench.sweep import cpu, gpu, record, run, summary
from sparseloom_bench.bench.sweep.problems import Problem, draw, problem_of


@pytest.fixture(name="weights")
def _weights(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_weights(monkeypatch)


@pytest.fixture(name="tiny")
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_problems(monkeypatch)


# Timing on the CPU.


@pytest.mark.parametrize(
    ("us_per_token", "base_us"), [(0.5, 10), (40, 10), (3000, 10), (90_000, 0), (1, 60_000)]
)
def test_tokens_are_halved_until_dense_is_short(
    monkeypatch: pytest.MonkeyPatch, us_per_token: float, base_us: float
) -> None:
    spent: list[float] = []

    def dense_seconds(of: Problem) -> float:
        spent.append(1e-6 * (base_us + us_per_token * of.m))
        return spent[-1]

    monkeypatch.setattr(cpu, "dense_seconds", dense_seconds)
    drawn = replace(DRAWS[0], m=50_000, drawn=50_000)
    fitted = cpu.Cpu().fitted(drawn)
    tokens = drawn.m
    while tokens > 1 and 1e-6 * (base_us + us_per_token * tokens) > cpu.MOST_DENSE_SECONDS:
        tokens //= 2
    assert fitted == replace(drawn, m=tokens) and fitted.drawn == 50_000
    assert sum(spent) < 10 * cpu.MOST_DENSE_SECONDS


def test_a_step_in_dense_time_does_not_carry_the_tokens_past_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # From 101 tokens on torch takes another path.
    monkeypatch.setattr(cpu, "dense_seconds", lambda of: 1e-6 * of.m if of.m <= 100 else 1.0)
    assert cpu.Cpu().fitted(replace(DRAWS[0], m=4096)).m == 64


def test_a_problem_is_timed_once_more_and_then_unmeasured(
    tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "MOST_SPREAD", 0.05)
    calm = [[1.0] * 9, [2.0] * 9]
    wild = [[1.0] * 9, [2.0] * 3 + [3.0] * 6]
    for runs, times, ok in (([calm], 1, True), ([wild, calm], 2, True), ([wild, wild], 2, False)):
        taken: list[int] = []

        def interleaved(
            calls: Any, seconds: float, least: int, runs: Any = runs, taken: list[int] = taken
        ) -> Any:
            taken.append(1)
            return runs[len(taken) - 1]

        monkeypatch.setattr(cpu, "interleaved", interleaved)
        found = cpu.Cpu().measure(replace(draw(1, 1), index=1))
        assert len(taken) == times and ("unmeasured" not in found) is ok
    beside = "a third of its rounds lies 33.3 % beside all"
    assert found["unmeasured"] == f"{beside}; then {beside}" and summary.measured([found]) == []
    monkeypatch.setattr(cpu, "BUSY", 0.2)
    monkeypatch.setattr(cpu, "interleaved", lambda *_: calm)
    for shares, ok in (([0.2], True), ([0.4, 0.1], True), ([0.4, 0.5], False)):
        watches = [SimpleNamespace(lost=share, look=lambda: None) for share in shares]
        monkeypatch.setattr(cpu, "Watch", iter(watches).__next__)
        found = cpu.Cpu().measure(replace(draw(1, 1), index=1))
        assert ("unmeasured" not in found) is ok
    assert found["unmeasured"] == "others took 40 % of the CPU time; then others took 50 % of the CPU time"


def test_plans_texts_say_nothing_of_the_machines_files() -> None:
    text = "plan: x\n  not y: runs on the CPU, the operands are on cuda:0\n  on avx2; per core 1 Gflop/s"
    text += "; rates measured and kept in /some/rates.txt\n  not z: 1 us\n"
    assert record.portable(text) == "plan: x\n  on avx2; per core 1 Gflop/s\n  not z: 1 us"


def test_hopeless_candidates_are_left_out_and_a_forced_one_never() -> None:
    entries = [("a", "", 10.0), ("b", "no", None), ("c", "", 2.0), ("d", "", 61.0), ("reference", "", 3.0)]
    plan = {
        "kernel": "a",
        "candidates": [
            dict(zip(("kernel", "refusal", "predicted_us"), each, strict=True)) for each in entries
        ],
    }
    assert record.named(plan, False) == ["a"] and record.named(plan, True) == ["a", "c"]
    assert record.named(plan, True, "d") == ["a", "d", "c"] and second_best(plan) == "reference"


# On the GPU, and on stand-ins for it.


@pytest.fixture
def stand_in(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_on_the_cpu(monkeypatch)


def test_the_gpus_way_from_problem_to_record(
    stand_in: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep("--seed", 5, "--problems", 11, "--device", "cuda", "--results", tmp_path) == 0
    found = written(tmp_path, "sweep-5")
    assert found["device"] == "h200" and found["gpu"]["name"] == "NVIDIA H200"
    assert [problem_of(each) for each in found["records"]] == [draw(5, index) for index in range(11)]
    for each in found["records"]:
        assert (
            each["tile_excess"] <= 1
            and each["same_bits"]
            and each["clock_mhz"] == 1980
            and each["samples"] >= gpu.LEAST_ROUNDS
        )
        assert ("candidates" in each) is (each["index"] % 10 == 0) and ("eager" in each) is (
            each["index"] == 5
        )
    launched = found["records"][5]["eager"]
    assert launched["us"] > 0 and launched["host_us"] > 0 and 0 <= launched["host_share"] < 1
    assert "launched eagerly, back to back, in 1 problems" in capsys.readouterr().out
    (old,) = tmp_path.glob("*/sweep-5.json")
    assert sweep("--compare", old, "--device", "cuda", "--results", tmp_path) == 0


def test_a_dense_copy_is_replayed_in_as_many_copies_as_dense(
    stand_in: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "with_copy", lambda plan: record.with_copy(plan | {"dense_copy_us": 1e-3}))
    problem = replace(draw(5, 1), direction="forward")
    found = gpu.Gpu(True).measure(problem)
    assert found["kernel"] == "dense_copy" and found["tile_excess"] <= 1
    assert gpu.Gpu(False).measure(problem)["kernel"] != "dense_copy"
    operands = Operands(problem, torch.device("cpu"), 1 << 20)
    calls = operands.calls("dense_copy")
    assert len(calls) == len(operands.dense_sets)
    assert all(torch.equal(call(), calls[0]()) for call in calls)
    assert len({call.args[2].data_ptr() for call in calls}) == len(calls)  # type: ignore[attr-defined]


def test_a_candidate_that_breaks_is_named_and_a_choice_that_breaks_is_an_error(
    stand_in: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = Operands.calls

    def calls(self: Operands, kernel: str) -> Any:
        if kernel == broken:
            raise RuntimeError("misaligned")
        return real(self, kernel)

    device = gpu.Gpu()
    whole = device.measure(draw(5, 0))
    first, other = (
        whole["kernel"],
        next(each["kernel"] for each in whole["candidates"] if each["kernel"] != whole["kernel"]),
    )
    monkeypatch.setattr(Operands, "calls", calls)
    broken = other
    (entry,) = [each for each in device.measure(draw(5, 0))["candidates"] if each["kernel"] == other]
    assert entry == {"kernel": other, "error": "RuntimeError: misaligned"}
    broken = first
    made = run.Sweep(device, 5, None, tmp_path, "x")
    made.measure(made.drawn(), 1, 60, lambda left: [])
    assert made.records[0]["error"] == f"RuntimeError: the plan's choice {first}: RuntimeError: misaligned"


def test_a_dead_context_is_recorded_and_a_new_process_goes_on(
    stand_in: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Replaced(Exception):
        pass

    asked: list[list[str]] = []

    def start_again(death: Exception, arguments: list[str]) -> None:
        asked.append(arguments)
        raise Replaced

    monkeypatch.setattr(run, "start_again", start_again)
    monkeypatch.setattr(gpu, "alive", lambda: False)
    monkeypatch.setattr(gpu, "plan_of", lambda made: 1 / 0)
    with pytest.raises(Replaced):
        sweep("--seed", 5, "--problems", 3, "--seconds", 100, "--device", "cuda", "--results", tmp_path)
    assert written(tmp_path, "sweep-5")["records"][0]["error"].startswith("ZeroDivisionError")
    options = dict(zip(asked[0][2::2], asked[0][3::2], strict=True))
    assert asked[0][:2] == ["bench", "sweep"] and options["--seed"] == "5" and options["--problems"] == "3"
    assert (
        options["--name"] == "sweep-5"
        and 0 < float(options["--seconds"]) < 100  # what is left of them
        and "--kernel" not in options
    )
    monkeypatch.setattr(
        gpu,
        "plan_of",
        lambda made: ops.plan(made.host_index, made.cell.direction, made.case.dtype, made.cell.m),
    )
    assert sweep(*asked[0][2:]) == 0
    assert [each["index"] for each in written(tmp_path, "sweep-5")["records"]] == [0, 1, 2]


@pytest.mark.gpu
def test_the_sweep_on_a_gpu(weights: None, tmp_path: Path) -> None:
    assert sweep("--seed", 5, "--problems", 11, "--device", "cuda", "--results", tmp_path) == 0
    found = written(tmp_path, "sweep-5")["records"]
    assert not [each["error"] for each in found if "error" in each]
    assert all(each["tile_excess"] <= 1 for each in found) and found[5]["eager"]["host_us"] > 0
    options = ["--seed", 5, "--problems", 11, "--device", "cuda", "--results", tmp_path]
    assert sweep(*options, "--dense-copy") == 0
    copied = written(tmp_path, "sweep-5-dense-copy")["records"]
    assert not [each["error"] for each in copied if "error" in each]
    assert all(each["tile_excess"] <= 1 for each in copied)
    assert sweep(*options, "--family", "semi24", "--dense-copy") == 0
    assert sweep(*options, "--family", "tiles") == 0
    for name in ("sweep-semi24-5-dense-copy", "sweep-tiles-5"):
        packed = written(tmp_path, name)["records"]
        assert not [each["error"] for each in packed if "error" in each]
        assert all(each["tile_excess"] <= 1 for each in packed)

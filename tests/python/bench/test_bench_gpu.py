"""The GPU suite: its list, its rules and its records on the CPU with small stand-ins; one run of everything
on a GPU."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench_stand import TINY, bench, few_calls, scattered_calls, stand_in

from sparseloom.testing import tf32_switch
from sparseloom_bench.bench import cells, results
from sparseloom_bench.bench.cells import Cell
from sparseloom_bench.bench.gpu import (
    goals,
    groups,
    host,
    jobs,
    measure,
    replay,
    run,
    training,
)
from sparseloom_bench.bench.gpu.operands import DENSE, Operands, Reference
from sparseloom_bench.bench.timing import Spread


@pytest.fixture(name="on_the_cpu")
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return stand_in(monkeypatch)


def test_pauses_keep_the_card_cool() -> None:
    assert [replay.pause_after(seconds) for seconds in (0, 0.007, 1)] == [0.005, 0.028, 0.06]


def test_the_captured_calls_take_turns_and_reuse_their_own_output(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = SimpleNamespace(
        Event=lambda **_: None, stream=lambda _: contextlib.nullcontext(), current_device=lambda: 0
    )
    nothing.synchronize = lambda: None
    monkeypatch.setattr(replay.torch, "cuda", nothing)
    monkeypatch.setattr(replay, "capture_stream", lambda _: None)
    monkeypatch.setattr(replay, "estimate_us", lambda _: 345.0)
    order: list[int] = []
    alive: list[int] = []

    def call(i: int) -> torch.Tensor:
        order.append(i)
        alive.append(len(made.outputs) if made else 0)
        return torch.full((1,), float(i))

    made: Any = None
    monkeypatch.setattr(replay, "capture", lambda body: SimpleNamespace(replay=body))
    made = replay.Replay([lambda i=i: call(i) for i in range(3)])
    order.clear(), alive.clear()
    made.replay()
    # the set's old output is free before the call
    assert made.launches == 12 and order == [0, 1, 2] * 4 and max(alive) == 2
    assert [int(output) for output in made.outputs] == [0, 1, 2] and not made.same_bits()


def test_a_run_writes_every_cell_checked_with_peers_and_host(
    on_the_cpu: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = host.per_call_us

    def by_mode(*arguments: Any) -> Spread:
        real(*arguments)
        return Spread(*[20.0 if torch.is_grad_enabled() else 10.0] * 3)

    monkeypatch.setattr(host, "per_call_us", by_mode)
    assert bench("--results", tmp_path) == 0
    written = json.loads((tmp_path / "h200" / "gpu.json").read_text())
    assert written["device"] == "h200" and written["gpu"]["name"] == "NVIDIA H200"
    *found, called = written["records"]
    assert [cells.cell_of(record) for record in found] == TINY
    for record in found:
        assert record["tile_excess"] <= 1 and record["sparse_us"] > 0
        assert measure.CALM_ROUNDS <= record["samples"] <= measure.MOST_ROUNDS
        names = [each["kernel"] for each in record["candidates"]]
        assert (
            record["kernel"] in names
            and record["best"] in names
            and record["sparse_kernel"] not in measure.NOT_SPARSE
        )
        assert record["sets"]["ours"] >= 2 and record["sustained"]["us"] > 0
        assert record["clock_mhz"] == {"burst": 1980, "sustained": 1980}
        assert record["goal"] is None and record["predicted_us"] > 0 and 0.45 < record["stored"] < 0.55
        assert list(record["seconds"]) == ["operands", "checks", "bursts", "sustained"]
    assert found[0]["peers"]["torch_bsr"] > 0 and found[0]["peers"]["cusparse_ell"] is None
    assert found[0]["peers_absent"] == {"cusparse_ell": "ValueError: no such library"}
    assert found[1]["peers_absent"].keys() == found[1]["peers"].keys()
    assert (
        called["op"] == "host"
        and called["with_gradients"]["us"]["median"] == 20 == 2 * called["without_gradients"]["us"]["median"]
    )
    out = capsys.readouterr().out
    assert str(TINY[0]) in out and "F.linear" in out
    assert "of the best in" in out and "measured over predicted" in out


def test_a_group_goes_into_its_own_file_and_misses_are_said_with_their_targets(
    on_the_cpu: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cell = TINY[2]
    monkeypatch.setitem(groups.GROUPS, "dw", lambda: [cell])
    monkeypatch.setitem(goals.SPEEDUPS, ("dw", "f32", (cell.m, cell.k, cell.n)), {32: (1e6,) * 5})
    assert bench("--group", "dw", "--results", tmp_path, "--check") == 1
    said = capsys.readouterr().err
    assert f"missed: {cell}: " in said and "x as fast as dense, target 1e+06x" in said and "sustains" in said
    (record,) = json.loads((tmp_path / "h200" / "gpu-dw.json").read_text())["records"]
    assert record["goal"] == {"figure": 1e6, "least": 1e6, "of_forward": False, "sustained": goals.SUSTAINED}


def test_a_candidate_that_raises_is_recorded_and_the_rest_goes_on(
    on_the_cpu: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = Operands.calls

    def broken(self: Operands, kernel: str) -> list[Callable[[], torch.Tensor]]:
        if self.cell.direction == "dx" and kernel != "reference":
            raise RuntimeError("illegal something\nand a stack")
        return real(self, kernel)

    monkeypatch.setattr(Operands, "calls", broken)
    assert bench("--results", tmp_path, "--only", "-bf16-") == 1
    first, second = json.loads((tmp_path / "h200" / "gpu.json").read_text())["records"]
    assert "error" not in first and "illegal something" in second["error"] and "stack" not in second["error"]
    assert "illegal something" in capsys.readouterr().err


def test_a_dead_context_leaves_its_record_and_a_new_process_goes_on(
    on_the_cpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(run.os, "execv", lambda path, arguments: started.append(arguments) or sys.exit(3))
    monkeypatch.setattr(sys, "argv", ["sparseloom", "bench", "gpu", "--seconds", "0"])
    monkeypatch.setattr(results, "commit", lambda: "c")
    real = Reference.check

    def deadly(self: Reference, actual: torch.Tensor) -> Any:
        if self._operands.cell.direction == "dx":
            monkeypatch.setattr(measure, "alive", lambda: False)
            raise RuntimeError("an illegal memory access was encountered")
        return real(self, actual)

    monkeypatch.setattr(Reference, "check", deadly)
    assert bench("--results", tmp_path) == 3
    assert started == [[sys.executable, "-m", "sparseloom", "bench", "gpu", "--seconds", "0", "--resume"]]
    before = json.loads((tmp_path / "h200" / "gpu.json").read_text())["records"]
    assert len(before) == 2 and "illegal memory access" in before[1]["error"]
    monkeypatch.setattr(measure, "alive", lambda: True)
    assert bench("--results", tmp_path, "--resume") == 1  # the error is still in the file
    after = json.loads((tmp_path / "h200" / "gpu.json").read_text())["records"]
    assert after[:2] == before and [record["op"] for record in after] == ["linear"] * 3 + ["host"]
    monkeypatch.setattr(results, "commit", lambda: "another")
    assert bench("--results", tmp_path, "--resume") == 2


def test_the_host_alone(on_the_cpu: SimpleNamespace, tmp_path: Path) -> None:
    assert bench("--results", tmp_path, "--only", "host") == 0
    (record,) = json.loads((tmp_path / "h200" / "gpu.json").read_text())["records"]
    assert record["calls"] == 200


def test_without_a_gpu_the_suite_says_so_and_still_lists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench("--results", tmp_path) == 2
    assert "GPU" in capsys.readouterr().err and not list(tmp_path.iterdir())
    assert bench("--list", "--group", "dw", "--only", "128x128") == 0
    assert len(capsys.readouterr().out.split()) == 5
    assert bench("--list", "--group", "everything") == 2


def test_the_host_is_timed_call_by_call_and_waits_outside() -> None:
    calls, waits = [], []
    found = host.per_call_us(lambda: calls.append(1), 250, lambda: waits.append(len(calls)))
    assert waits == [100, 200, 300, 400] and 0 < found.p20 <= found.median


def test_a_resumed_run_does_what_is_left() -> None:
    done = json.loads(
        json.dumps(
            [measure.cell_fields(TINY[1]) | {"error": "x"}, {"op": "host"}, training.step_fields(64, 0.1)]
        )
    )
    assert [jobs.of_cell(cell).done(done) for cell in TINY] == [False, True, False]
    assert [job.name for job in jobs.extras() if job.done(done)] == [
        "step-bf16-8192x4096x4096-64x64-d0.1",
        "host",
    ]


def test_rounds_end_early_where_nothing_is_left_to_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "pause_after", lambda seconds: 0)

    def contenders(wobble: float) -> dict[str, Any]:
        us = {"fast": 10.0, "near": 11.0, "far": 19.0, "dense": 90.0, DENSE: 100.0, "peer": 5.0}
        turns = dict.fromkeys(us, 0)

        def burst(name: str) -> float:
            turns[name] += 1
            return us[name] * (1 + wobble * (turns[name] % 2) * (name == "fast"))

        return {name: SimpleNamespace(burst=lambda name=name: burst(name), launches=1) for name in us}

    settings = SimpleNamespace(seconds=0.0, monitor=SimpleNamespace(clock_mhz=lambda: 1))
    for wobble, most in ((0.0, measure.CALM_ROUNDS), (0.05, measure.MOST_ROUNDS)):
        samples, _ = measure.rounds(contenders(wobble), "fast", {"peer"}, settings)  # type: ignore[arg-type]
        rounds = {name: len(times) for name, times in samples.items()}
        assert rounds == {"fast": most, "near": most, "far": 3, "dense": 1, DENSE: most, "peer": 3}
    samples, _ = measure.rounds(contenders(0.0), "dense", {"peer"}, settings)  # type: ignore[arg-type]
    # a bad choice is timed on, and the best beside it
    assert len(samples["dense"]) == len(samples["fast"]) == measure.CALM_ROUNDS


# On a GPU: everything once.


@pytest.mark.gpu
def test_the_suite_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = [
        Cell("forward", "bf16", 64, 512, 1024, (32, 32), 0.25),
        Cell("dx", "f16", 64, 512, 1024, (16, 16), 0.25),
        Cell("dw", "tf32", 64, 512, 1024, (64, 64), 0.25),
        Cell("forward", "f32", 64, 512, 1024, (16, 64), 0.25),
    ]
    monkeypatch.setitem(cells.SUITES, "gpu", lambda: small)
    few_calls(monkeypatch)
    monkeypatch.setattr(
        measure, "compared", lambda cell: cell.direction == "forward" and cell.dtype == "bf16"
    )
    assert bench("--results", tmp_path) == 0
    (path,) = tmp_path.glob("*/gpu.json")
    *found, called = json.loads(path.read_text())["records"]
    assert [cells.cell_of(each) for each in found] == small and called["op"] == "host"
    for each in found:
        assert each["candidates"], each
        for candidate in each["candidates"]:
            assert candidate["tile_excess"] <= 1 and (
                candidate["same_bits"] or candidate["kernel"] == "dense"
            ), (each, candidate)
    assert found[0]["peers"]["torch_bsr"], found[0]["peers_absent"]
    assert found[0]["peers"]["cusparse_ell"], found[0]["peers_absent"]


@pytest.mark.gpu
def test_a_hole_in_a_result_is_seen() -> None:
    made = Operands(
        Cell("forward", "bf16", 64, 512, 1024, (32, 32), 0.25),
        torch.device("cuda", torch.cuda.current_device()),
        1 << 20,
    )
    reference = Reference(made)

    def holed(call: Callable[[], torch.Tensor]) -> torch.Tensor:
        y = torch.empty_like(call())
        y[:, 32:].copy_(call()[:, 32:])
        return y

    with torch.no_grad():
        whole = replay.Replay(scattered_calls(made))
        assert reference.check(whole.poisoned()).ok and whole.same_bits()
        lossy = replay.Replay([lambda call=call: holed(call) for call in scattered_calls(made)])
        assert not reference.check(lossy.poisoned()).ok
        assert whole.burst() > 0 and min(whole.sustained()) > 0
        assert replay.synchronises(lambda: torch.nonzero(whole.outputs[0])) and not replay.synchronises(
            scattered_calls(made)[0]
        )


def fewer_tokens() -> list[Cell]:
    """The committed cells at token counts that a test can afford (dense fp8 takes multiples of 16), each
    once."""

    def most(cell: Cell) -> int:
        return 256 if cell.dtype.startswith("fp8") else 257

    return list(dict.fromkeys(replace(cell, m=min(cell.m, most(cell))) for cell in groups.gpu_cells()))


@pytest.mark.gpu
@pytest.mark.parametrize("cell", fewer_tokens(), ids=str)
def test_every_committed_cell_is_right(cell: Cell) -> None:
    with torch.no_grad(), tf32_switch(cell.tf32):
        made = Operands(cell, torch.device("cuda", torch.cuda.current_device()), 1)
        reference = Reference(made)
        for each in measure.plan_of(made)["candidates"]:
            if not each["refusal"]:
                found = reference.check(made.calls(each["kernel"])[-1]())
                assert found.ok, f"{each['kernel']}: {found}"


# Walks over the batch sizes.

"""Measurements of 2:4 weights: the sweep's problems and the GPU suite's group, with stand-ins for CUDA."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench_stand import CPU, Stand, bench, stand_in
from sweep_stand import sweep, tiny_problems, written

from sparseloom.ops import semi24 as _semi24
from sparseloom_bench.bench import semi24
from sparseloom_bench.bench.cells import DENSE_COPY
from sparseloom_bench.bench.gpu import jobs, semi24_group, semi24_peers, semi24_training, table, targets
from sparseloom_bench.bench.gpu.operands import DENSE, Reference
from sparseloom_bench.bench.gpu.semi24_operands import Semi24Operands
from sparseloom_bench.bench.sweep import cpu, problems, record, summary
from sparseloom_bench.bench.sweep import semi24 as swept
from sparseloom_bench.bench.sweep.problems import problem_of

TINY = [semi24.cell("forward", dtype, 24, 64, 48) for dtype in ("bf16", "fp8", "fp8_promoted", "int8")]
F32 = semi24.cell("forward", "f32", 9, 70, 45)


def test_chance_stores_two_of_each_four() -> None:
    kept = semi24.places(30, 21, torch.Generator().manual_seed(0))
    groups = kept[:, :20].unflatten(1, (5, 4))
    assert bool((groups.sum(-1) == 2).all()) and len(groups.flatten(0, 1).unique(dim=0)) == 6
    drawn = semi24.draw((30, 21), torch.int8, torch.Generator().manual_seed(0), kept)
    assert not drawn[~kept].any() and int(drawn.abs().max()) > 100


@pytest.mark.parametrize("cell", [*TINY, F32, semi24.cell("dx", "f16", 9, 70, 45)])
def test_operands_and_reference_agree_with_the_library(cell: semi24.Cell) -> None:
    made = Semi24Operands(cell, CPU, 20_000)
    first, reference = made.copies[0], Reference(made)
    unpacked = _semi24.unpack(first.values, first.positions, cell.k)
    assert torch.equal(made.weight.float(), unpacked.float())
    assert (
        0 <= made.elements - int(unpacked.float().count_nonzero()) < 0.05 * made.elements
    )  # rounded to zero
    outputs = [call() for call in made.calls(made.plan()["kernel"])]
    assert len(outputs) == len(made.copies) >= 2 and reference.check(outputs[0]).ok
    assert all(torch.equal(output, outputs[0]) for output in outputs)
    if cell.dtype not in ("fp8", "fp8_promoted", "int8"):
        assert all(reference.check(call()).ok for call in made.calls(DENSE_COPY))
    lost = outputs[0].clone()
    lost[0, :3] = 0
    assert not reference.check(lost).ok
    if cell.dtype not in ("fp8", "fp8_promoted"):  # a CPU's torch may lack it
        full = made.dense_calls()[DENSE][0]()
        assert full.shape[1:] == outputs[0].shape[1:] and not torch.equal(
            full[: cell.m].float(), outputs[0].float()
        )
    assert len({copy.values.data_ptr() for copy in made.copies}) == len(made.copies)


def test_the_cells_are_those_that_have_goals() -> None:
    assert len(semi24_group.CELLS) == 20 and len(jobs.choose(["semi24"], [])) == 26
    large = [cell for cell, goal in semi24_group.CELLS.items() if goal.cusparselt]
    assert {(cell.m, cell.k, cell.n) for cell in large} == {*semi24_group.LARGE, *semi24_group.MORE}
    names = [job.name for job in jobs.choose(["semi24"], [])]
    assert len(set(names)) == len(names)


@pytest.fixture(name="on_the_cpu")
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    real = jobs.extras
    made = stand_in(monkeypatch)
    monkeypatch.setattr(jobs, "extras", lambda: [job for job in real() if job.group == "semi24"])
    monkeypatch.setattr(semi24_group, "Replay", Stand)
    monkeypatch.setattr(semi24_training, "Replay", Stand)
    monkeypatch.setattr(semi24_training, "SHAPE", (24, 64, 32))
    monkeypatch.setattr(semi24_group, "plan_of", lambda operands: operands.plan())
    for module in (semi24_group, semi24_training):
        monkeypatch.setattr(module, "in_turn", lambda replays, rounds: {
            name: [each.burst() for _ in range(rounds)] for name, each in replays.items()
        })  # fmt: skip
    ways = semi24_training.WAYS | {
        "dense weight": lambda linear: linear,
        "torch": semi24_training.WAYS["ours"],
    }
    monkeypatch.setattr(semi24_training, "WAYS", ways)
    monkeypatch.setattr(semi24_group, "SIDE", 32)
    monkeypatch.setattr(semi24_group, "_torchs", lambda weight: weight.clone())
    goals = dict.fromkeys((TINY[0], TINY[3]), semi24_group.Goal(1e9, 1e9))
    monkeypatch.setattr(semi24_group, "CELLS", goals)
    peers = {"right": lambda made: made.calls("reference"), "none": semi24_peers.torchs_own}
    monkeypatch.setattr(semi24_group, "PEERS", peers)
    return made


def test_the_group_runs_checks_and_says_what_it_misses(
    on_the_cpu: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--group", "semi24", "--results", tmp_path) == 0
    (path,) = tmp_path.glob("*/gpu-semi24.json")
    found = json.loads(path.read_text())["records"]
    products = [each for each in found if each["op"] == "semi24"]
    assert len(found) == 8 and [each["dtype"] for each in products] == ["bf16", "int8"]
    for each in products:
        assert each["tile_excess"] <= 1 and each["same_bits"] and each["candidates"]
        assert (
            each["peer"] == "right" and each["sustained"]["over_peer"] > 0 and "none" in each["peers_absent"]
        )
    (trained,) = (each for each in found if each["op"] == "semi24_train")
    assert list(trained["peers"]) == ["torch"] and {*trained["relative_error"]} == {
        "ours",
        "ours_refreshed",
        "torch",
    }
    assert (
        "another weight" in trained["peers_absent"]["dense weight"]
        and "xformers" in trained["peers_absent"]["xformers, CUTLASS"]
    )
    assert trained["sustained"]["us"].keys() == {"dense", "ours", "ours_refreshed", "torch"}
    pruned = [each for each in found if each["op"] == "semi24_prune"]
    assert all(each["same_bits"] for each in pruned)
    assert [each["name"] for each in pruned if each["torch_us"]] == [
        "semi24-prune-transposable_greedy-W-and-W^T-32x32"
    ]
    assert "semi24-bf16-24x64x48" in capsys.readouterr().out
    missed = targets.semi24_below(found)
    assert sum("of dense, target 1e+09" in each for each in missed) == 2
    trained["speedup"] = 1.0
    assert any("semi24-train" in each and "(speedup)" in each for each in targets.semi24_below([trained]))
    assert sum("of cusparselt, target" in each for each in missed) == 2
    rows = [table.semi24_row(each) for each in [*found, {"op": "semi24", "error": "x"}]]
    assert {len(row) for row in rows} == {len(table.HEAD)}


def test_the_sweep_draws_2_4_problems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    tiny_problems(monkeypatch)
    monkeypatch.setattr(swept, "ZOO", problems.ZOO)
    monkeypatch.setattr(swept, "TOKENS", problems.TOKENS)
    options = ["--seed", 3, "--device", "cpu", "--results", tmp_path]
    assert sweep(*options, "--family", "semi24", "--problems", 6) == 0
    found = written(tmp_path, "sweep-semi24-3")
    assert found["family"] == "semi24" and found["demo_scores"] is None and len(found["records"]) == 6
    for each in found["records"]:
        problem = problem_of(each, swept.Semi24Problem)
        assert problem == swept.draw(3, each["index"])
        assert each["tile_excess"] <= 1 and abs(each["stored"] - 0.5) < 0.02 and each["predicted_us"] > 0
    assert {each["direction"] for each in found["records"]} == {"forward", "dx"}
    said = capsys.readouterr().out
    assert "direction dx" in said and "mask " not in said and ", 2:4" in said
    assert "2:4 weights" in summary.about(found)
    (old,) = tmp_path.glob("*/sweep-semi24-3.json")
    assert sweep("--compare", old, "--device", "cpu", "--results", tmp_path) == 0
    assert written(tmp_path, "sweep-semi24-3-again")["family"] == "semi24"
    assert sweep(*options, "--family", "coo") == 2
    assert sweep("--device", "cuda", "--family", "csr", "--results", tmp_path) == 2
    kernel = "avx2_expand"
    if any(
        each["kernel"] == kernel and not each["refusal"]
        for each in swept.draw(3, 0).plan("cpu")["candidates"]
    ):
        assert sweep(*options, "--family", "semi24", "--problems", 2, "--kernel", kernel) == 0


def test_2_4_problems_may_take_a_dense_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tiny_problems(monkeypatch)
    monkeypatch.setattr(swept, "ZOO", (problems.Layer("ragged", 170, 110),))
    monkeypatch.setattr(swept, "TOKENS", (1, 40))
    real = record.with_copy
    monkeypatch.setattr(cpu, "with_copy", lambda plan: real(plan | {"dense_copy_us": 1e-3}))
    options = ["--seed", 3, "--device", "cpu", "--results", tmp_path, "--problems", 6]
    assert sweep(*options, "--family", "semi24", "--dense-copy") == 0
    found = written(tmp_path, "sweep-semi24-3-dense-copy")
    assert found["dense_copy"] is True and found["family"] == "semi24"
    assert {each["direction"] for each in found["records"]} == {"forward", "dx"}
    for each in found["records"]:
        assert each["kernel"] == "dense_copy" and each["tile_excess"] <= 1
    first, second = (each for each in summary.sentences(found["records"], True) if "dense copy" in each)
    assert "forward problems: taken in" in first and "dx problems: taken in" in second


def test_drawn_problems_are_the_same_everywhere_and_in_range() -> None:
    drawn = [swept.draw(11, index) for index in range(300)]
    assert drawn == [swept.draw(11, index) for index in range(300)]
    assert {each.direction for each in drawn} == {"forward", "dx"} and len(
        {each.layer for each in drawn}
    ) > 20
    assert all(1 <= each.m <= 65536 for each in drawn) and {each.dtype for each in drawn} == {
        "bf16",
        "f16",
        "f32",
    }

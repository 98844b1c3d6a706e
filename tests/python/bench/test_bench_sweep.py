"""The command `bench sweep`: what it measures and sums up, and that a worse plan does not escape it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sweep_stand import DRAWS, made_up_weights, sweep, tiny_problems, written

from sparseloom import Error, ops
from sparseloom_bench.bench.sweep import compare, cpu, problems, record, run, summary
from sparseloom_bench.bench.sweep.problems import Problem, draw, problem_of


@pytest.fixture(name="weights")
def _weights(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_weights(monkeypatch)


@pytest.fixture(name="tiny")
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_problems(monkeypatch)


# The command.


def test_the_command_measures_goes_on_and_compares(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep("--seed", 5, "--problems", 2, "--device", "cpu", "--results", tmp_path) == 0
    first = written(tmp_path, "sweep-5")
    assert {"device", "commit", "date", "versions", "machine", "demo_scores"} <= first.keys()
    assert first["seed"] == 5
    assert [problem_of(each).index for each in first["records"]] == [0, 1]
    for each in first["records"]:
        assert problem_of(each) == draw(5, each["index"]) and each["tile_excess"] <= 1
        rounds = each["speedup_spread"]
        assert rounds["p20"] <= each["speedup"] <= rounds["p80"] and each["predicted_us"] > 0
    assert "candidates" in first["records"][0] and "candidates" not in first["records"][1]
    said = capsys.readouterr().out
    for words in (
        "mask ",
        "tokens 1 to 8",
        "predicted over measured time",
        "the choice is within 5 %",
        "plan: ",
        "unmeasured: 0",
    ):
        assert words in said, words
    assert sweep("--seed", 5, "--problems", 12, "--device", "cpu", "--results", tmp_path) == 0
    longer = written(tmp_path, "sweep-5")
    assert longer["records"][0]["us"] == first["records"][0]["us"] and len(longer["records"]) == 12
    assert sum("plan" in each for each in longer["records"]) == 10  # the worst
    assert "2 of them measured before" in capsys.readouterr().out
    (old,) = tmp_path.glob("*/sweep-5.json")
    assert sweep("--compare", old, "--device", "cpu", "--results", tmp_path) == 0
    again = written(tmp_path, "sweep-5-again")
    assert [problem_of(each) for each in again["records"]] == [problem_of(each) for each in longer["records"]]
    assert "12 problems measured in both" in capsys.readouterr().out


def test_a_budget_ends_the_run_with_what_was_measured(tiny: None, tmp_path: Path) -> None:
    assert sweep("--seed", 5, "--seconds", 0, "--device", "cpu", "--results", tmp_path) == 0
    assert written(tmp_path, "sweep-5")["records"] == []
    assert (
        sweep("--seed", 5, "--seconds", 0.5, "--problems", 100_000, "--device", "cpu", "--results", tmp_path)
        == 0
    )
    assert 0 < len(written(tmp_path, "sweep-5")["records"]) < 1000


def test_a_kernel_gets_problems_that_it_takes_and_all_candidates(tiny: None, tmp_path: Path) -> None:
    able = [name for name in ops.info()["kernels"] if name not in ops.info()["kernels_unavailable"]]
    kernel = next(name for name in able if name.endswith("_decode"))
    assert (
        sweep("--seed", 5, "--problems", 3, "--kernel", kernel, "--device", "cpu", "--results", tmp_path) == 0
    )
    found = written(tmp_path, f"sweep-5-{kernel}")["records"]
    assert len(found) == 3
    for each in found:
        assert each["direction"] != "dw" and each["m"] <= 8  # what decode kernels are for
        assert (
            kernel in {candidate["kernel"] for candidate in each["candidates"]}
            and len(each["candidates"]) > 1
        )


def test_forward_problems_may_take_a_dense_copy(
    tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = record.with_copy
    monkeypatch.setattr(cpu, "with_copy", lambda plan: real(plan | {"dense_copy_us": 1e-3}))
    options = ["--seed", 5, "--problems", 6, "--device", "cpu", "--results", tmp_path]
    assert sweep(*options, "--dense-copy") == 0
    found = written(tmp_path, "sweep-5-dense-copy")
    assert found["dense_copy"] is True and len(found["records"]) == 6
    for each in found["records"]:
        assert (each["kernel"] == "dense_copy") == (each["direction"] == "forward") and each[
            "tile_excess"
        ] <= 1
    forward = sum(each["direction"] == "forward" for each in found["records"])
    assert 0 < forward < 6
    said = capsys.readouterr().out
    assert f"dense copy allowed, {forward} forward problems: taken in {forward} (100.0 %)" in said
    assert "dense copies allowed" in summary.about(found)
    (old,) = tmp_path.glob("*/sweep-5-dense-copy.json")
    assert sweep("--compare", old, "--device", "cpu", "--results", tmp_path) == 0
    assert written(tmp_path, "sweep-5-dense-copy-again")["dense_copy"] is True
    assert sweep(*options) == 0 and "dense copy allowed" not in capsys.readouterr().out.split("results:")[-2]
    plain = written(tmp_path, "sweep-5")
    assert plain["dense_copy"] is False
    assert "dense_copy" not in {each["kernel"] for each in plain["records"]}


def test_a_copy_is_a_candidate_and_the_choice_where_it_is_expected_to_be_faster() -> None:
    rows = [{"kernel": "a", "refusal": "", "predicted_us": 2.0}]
    plan = {"kernel": "a", "predicted_us": 2.0, "candidates": rows}
    assert record.with_copy(plan | {"dense_copy_us": None})["candidates"] == rows
    slower, faster = (record.with_copy(plan | {"dense_copy_us": us}) for us in (3.0, 1.0))
    assert slower["kernel"] == "a" and record.named(slower, True) == ["a", "dense_copy"]
    assert faster["kernel"] == "dense_copy" and record.predicted_us(faster, "dense_copy") == 1.0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--device", "tpu"], "--device cpu or cuda"),
        (["--kernel", "nothing"], "'nothing'"),
        (["--compare", "nowhere.json"], "nowhere.json"),
        (["--device", "cuda"], "a GPU for the suite sweep"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    weights: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    word: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert sweep("--seed", 1, "--problems", 1, "--results", tmp_path, *arguments) == 2
    error = capsys.readouterr().err
    assert word in error and error.count("\n") == 1 and error.startswith("sparseloom bench: ")


def test_a_kernel_that_takes_nothing_is_said(
    tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "MOST_DRAWS", 3)
    other = next(iter(ops.info()["kernels_unavailable"]), None)
    if other is None:  # a machine that runs all: an int8 kernel takes none of these dtypes
        other = next(name for name in ops.info()["kernels"] if "int8" in name or "vnni" in name)
    made = run.Sweep(cpu.Cpu(), 1, other, tmp_path, "x")
    with pytest.raises(Error, match="3 refused, the last: "):
        next(made.drawn())


def test_a_problem_that_fails_is_recorded_and_the_next_one_measured(
    tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = cpu.Cpu.measure

    def measure(self: Any, of: Problem, forced: str | None = None) -> Any:
        if of.index == 0:
            raise RuntimeError("no room\nand a stack")
        return real(self, of, forced)

    monkeypatch.setattr(cpu.Cpu, "measure", measure)
    assert sweep("--seed", 5, "--problems", 2, "--device", "cpu", "--results", tmp_path) == 0
    found = written(tmp_path, "sweep-5")["records"]
    assert found[0]["error"] == "RuntimeError: no room" and "speedup" in found[1]
    assert "failed: 1\n  #0 " in capsys.readouterr().out


def test_a_wrong_result_fails_the_command(
    tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from sparseloom_bench.bench import measure

    real = measure.sparse_product

    def one_block_lost(*arguments: Any) -> torch.Tensor:
        y = real(*arguments).clone()
        y.view(-1)[: y.shape[-1]] = 100.0
        return y

    monkeypatch.setattr(measure, "sparse_product", one_block_lost)
    assert sweep("--seed", 5, "--problems", 1, "--device", "cpu", "--results", tmp_path) == 1
    assert written(tmp_path, "sweep-5")["records"][0]["tile_excess"] > 1


def slowest(plan: dict[str, Any]) -> str:
    """The candidate that is predicted to be the slowest. Whether the second best (second_best.py) is much
    slower than the best depends on the CPU; this one is everywhere."""
    return str(record.able(plan)[-1]["kernel"])


def as_predicted(calls: list[Any], seconds: float, least: int) -> list[list[float]]:
    """Stands for bench.timing.interleaved: kernels take a thousand times what their plan says, and dense
    twice what the fastest does. Measured times of 10 ms of rounds are a busy machine's."""
    *ours, _ = calls  # partial(Bench.sparse, kernel)
    plan = ours[0].func.__self__.plan
    fastest = record.able(plan)[0]["kernel"]
    us = [1e3 * record.predicted_us(plan, kernel) for kernel in (*(call.args[0] for call in ours), fastest)]
    return [[each] * least for each in (*us[:-1], 2 * us[-1])]


def test_a_plan_that_takes_the_slowest_is_exposed(
    tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(problems, "TOKENS", (8, 80))
    monkeypatch.setattr(problems, "EVERY", 1)  # every candidate of every problem
    monkeypatch.setattr(cpu, "interleaved", as_predicted)

    def figures() -> tuple[float, float]:
        assert (
            sweep("--seed", 5, "--problems", 24, "--device", "cpu", "--results", tmp_path, "--name", "x") == 0
        )
        (path,) = tmp_path.glob("*/x.json")
        records = summary.measured(json.loads(path.read_text())["records"])
        path.unlink()
        good, many = summary.well_chosen(records)
        return sum(summary.slower(each) for each in records) / len(records), good / many

    behind, chosen = figures()
    assert summary.about(run.Sweep(cpu.Cpu(), 4, None, tmp_path, "x").head).startswith("seed 4; ")
    monkeypatch.setattr(record, "choice", slowest)
    said = summary.about(run.Sweep(cpu.Cpu(), 4, None, tmp_path, "x").head)
    assert said.startswith("seed 4, kernels chosen by slowest; ")
    worse_behind, worse_chosen = figures()
    assert (behind, chosen) == (0, 1) and worse_behind > 0.5 and worse_chosen < 0.5


# What is summed up.


def made(index: int, speedup: float, us: float = 100.0, **more: Any) -> dict[str, Any]:
    figures = {
        "speedup": speedup,
        "us": {"median": us},
        "dense_us": us * speedup,
        "stored": 0.25,
        "kernel": "some",
    }
    tail = {"predicted_us": us, "tile_excess": 0.5, "plan": f"plan {index}"}
    return replace(DRAWS[index], pattern="trained", direction="dx", m=9).fields() | figures | tail | more


def test_slower_is_by_three_percent_and_half_a_microsecond() -> None:
    assert [summary.slower(made(0, speedup)) for speedup in (0.9, 0.969, 0.971, 1.5)] == [
        True,
        True,
        False,
        False,
    ]
    assert summary.slower(made(0, 0.9, 5.1)) and not summary.slower(made(0, 0.9, 4.9))
    assert not summary.slower(made(0, 0.93), 0.9)


def test_figures_of_records_made_by_hand() -> None:
    records = [made(index, speedup) for index, speedup in enumerate((0.5, 0.95, 1.0, 2.0, 4.0))]
    records += [made(5, 0.1, error="x"), made(6, 0.1, unmeasured="y")]
    assert [summary.quantile([3.0, 1.0, 2.0, 4.0], at) for at in (0, 0.5, 1)] == [1.0, 2.5, 4.0]
    head, *groups = summary.rows(records)
    assert head == [
        "all",
        "5",
        "2 (40.0 %)",
        "1 (20.0 %)",
        "0.59",
        "0.95",
        "1.00",
        "2.00",
        "3.60",
        "0.24",
        "0.25",
        "0.50",
    ]
    assert len(head) == len(summary.HEAD)
    named = [line[0] for line in groups]
    assert "direction dx" in named and "mask trained" in named and "tokens 9 to 32" in named
    assert sum(int(line[1]) for line in groups if line[0].startswith("block ")) == 5
    assert [summary.token_group(tokens) for tokens in (1, 8, 9, 32, 33, 65536)] == [
        "1 to 8", "1 to 8", "9 to 32", "9 to 32", "33 to 128", "8193 to 65536",
    ]  # fmt: skip
    assert sorted(["rectangular", "128x128", "16x16"], key=summary.in_order) == [
        "16x16",
        "128x128",
        "rectangular",
    ]
    assert [each["index"] for each in summary.worst(records, 2)] == [0, 1]
    assert summary.rows([]) == [] and len(summary.sentences([])) == 3


def test_sentences_of_records_made_by_hand() -> None:
    records = [
        made(0, 0.5, over_best=1.0),
        made(1, 2.0, over_best=1.04, predicted_us=50.0),
        made(2, 2.0, over_best=2.0),
    ]
    records += [made(3, 1.0, eager={"speedup": 0.8, "host_share": 0.75}), made(4, 1.0, tile_excess=2.0)]
    records += [made(5, 1.0, unmeasured="wild"), replace(DRAWS[6], m=3).fields() | {"error": "broke"}]
    said = "\n".join(summary.sentences(records))
    assert "1 (20.0 %) of 5 problems, below .9: 1 (20.0 %)" in said and "median speed-up 1.000" in said
    assert "p5 0.60, p25 1.00" in said
    assert "within 5 % of the fastest in 2 (66.7 %) of 3 problems" in said and "90 % behind it" in said
    assert "in 1 problems: median speed-up 0.80, the host's share of the time 75 %, above half in 1" in said
    assert (
        "beyond the tolerance of a tile: 1\n  #4 " in said
        and "unmeasured: 1\n  #5 " in said
        and "failed: 1\n  #6 " in said
    )
    (title, text), *_ = summary.worst_texts(records)
    assert title.startswith("0.500 of dense (100.0 us by some, dense 50.0): #0 dx ") and text == "plan 0"


def test_what_moved_is_named() -> None:
    head = {"device": "d", "commit": "a" * 40, "demo_scores": "1"}
    old = head | {
        "records": [made(0, 1.0), made(1, 2.0), made(2, 3.0), made(3, 4.0), made(4, 1.0, 2.0), made(9, 1.0)]
    }
    records = [
        made(0, 0.8),
        made(1, 2.02),
        made(2, 6.0, kernel="new"),
        made(3, 4.0, error="x"),
        made(4, 1.1, 2.0),
    ]
    new = head | {"commit": "b" * 40 + "-dirty", "records": [*records, made(8, 1.0)]}
    lines = compare.sentences(old, new)
    assert lines[0] == f"4 problems measured in both: commit {'a' * 12} and commit {'b' * 12}-dirty"
    assert "median speed-up 1.500 -> 1.560 (+4.0 %)" in lines
    assert "a problem's own change: median +5.5 %, p5 -16.8 %, p95 +86.5 %" in lines
    assert "below .97 of dense: 0 (0.0 %) -> 1 (25.0 %)" in lines
    assert "moved by more than 3 % and .5 us: 1 slower, 1 faster" in lines  # 10 % of 2 us is none
    assert lines[-2].startswith("  1.000 -> 0.800 #0 dx ") and lines[-1].endswith(", some -> new")
    assert any("demo" in line for line in compare.sentences(old, new | {"demo_scores": "2"}))
    assert len(compare.sentences(old, head | {"records": []})) == 1

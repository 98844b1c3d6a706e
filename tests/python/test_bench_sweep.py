"""The sweep: its problems and masks, what is timed and summed up, and that a worse plan does not escape
it."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench_stand import CPU, Stand
from second_best import second_best

from sparseloom import Error, cli, ops
from sparseloom import pattern as patterns
from sparseloom.bench import skewed
from sparseloom.bench.gpu import measure as gpu_measure
from sparseloom.bench.gpu.operands import Operands
from sparseloom.bench.sweep import compare, cpu, gpu, masks, problems, record, run, scores, summary
from sparseloom.bench.sweep.problems import Problem, draw, problem_of
from sparseloom.demo.train import Settings

DRAWS = [draw(11, index) for index in range(3000)]


def sweep(*arguments: object) -> int:
    """Runs the command in this process; returns its exit status."""
    try:
        return cli.main(["bench", "sweep", *(str(argument) for argument in arguments)])
    except SystemExit as end:
        return int(end.code or 0)


def written(folder: Path, name: str) -> dict[str, Any]:
    (path,) = folder.glob(f"*/{name}.json")
    found: dict[str, Any] = json.loads(path.read_text())
    assert path.parent.name == found["device"] and found["suite"] == "sweep"
    return found


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Magnitudes of the demo's weights without its training."""
    generator = torch.Generator().manual_seed(0)
    made = {
        name: torch.rand(n // 16, k // 16, generator=generator) + 0.1
        for name, (k, n) in scores.LAYERS.items()
    }
    monkeypatch.setattr(scores, "magnitudes", lambda: made)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, weights: None) -> None:
    """Small layers, few tokens, square blocks that leave a grid, and little time for each."""
    monkeypatch.setattr(
        problems, "ZOO", (problems.Layer("tiny", 160, 96), problems.Layer("ragged", 170, 110))
    )
    monkeypatch.setattr(
        problems, "DEMO_LAYERS", {"layers.0.attention.out": scores.LAYERS["layers.0.attention.out"]}
    )
    monkeypatch.setattr(problems, "TOKENS", (1, 40))
    monkeypatch.setattr(problems, "SQUARE", ((16, 16), (32, 32)))
    monkeypatch.setattr(cpu, "SECONDS", (0.01, 0.01))
    monkeypatch.setattr(cpu, "MOST_SPREAD", math.inf)
    monkeypatch.setattr(cpu, "BUSY", 1.0)
    # So small that the reference is a candidate like others, on every machine a second one.
    monkeypatch.setattr(record, "HOPELESS", 1e9)
    monkeypatch.setattr(record, "REFERENCE", "")


# The distribution.


def test_a_seed_gives_the_same_problems_everywhere_and_forever() -> None:
    assert [draw(11, index) for index in range(50)] == DRAWS[:50] != [draw(12, index) for index in range(50)]
    assert draw(11, 7) == DRAWS[7]  # whatever else is drawn
    texts = "\n".join(f"{each} {each.layer} {each.mask_seed} {each.drawn}" for each in DRAWS[:100])
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "0e5c647fca3c9051"


def test_draws_are_in_range_and_uniform_where_they_shall_be() -> None:
    def even(values: list[Any], choices: int) -> None:
        counts = Counter(values)
        expected = len(values) / choices
        assert len(counts) == choices
        chi_square = sum((many - expected) ** 2 / expected for many in counts.values())
        # Mean choices - 1, standard deviation sqrt(2 (choices - 1)).
        assert chi_square < choices - 1 + 4 * math.sqrt(2 * (choices - 1)), counts

    even([each.direction for each in DRAWS], 3)
    even([each.pattern for each in DRAWS], 5)
    even([each.dtype for each in DRAWS], 3)
    even([each.layer + str((each.k, each.n)) for each in DRAWS if each.pattern != "demo"], len(problems.ZOO))
    even([each.layer for each in DRAWS if each.pattern == "demo"], len(scores.LAYERS))
    even([each.block for each in DRAWS if each.block[0] == each.block[1]], 4)
    rectangular = [each for each in DRAWS if each.block[0] != each.block[1]]
    assert 0.08 < len(rectangular) / len(DRAWS) < 0.12
    even([each.block for each in rectangular], 12)
    even([min(int(math.log2(each.m)), 15) for each in DRAWS], 16)  # octaves of 1 to 65536
    thirds = [int(3 * math.log(each.density / 0.03) / math.log(0.7 / 0.03)) for each in DRAWS]
    even([min(third, 2) for third in thirds], 3)
    assert all(
        1 <= each.m <= 65536 and each.m == each.drawn and 0.03 <= each.density <= 0.7 for each in DRAWS
    )
    assert {each.block[0] for each in DRAWS} == {16, 32, 64, 128}


def test_the_zoo_has_the_models_that_are_promised_and_ragged_layers() -> None:
    names = " ".join(layer.models for layer in problems.ZOO)
    for model in ("BERT", "ViT-B", "ViT-L", "GPT-2", "Llama 8B", "Llama 13B", "Mixtral", "T5", "Whisper"):
        assert model in names
    assert (3000, 5000) in {(layer.k, layer.n) for layer in problems.ZOO}
    assert len({(layer.k, layer.n) for layer in problems.ZOO}) == len(problems.ZOO)


def test_a_problem_of_a_demo_mask_takes_that_layers_shape() -> None:
    for each in DRAWS:
        if each.pattern == "demo":
            assert (each.k, each.n) == scores.LAYERS[each.layer]


def test_a_tenth_times_every_candidate_and_another_is_launched_eagerly() -> None:
    first = DRAWS[:300]
    assert sum(each.all_candidates for each in first) == sum(each.eager for each in first) == 30
    assert not any(each.all_candidates and each.eager for each in first)


def test_a_record_names_its_problem() -> None:
    halved = replace(DRAWS[3], m=5)
    assert problem_of(json.loads(json.dumps(halved.fields()))) == halved


# The masks.


def problem(pattern: str, density: float = 0.2, block: tuple[int, int] = (16, 16), **more: Any) -> Problem:
    k, n = more.pop("size", (1024, 2048))
    layer = more.pop("layer", "")
    return Problem("forward", "f32", 4, k, n, block, density, pattern, mask_seed=3, layer=layer, **more)


@pytest.mark.parametrize("pattern", ["balanced", "trained", "demo"])
def test_masks_hold_exactly_as_many_blocks_as_asked(weights: None, pattern: str) -> None:
    layer = "layers.1.up"
    for density, block in ((0.03, (16, 16)), (0.2, (32, 64)), (0.7, (128, 128))):
        k, n = scores.LAYERS[layer]
        made = problem(pattern, density, block, size=(k, n), layer=layer).case().make_pattern()
        grid = (n // block[0]) * (k // block[1])
        assert made.blocks == max(1, math.floor(density * grid + 0.5)) and made.block == block


def test_a_grid_too_small_for_the_density_keeps_one_block(weights: None) -> None:
    for pattern in masks.MASKS:
        layer = "layers.0.attention.out"
        made = (
            problem(pattern, 0.03, (128, 128), size=scores.LAYERS[layer], layer=layer).case().make_pattern()
        )
        assert made.blocks >= 1


def test_bernoulli_masks_vary_around_the_density() -> None:
    made = [problem("bernoulli", 0.2, index=index).case().make_pattern(index) for index in range(8)]
    cells = 64 * 128
    assert len({each.blocks for each in made}) > 1
    for each in made:
        assert abs(each.blocks - 0.2 * cells) < 5 * math.sqrt(0.2 * 0.8 * cells)


def test_trained_masks_are_skewed_in_rows_and_columns_and_the_others_are_not() -> None:
    def skew(pattern: str, side: int) -> float:
        counts = problem(pattern).case().make_pattern().mask.sum(side).double()
        return float(counts.std() / counts.mean())

    assert min(skew("trained", 0), skew("trained", 1)) > 0.5
    assert skew("balanced", 1) < 0.05 and max(skew("bernoulli", 0), skew("bernoulli", 1)) < 0.35
    again = [problem("trained").case().make_pattern(seed) for seed in (0, 0, 1)]
    assert again[0] == again[1] != again[2]


def test_demo_masks_keep_the_largest_magnitudes(weights: None) -> None:
    layer = "layers.0.down"
    made = problem("demo", 0.1, (32, 128), size=scores.LAYERS[layer], layer=layer).case().make_pattern()
    found = scores.demo_scores(layer, (32, 128))
    assert found.shape == made.mask.shape
    torch.testing.assert_close(found[0, 0], scores.magnitudes()[layer][:2, :8].sum())
    assert found[made.mask].min() > found[~made.mask].max()
    with pytest.raises(Error, match=r"a layer of the demo \(layers.0.attention.qkv"):
        scores.demo_scores("head", (16, 16))
    with pytest.raises(Error, match="a mask of balanced"):
        problem("striped").case().make_pattern()


@pytest.mark.parametrize("shape", [(160, 96, (16, 16)), (2048, 510, (32, 16)), (40, 4000, (16, 32))])
def test_the_nearest_band_is_found_without_trying_all(shape: tuple[int, int, tuple[int, int]]) -> None:
    rows, cols, block = shape
    every = [
        patterns.banded(rows, cols, block, width)
        for width in range(max(-(-rows // block[0]), -(-cols // block[1])))
    ]
    for density in (0.0, 0.03, 0.2, 0.5, 0.7, 1.0):
        nearest = min(abs(each.density - density) for each in every)
        assert abs(skewed.banded(rows, cols, block, density).density - density) == nearest


def test_the_demos_weights_are_trained_once_and_then_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "SETTINGS", Settings(steps=1, width=32, layers=1, context=16))
    monkeypatch.setattr(scores, "LAYERS", {"layers.0.up": (32, 128), "layers.0.down": (128, 32)})
    monkeypatch.setenv("SPARSELOOM_CACHE", str(tmp_path / "new"))
    fresh: Callable[[], Any] = scores.magnitudes.__wrapped__
    made = fresh()
    assert {name: tuple(each.shape) for name, each in made.items()} == {
        "layers.0.up": (8, 2),
        "layers.0.down": (2, 8),
    }
    (path,) = (tmp_path / "new").glob("demo-scores-*.safetensors")
    trainings: list[int] = []
    real = scores.train
    monkeypatch.setattr(scores, "train", lambda: trainings.append(1) or real())
    assert all(torch.equal(each, made[name]) for name, each in fresh().items()) and not trainings
    path.write_bytes(b"damaged")
    assert all(torch.equal(each, made[name]) for name, each in fresh().items()) and trainings == [1]
    fresh()
    assert trainings == [1]  # and was replaced
    monkeypatch.setenv("SPARSELOOM_CACHE", "off")
    fresh()
    assert trainings == [1, 1]


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"SPARSELOOM_CACHE": "/a", "HOME": "/h"}, "/a"),
        ({"SPARSELOOM_CACHE": "off", "HOME": "/h"}, None),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/sparseloom"),
        ({"XDG_CACHE_HOME": "x", "HOME": "/h"}, "/h/.cache/sparseloom"),
        ({}, None),
    ],
)
def test_the_cache_is_where_the_librarys_own_is(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str | None
) -> None:
    for name in ("SPARSELOOM_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert scores.cache_folder() == (Path(folder) if folder else None)


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
        assert problem_of(each) == replace(draw(5, each["index"]), m=each["m"]) and each["tile_excess"] <= 1
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
    from sparseloom.bench import measure

    real = measure.sparse_product

    def one_block_lost(*arguments: Any) -> torch.Tensor:
        y = real(*arguments).clone()
        y.view(-1)[: y.shape[-1]] = 100.0
        return y

    monkeypatch.setattr(measure, "sparse_product", one_block_lost)
    assert sweep("--seed", 5, "--problems", 1, "--device", "cpu", "--results", tmp_path) == 1
    assert written(tmp_path, "sweep-5")["records"][0]["tile_excess"] > 1


def test_a_plan_that_takes_the_second_best_is_exposed(
    tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(problems, "TOKENS", (8, 80))
    monkeypatch.setattr(problems, "EVERY", 1)  # every candidate of every problem

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
    monkeypatch.setattr(record, "choice", second_best)
    said = summary.about(run.Sweep(cpu.Cpu(), 4, None, tmp_path, "x").head)
    assert said.startswith("seed 4, kernels chosen by second_best; ")
    worse_behind, worse_chosen = figures()
    assert worse_behind > behind + 0.2 and worse_chosen < chosen - 0.4


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


# On the GPU, and on stand-ins for it.


@pytest.fixture
def stand_in(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that asks CUDA, replaced."""

    def plan_of(made: Operands) -> dict[str, Any]:
        return ops.plan(made.host_index, made.cell.direction, made.case.dtype, made.cell.m)

    monitor = SimpleNamespace(clock_mhz=lambda: 1980)
    described = {"name": "NVIDIA H200", "l2_bytes": 1000, "memory_bytes": 10}
    for module, name, value in (
        (gpu, "require_gpu", lambda suite: CPU),
        (gpu, "Monitor", lambda _: monitor),
        (gpu, "describe", lambda *_: described),
        (gpu, "plan_of", plan_of),
        (gpu, "alive", lambda: True),
        (gpu, "Replay", Stand),
        (gpu, "pause_after", lambda seconds: 0),
        (gpu_measure, "Replay", Stand),
        (gpu_measure, "alive", lambda: True),
        (gpu_measure, "pause_after", lambda seconds: 0),
        (torch.cuda, "synchronize", lambda: None),
        (torch.cuda, "memory_reserved", lambda: 5),
        (torch.cuda, "empty_cache", lambda: None),
    ):
        monkeypatch.setattr(module, name, value)


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
    made = run.Sweep(device, 4, None, tmp_path, "x")
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
        and 90 < float(options["--seconds"]) < 100
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

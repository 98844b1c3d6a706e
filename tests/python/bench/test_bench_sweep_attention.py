"""`bench sweep --family attention`: what it draws, and the way from a problem to its record."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sweep_stand import gpu_on_the_cpu, sweep, tiny_problems, written

import sparseloom
from sparseloom_bench.bench.sweep import attention, attention_operands, summary
from sparseloom_bench.bench.sweep.attention import AttentionProblem, draw
from sparseloom_bench.bench.sweep.attention_operands import AttentionBench, kept_map
from sparseloom_bench.bench.sweep.problems import problem_of

DRAWS = [draw(11, index) for index in range(2000)]
FAMILY = ("--family", "attention")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_problems(monkeypatch)
    heads = attention.Heads("tiny", 2, 1, 64), attention.Heads("ragged", 3, 3, 40)
    monkeypatch.setattr(attention, "ZOO", heads)
    monkeypatch.setattr(attention, "TOKENS", (64, 300))


def test_every_kind_of_problem_is_drawn() -> None:
    for name, known in (
        ("direction", attention.DIRECTIONS), ("pattern", attention.MASKS), ("block", attention.BLOCKS),
        ("causal", (False, True)), ("lengths", ("equal", "ragged")), ("dtype", ("f32", "bf16", "f16")),
    ):  # fmt: skip
        counts = Counter(getattr(each, name) for each in DRAWS)
        assert set(counts) == set(known) and min(counts.values()) > len(DRAWS) / 10, name
    assert 0.05 < sum(each.m != each.k for each in DRAWS) / len(DRAWS) < 0.2
    for each in DRAWS:
        assert 128 <= each.m <= each.k <= 32768 and 1 <= each.batch <= 4 and 0.03 <= each.density <= 0.7
        assert not (each.lengths == "ragged" and (each.m != each.k or each.batch == 1))
        assert each.on_gpu().n in (64, 128) and each.on_gpu().dtype != "f32"
        sizes = each.sizes()
        assert sizes[-1] == each and min(sizes[0].m, sizes[0].k) < 128


@pytest.mark.parametrize("pattern", attention.MASKS)
@pytest.mark.parametrize("causal", [False, True])
def test_a_map_has_the_density_and_each_querys_own_block(pattern: str, causal: bool) -> None:
    problem = AttentionProblem(
        "forward", "f32", 1000, 1500, 64, (64, 128), 0.3, pattern, causal=causal, heads=3
    )
    kept = kept_map(problem, torch.Generator().manual_seed(0))[0]
    assert kept.shape == (3, 16, 12)
    last = torch.arange(64, 1025, 64).clamp(max=1000) - 1 + 500
    assert kept[:, torch.arange(16), last // 128].all()
    allowed = torch.arange(12) <= (last // 128)[:, None] if causal else torch.ones(16, 12, dtype=torch.bool)
    assert not (kept & ~allowed).any()
    assert torch.equal(kept.sum(-1), (0.3 * allowed.sum(-1)).round().clamp(min=1).long().expand(3, -1))


def test_a_record_names_its_problem() -> None:
    halved = replace(DRAWS[5], m=128, k=128)
    record = json.loads(json.dumps(halved.fields()))
    assert problem_of(record, AttentionProblem) == halved
    said = summary.title(next(each for each in DRAWS if each.lengths == "ragged" and each.causal).fields())
    assert " heads on " in said and ", ragged, causal, blocks of" in said


def test_the_command_measures_goes_on_and_compares(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--seed", 5, "--device", "cpu", "--results", tmp_path]
    assert sweep(*options, *FAMILY, "--problems", 2) == 0
    assert sweep(*options, *FAMILY, "--problems", 21) == 0
    found = written(tmp_path, "sweep-attention-5")
    assert found["family"] == "attention" and len(found["records"]) == 21
    for each in found["records"]:
        assert problem_of(each, AttentionProblem) == draw(5, each["index"]) and each["tile_excess"] <= 1
        assert each["predicted_us"] > 0 and ("candidates" in each) is (each["index"] % 10 == 0)
    said = capsys.readouterr().out
    for words in (
        "2 of them measured before",
        "direction step",
        "order causal",
        "lengths ragged",
        "head size 64",
    ):
        assert words in said, words
    assert summary.about(found).startswith("seed 5, attention; ")
    (old,) = tmp_path.glob("*/sweep-attention-5.json")
    assert sweep("--compare", old, "--device", "cpu", "--results", tmp_path) == 0
    assert "21 problems measured in both" in capsys.readouterr().out
    assert sweep(*options, *FAMILY, "--kernel", "avx2_softmax", "--problems", 2) == 0
    assert sweep(*options, *FAMILY, "--kernel", "avx2_panel") == 2


@pytest.mark.parametrize("at", range(6))
def test_a_lost_block_is_beyond_the_tolerance(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Of a result and of each gradient, also where 16 bits hide most."""
    direction, dtype, index = (("forward", "f32", 0), ("forward", "bf16", 0), ("step", "f32", 0),
                               ("step", "bf16", 1), ("step", "f16", 2), ("step", "f32", 2))[at]  # fmt: skip
    what = direction, dtype, 500, 500, 64, (64, 64), 0.6, "random", False, index
    bench = AttentionBench(AttentionProblem(*what, mask_seed=1, heads=2, batch=2, causal=True))
    assert bench.check(bench.plan["kernel"]).ok
    true = sparseloom.attention

    def losing(q: Any, k: Any, v: Any, pattern: Any, **how: Any) -> Any:
        kept = pattern.map()
        kept[0, 0, 5, kept[0, 0, 5].nonzero()[0]] = False
        return true(q, k, v, sparseloom.AttentionPattern.from_map(kept, 64), **how)

    monkeypatch.setattr(attention_operands.sparseloom, "attention", losing)
    assert not bench.check("").ok


def test_the_way_on_a_gpu(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_on_the_cpu(monkeypatch)
    assert sweep("--seed", 5, "--device", "cuda", "--results", tmp_path, *FAMILY, "--problems", 12) == 0
    found = written(tmp_path, "sweep-attention-5")["records"]
    assert len(found) == 12 and not any("error" in each for each in found)
    assert all(each["n"] in (64, 128) and each["tile_excess"] <= 1 for each in found)
    assert any("eager" in each for each in found) and {each["direction"] for each in found} == {
        "forward",
        "step",
    }

"""The sweep's problems and masks: drawn by a seed, in range, and shaped as the model's layers and weights."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sweep_stand import DRAWS, made_up_weights

from sparseloom import Error
from sparseloom import pattern as patterns
from sparseloom_bench.bench import skewed
from sparseloom_bench.bench.sweep import layouts, masks, problems, scores, tiles
from sparseloom_bench.bench.sweep.problems import Problem, draw, problem_of
from sparseloom_bench.demo.train import Settings


@pytest.fixture(name="weights")
def _weights(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_weights(monkeypatch)


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


@pytest.mark.parametrize("layout", ["csr", "bitmap", "nmg"])
@pytest.mark.parametrize("direction", ["forward", "dx", "dw"])
def test_a_problem_of_a_layout_is_its_product(layout: str, direction: str) -> None:
    drawn = [layouts.draw(layout, 9, index) for index in range(100)]
    assert [problem_of(each.fields(), layouts.LayoutProblem) for each in drawn] == drawn
    problem = replace(next(each for each in drawn if each.direction == direction), m=5, k=96, n=72)
    bench = problem.bench()
    assert abs(bench.stored - problem.density) < 0.05 and bench.plan["kernel"]
    able = [each["kernel"] for each in bench.plan["candidates"] if not each["refusal"]]
    assert bench.plan["kernel"] in able and problem.all_candidates
    assert all(bench.check(kernel).excess <= 1 for kernel in able)


def test_tiles_hold_the_bytes_that_were_drawn_and_any_kernel_their_product() -> None:
    drawn = [tiles.draw(9, index) for index in range(300)]
    assert [problem_of(each.fields(), tiles.TilesProblem) for each in drawn] == drawn
    assert all(0 <= each.halves * 9 / 16 <= each.density <= 0.7 for each in drawn)
    problem = next(each for each in drawn if (each.k, each.n) == (768, 3072) and each.halves > 0.3)
    bench = replace(problem, m=5).bench()
    made = bench._of
    held = (made.values.nbytes + made.layout.positions.nbytes) / (2 * problem.k * problem.n)
    assert held == pytest.approx(problem.density, abs=0.03)
    assert all(bench.check(kernel).ok for kernel in ("reference", bench.plan["kernel"]))


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
    whole = path.read_bytes()
    for count, damaged in enumerate((b"damaged", whole[:-1] + bytes([whole[-1] ^ 64])), start=1):
        path.write_bytes(damaged)
        again = fresh()
        assert all(torch.equal(each, made[name]) for name, each in again.items()) and len(trainings) == count
        fresh()
        assert len(trainings) == count  # and was replaced
    monkeypatch.setenv("SPARSELOOM_CACHE", "off")
    fresh()
    assert len(trainings) == 3


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

"""`bench sweep --family bsr_conv`: what it draws, and the way from a problem to its record."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sweep_stand import gpu_on_the_cpu, sweep, tiny_problems, written

from sparseloom import Error, ops
from sparseloom.ops.conv import plans
from sparseloom.ops.conv.product import Window
from sparseloom_bench.bench.cells import DENSE_COPY
from sparseloom_bench.bench.sweep import conv, cpu, gpu, problems, record, summary
from sparseloom_bench.bench.sweep.conv import ConvProblem, draw
from sparseloom_bench.bench.sweep.conv_operands import LENT, ConvBench
from sparseloom_bench.bench.sweep.convolutions import CONVOLUTIONS, Convolution
from sparseloom_bench.bench.sweep.problems import problem_of

DRAWS = [draw(7, index) for index in range(1500)]
TINY = (
    Convolution("tiny", 48, 64, (5, 6), Window((3, 3), (1, 1), (1, 1), (1, 1))),
    Convolution("strided", 33, 50, (7, 7), Window((3, 3), (2, 2), (2, 2), (2, 2))),
    Convolution("sound", 64, 40, (19,), Window((5,), (2,), (2,), (1,))),
    Convolution("volume", 32, 32, (3, 4, 4), Window((1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1))),
)
FAMILY = ("--family", "bsr_conv")


@pytest.fixture(name="tiny")
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_problems(monkeypatch)
    monkeypatch.setattr(conv, "CONVOLUTIONS", TINY)
    monkeypatch.setattr(conv, "IMAGES", (1, 3))


# What is drawn.


def test_a_problem_is_the_same_however_many_are_drawn() -> None:
    assert [draw(7, index) for index in (1400, 3)] == [DRAWS[1400], DRAWS[3]]
    assert draw(8, 3) != DRAWS[3] and len(set(DRAWS)) == len(DRAWS)


def test_every_layer_mask_dtype_and_block_is_drawn() -> None:
    for values, all_of in (
        ([each.direction for each in DRAWS], {"forward", "dx", "dw"}),
        ([each.dtype for each in DRAWS], {"f32", "bf16", "f16"}),
        ([each.pattern for each in DRAWS], {"balanced", "bernoulli", "trained", "banded"}),
        ([each.block for each in DRAWS if each.block[0] == each.block[1]], set(problems.SQUARE)),
    ):
        assert set(values) == all_of
    shapes = {(each.k, each.n, each.extents, each.window) for each in DRAWS}
    assert shapes == {(each.k, each.n, each.extents, each.window) for each in CONVOLUTIONS}
    images = [each.m for each in DRAWS]
    assert min(images) == 1 and max(images) == 64 and sum(each <= 8 for each in images) > len(images) / 3
    oblong = sum(each.block[0] != each.block[1] for each in DRAWS)
    assert 0.07 < oblong / len(DRAWS) < 0.13
    for each in DRAWS:
        assert each.block[0] <= each.n and each.block[1] <= each.k and 0.03 <= each.density <= 0.7


def test_the_layers_cover_taps_strides_dilations_and_ragged_channels() -> None:
    assert {tap for each in CONVOLUTIONS for tap in each.window.kernel} >= {1, 2, 3, 5, 7}
    assert {step for each in CONVOLUTIONS for step in each.window.stride} == {1, 2}
    assert max(step for each in CONVOLUTIONS for step in each.window.dilation) > 2
    assert {len(each.extents) for each in CONVOLUTIONS} == {1, 2, 3}
    names = " ".join(each.models for each in CONVOLUTIONS)
    for model in ("ResNet-50", "PixelCNN++", "U-Net", "Whisper", "wav2vec", "ragged"):
        assert model in names
    assert len({each[1:] for each in CONVOLUTIONS}) == len(CONVOLUTIONS)
    assert any(each.k % 16 and each.n % 16 for each in CONVOLUTIONS)
    for each in CONVOLUTIONS:
        assert len(each.extents) == len(each.window.kernel)
        pixels = math.prod(each.window.out(each.extents))
        assert 2 * pixels * each.k * each.n * each.window.taps <= 11e9, each


def test_a_record_names_its_problem() -> None:
    halved = replace(DRAWS[5], m=1)
    record = json.loads(json.dumps(halved.fields()))
    assert problem_of(record, ConvProblem) == halved
    strided = next(each for each in DRAWS if each.layer == "DeepLab v3: 3 x 3 of dilation 12")
    said = summary.title(strided.fields())
    assert "of 33 x 33, 2048 to 256 channels, 3 x 3 taps, dilation 12, blocks of" in said


# What is measured.


def test_the_command_measures_goes_on_and_compares(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--seed", 5, "--device", "cpu", "--results", tmp_path]
    assert sweep(*options, *FAMILY, "--problems", 2) == 0
    assert sweep(*options, *FAMILY, "--problems", 16) == 0
    found = written(tmp_path, "sweep-bsr_conv-5")
    assert found["family"] == "bsr_conv" and found["demo_scores"] is None and len(found["records"]) == 16
    for each in found["records"]:
        again = problem_of(each, ConvProblem)
        assert again == draw(5, each["index"]) and each["tile_excess"] <= 1
        assert each["predicted_us"] > 0 and ("candidates" in each) is (each["index"] % 10 == 0)
    assert {candidate["kernel"] for candidate in found["records"][0]["candidates"]} >= {LENT}
    said = capsys.readouterr().out
    for words in ("2 of them measured before", "images 1 to 8", "taps 3x3", "stride 2", "mask ", "block "):
        assert words in said, words
    assert re.search("dense[:,] predicted", said) and "tokens" not in said
    assert summary.about(found).startswith("seed 5, convolutions; ")
    (old,) = tmp_path.glob("*/sweep-bsr_conv-5.json")
    assert sweep("--compare", old, "--device", "cpu", "--results", tmp_path) == 0
    assert "16 problems measured in both" in capsys.readouterr().out


@pytest.mark.parametrize("layer", TINY, ids=lambda layer: layer.models)
def test_torchs_convolution_is_what_the_layer_lends(tiny: None, layer: Convolution) -> None:
    for direction in ("forward", "dx", "dw"):
        how: Any = {"mask_seed": 3, "extents": layer.extents, "window": layer.window}
        problem = ConvProblem(direction, "f32", 2, layer.k, layer.n, (16, 32), 0.4, "bernoulli", **how)
        bench = ConvBench(problem)
        for kernel in {bench.plan["kernel"], LENT}:
            assert bench.check(kernel).ok
        assert bench.dense().numel() == (
            layer.n * layer.k * layer.window.taps if direction == "dw" else bench.sparse(LENT).numel()
        )


def test_one_kernel_gets_every_candidate(tiny: None, tmp_path: Path) -> None:
    candidates = [each["kernel"] for each in draw(5, 0).plan("cpu")["candidates"] if not each["refusal"]]
    kernel = next(each for each in candidates if each != LENT)
    command = ["--seed", 5, "--problems", 2, "--kernel", kernel, "--device", "cpu", "--results", tmp_path]
    assert sweep(*command, *FAMILY) == 0
    found = written(tmp_path, f"sweep-bsr_conv-5-{kernel}")["records"]
    for each in found:
        timed = {candidate["kernel"] for candidate in each["candidates"]}
        assert {kernel, LENT} <= timed <= {*candidates, LENT}  # a CPU may run the rows of several sets


def test_where_no_row_runs_torchs_convolution_is_timed_without_a_prediction(
    tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: Any) -> Any:
        raise Error("bsr_conv", "a row", "none", "pass other blocks")

    monkeypatch.setattr(plans, "plan", none)
    found = cpu.Cpu().measure(draw(5, 0))
    assert found["kernel"] == LENT and found["predicted_us"] == 0 and found["tile_excess"] <= 1
    assert "predicted over measured time: none; 1 without a prediction" in summary.sentences([found])


def test_images_and_then_extents_are_halved_until_dense_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    unet = next(each for each in DRAWS if each.extents == (256, 256))
    drawn = replace(unet, m=24, drawn=24)
    for us_per_pixel, images, side in ((0.01, 24, 256), (0.1, 6, 256), (1.0, 1, 128), (1e6, 1, 8)):
        monkeypatch.setattr(
            cpu, "dense_seconds", lambda of, us=us_per_pixel: 1e-6 * us * of.m * math.prod(of.extents)
        )
        assert cpu.Cpu().fitted(drawn) == replace(drawn, m=images, extents=(side, side))
    for each in DRAWS[:200]:
        for size in each.sizes():
            assert isinstance(size, ConvProblem) and min(size.window.out(size.extents)) >= 1


def test_what_cannot_be_done_is_one_line(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--seed", 1, "--problems", 1, "--device", "cpu", "--results", tmp_path]
    assert sweep(*options, *FAMILY, "--kernel", "nothing") == 2
    error = capsys.readouterr().err
    assert "got 'nothing'" in error and error.count("\n") == 1


def test_forward_may_keep_a_dense_copy(
    tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = record.with_copy
    monkeypatch.setattr(cpu, "with_copy", lambda plan: real(plan | {"dense_copy_us": 1e-3}))
    options = ["--seed", 5, "--problems", 6, "--device", "cpu", "--dense-copy", "--results", tmp_path]
    assert sweep(*options, *FAMILY) == 0
    found = written(tmp_path, "sweep-bsr_conv-5-dense-copy")
    assert found["dense_copy"] is True
    kernels = {(each["direction"], each["kernel"] == DENSE_COPY) for each in found["records"]}
    assert kernels == {("forward", True), ("dx", False)}
    assert all(each["tile_excess"] <= 1 for each in found["records"])
    assert "dense copies allowed" in summary.about(found)


def test_a_wrong_result_fails_the_command(
    tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = ops.call

    def one_lost(op: str, *arguments: Any) -> Any:
        result = real(op, *arguments)
        if op in ("bsr_conv", "bsr_conv_dx", "bsr_conv_dw"):
            result.view(-1)[0] = 1e4
        return result

    monkeypatch.setattr(ops, "call", one_lost)
    options = ["--seed", 5, "--problems", 1, "--device", "cpu", "--results", tmp_path]
    assert sweep(*options, *FAMILY) == 1


# On a GPU, and on stand-ins for it.


def test_the_gpus_way_from_problem_to_record(
    tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu_on_the_cpu(monkeypatch)
    assert sweep("--seed", 5, *FAMILY, "--problems", 8, "--device", "cuda", "--results", tmp_path) == 0
    found = written(tmp_path, "sweep-bsr_conv-5")["records"]
    assert not [each["error"] for each in found if "error" in each]
    assert [problem_of(each, ConvProblem) for each in found] == [draw(5, index) for index in range(8)]
    assert all(each["tile_excess"] <= 1 and each["same_bits"] for each in found)
    assert found[5]["eager"]["dense_us"] > 0 and len(found[0]["candidates"]) > 1
    monkeypatch.setattr(gpu, "with_copy", lambda plan: record.with_copy(plan | {"dense_copy_us": 1e-3}))
    more = ["--problems", 3, "--device", "cuda", "--dense-copy", "--results", tmp_path]
    assert sweep("--seed", 5, *FAMILY, *more) == 0
    found = written(tmp_path, "sweep-bsr_conv-5-dense-copy")["records"]
    assert [each["kernel"] == DENSE_COPY for each in found] == [False, True, True]
    assert all(each["tile_excess"] <= 1 and each["same_bits"] for each in found)


@pytest.mark.gpu
def test_the_sweep_on_a_gpu(tmp_path: Path) -> None:
    assert sweep("--seed", 5, *FAMILY, "--problems", 11, "--device", "cuda", "--results", tmp_path) == 0
    found = written(tmp_path, "sweep-bsr_conv-5")["records"]
    assert not [each["error"] for each in found if "error" in each]
    assert all(each["tile_excess"] <= 1 for each in found) and found[5]["eager"]["host_us"] > 0

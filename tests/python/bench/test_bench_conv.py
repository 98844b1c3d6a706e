"""bench conv at its smoke size: what its record says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sparseloom import cli
from sparseloom_bench.bench import conv


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", "conv", *arguments])
    return int(stopped.value.code or 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_record_has_every_density_and_direction(tmp_path: Path, dtype: str) -> None:
    assert run("--smoke", "--seconds", "0", "--dtype", dtype, "--results", str(tmp_path)) == 0
    (path,) = tmp_path.glob("*/bsr_conv*.json")
    assert path.stem == ("bsr_conv" if dtype == "float32" else f"bsr_conv_{dtype}")
    record = json.loads(path.read_text())
    assert record["suite"] == "bsr_conv"
    assert [each["density"] for each in record["records"]] == list(conv.DENSITIES)
    for each in record["records"]:
        for direction in conv.DIRECTIONS:
            assert each["kernels"][direction].endswith("_conv")
            assert set(each["us"][direction]) == {"ours", "plan", "torch"}
            low, median, high = each["ratio"][direction]
            assert 0 < low <= median <= high
            assert conv.speedup(each, direction) > 0
            assert each["workspace_bytes"][direction] > 0
        assert (
            each["weight_bytes"]["ours"] < 0.6 * each["weight_bytes"]["torch"]
        )  # two of four blocks at least
        assert each["peak_bytes"] == {}


@pytest.mark.gpu
def test_a_gpu_is_timed_beside_cudnn(tmp_path: Path) -> None:
    how = "--device", "cuda", "--smoke", "--seconds", "0"
    assert run(*how, "--results", str(tmp_path)) == 0
    (path,) = tmp_path.glob("*/bsr_conv_bfloat16.json")
    records = json.loads(path.read_text())["records"]
    assert [each["block"] for each in records[::3]] == list(conv.GPU_BLOCKS)
    for each in records:
        for direction in conv.DIRECTIONS:
            assert set(each["us"][direction]["torch"]) == {"channels last"}
            assert each["kernels"][direction] in each["us"][direction]["each"]
            held, pixels = (
                each["peak_bytes"][direction],
                2 * each["images"] * each["channels"] * each["extent"] ** 2,
            )
            assert set(held) == {"ours", "plan", "torch"}
            assert direction == "dw" or min(held.values()) >= pixels  # the result of 16 bits


def test_a_wrong_product_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = conv.call
    monkeypatch.setattr(
        conv,
        "call",
        lambda op, *how: torch.zeros_like(true(op, *how)) if op == "bsr_conv_dw" else true(op, *how),
    )
    assert run("--smoke", "--seconds", "0", "--results", str(tmp_path)) == 1


def test_other_devices_are_refused() -> None:
    assert run("--smoke", "--device", "tpu") == 1


def test_other_dtypes_are_refused() -> None:
    assert run("--smoke", "--dtype", "float64") == 1
    assert run("--smoke", "--dtype", "float32", "--device", "cuda") == 1  # no GPU is asked for

"""The demo's GPU preset: its wiring with a tiny model on the CPU (autocast, compile, the results file), and
what it refuses."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_demo_job import interrupt_at

import sparseloom
from sparseloom import cli
from sparseloom.nn import BlockSparseLinear
from sparseloom_bench.demo import presets, train
from sparseloom_bench.demo.model import ByteTransformer

TINY = {"steps": 6, "width": 64, "layers": 1, "context": 32, "batch": 2, "block": 16, "validation_bytes": 512}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The preset h200 as it is, but for the device and the sizes."""
    preset = replace(presets.PRESETS["h200"], device="cpu", seconds=0.01, sizes=TINY)
    monkeypatch.setitem(presets.PRESETS, "h200", preset)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = random.Random(0)
    lines = (
        " ".join(words.choices(["thread", "loom", "weave", "warp", "weft"], k=6)) + ".\n" for _ in range(900)
    )
    path = tmp_path_factory.mktemp("text") / "made.txt"
    path.write_text("".join(lines))
    return path


def demo(*arguments: object) -> int:
    try:
        return cli.main(["demo", *(str(argument) for argument in arguments)])
    except SystemExit as end:
        return int(end.code or 0)


# torch's own, at inductor's import
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_trains_compiled_under_autocast_and_leaves_a_results_file(
    tiny: None,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    eager: list[bool] = []
    real = ByteTransformer.extend

    def watched(self: ByteTransformer, *arguments: object) -> object:
        if not torch.compiler.is_compiling():
            eager.append(torch.is_grad_enabled())
        return real(self, *arguments)  # type: ignore[arg-type]

    real_report = sparseloom.report

    def unwatched(*arguments: Any, **options: Any) -> Any:  # it times the eager model, backward too
        before = len(eager)
        made = real_report(*arguments, **options)
        del eager[before:]
        return made

    monkeypatch.setattr(ByteTransformer, "extend", watched)
    monkeypatch.setattr(sparseloom, "report", unwatched)
    out, results = tmp_path / "out", tmp_path / "results"
    assert demo("--preset", "h200", "--text", text, "--out", out, "--results", results, "--threads", 1) == 0
    # training went through the compiler, scores and bytes did not
    assert True not in eager and False in eager
    (path,) = results.glob("*/demo_h200.json")
    assert str(path.resolve()) in capsys.readouterr().out.replace("\n", "")
    run = json.loads(path.read_text())
    assert {
        "device",
        "commit",
        "date",
        "versions",
        "mode",
        "preset",
        "gpu",
        "text",
        "settings",
        "seconds",
        "table",
    } <= run.keys()
    assert run["preset"] == run["settings"]["preset"] == "h200" and run["settings"]["width"] == 64
    assert [len(row) for row in run["table"]] == [4] * 7 and run["table"][0][0] == "held-out bits per byte"
    models = [record for record in run["records"] if record["op"] == "demo"]
    assert [record["model"] for record in models] == ["dense", "sparse"]
    assert all(
        record[key] > 0 for record in models for key in ("held_out", "training", "scoring", "generation")
    )
    layers = [record for record in run["records"] if record["op"] == "demo_layer"]
    assert [record["layer"] for record in layers] == [
        f"layers.0.{n}" for n in ("attention.qkv", "attention.out", "up", "down")
    ]
    for record in layers:
        assert (
            set(record["kernels"]) == {"forward", "dx", "dw"}
            and record["dtype"] == "bfloat16"
            and record["tokens"] == 64
        )
        assert (
            set(record["us"]) == set(record["dense_us"]) == set(record["speedups"]) == {"forward", "backward"}
        )
    assert "summary" not in run  # which marks the quality experiment
    losses = json.loads((out / "results.json").read_text())["models"][1]["losses"]
    assert len(losses) == TINY["steps"] and losses[-1] < losses[0]


def test_parameters_stay_fp32_and_products_are_bf16(tiny: None) -> None:
    settings = train.Settings(**TINY, threads=1, preset="h200")
    model = train.build_model("sparse", settings)
    assert {p.dtype for p in model.parameters()} == {torch.float32} and settings.dtype == torch.bfloat16
    inference = train.inference_model(model, settings)
    assert {p.dtype for p in inference.parameters()} == {torch.bfloat16} and inference is not model
    plain = train.Settings(**TINY, threads=1)
    assert train.inference_model(model, plain) is model and plain.dtype == torch.float32


def test_the_preset_is_a_hundred_million_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = presets.PRESETS["h200"]
    assert preset.device == "cuda" and preset.amp and preset.compiled
    monkeypatch.setitem(presets.PRESETS, "h200", replace(preset, device="cpu"))
    settings = train.Settings(**presets.H200, preset="h200")
    matrices = {
        kind: sum(p.numel() for p in train.build_model(kind, settings).layers.parameters() if p.dim() > 1)
        for kind in train.KINDS
    }
    assert matrices == {"dense": 100_663_296, "sparse": 25_165_824}
    assert settings.tokens_per_step == 16384
    for size in (settings.validation_bytes, settings.held_out_bytes):
        assert size % (train.SCORE_BATCH * settings.context) == 0  # whole batches


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    lines = capsys.readouterr().err.splitlines()
    assert (
        len(lines) == 1
        and lines[0].startswith("sparseloom demo: ")
        and all(word in lines[0] for word in words)
    ), lines


def test_without_a_gpu_it_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert demo("--preset", "h200", "--out", tmp_path / "out") == 1
    refused(capsys, "[demo] expected a CUDA GPU for --preset h200", "leave --preset out to train on the CPU")
    assert not (tmp_path / "out").exists()


def test_an_old_gpu_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Tesla V100")
    assert demo("--preset", "h200", "--out", tmp_path / "out") == 1
    refused(capsys, "compute capability 8.0 or newer", "Tesla V100, 7.0")


def test_wrong_presets_and_combinations(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo("--preset", "h300", "--out", tmp_path / "out") == 2
    refused(capsys, "--preset must be one of cpu, h200", "h300")
    assert demo("--preset", "h200", "--seeds", 2, "--out", tmp_path / "out") == 2
    refused(capsys, "--seeds", "--preset h200")


def test_resuming_under_another_preset_is_refused(
    tiny: None,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = [
        "--steps",
        6,
        "--width",
        64,
        "--layers",
        1,
        "--block",
        16,
        "--threads",
        1,
        "--text",
        text,
        "--out",
        tmp_path,
    ]
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2, signal.SIGINT)
        assert demo("--quick", *sizes) == 130
    capsys.readouterr()
    assert demo("--quick", "--preset", "h200", *sizes, "--resume") == 2
    refused(capsys, "--resume", "here it is")


def test_the_layers_are_strict_wherever_a_sparse_kernel_runs(tiny: None) -> None:
    model = train.build_model("sparse", train.Settings(**TINY, threads=1, preset="h200"))
    layers = [layer for layer in model.modules() if isinstance(layer, BlockSparseLinear)]
    assert len(layers) == 4
    for layer in layers:
        able = {
            entry["kernel"]
            for entry in layer.plan(64, dtype=torch.bfloat16)["candidates"]
            if not entry["refusal"]
        }
        assert layer.strict == bool(able - {"dense", "reference"})

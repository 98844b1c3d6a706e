"""What the tests of `sparseloom bench sweep` share: problems drawn once, the command, small stand-ins."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench_stand import CPU, Stand

from sparseloom import cli, ops
from sparseloom_bench.bench.gpu import measure as gpu_measure
from sparseloom_bench.bench.sweep import cpu, gpu, problems, record, scores
from sparseloom_bench.bench.sweep.attention_operands import AttentionOperands
from sparseloom_bench.bench.sweep.conv_operands import ConvOperands
from sparseloom_bench.bench.sweep.problems import draw

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


def made_up_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Magnitudes of the demo's weights without its training."""
    generator = torch.Generator().manual_seed(0)
    made = {
        name: torch.rand(n // 16, k // 16, generator=generator) + 0.1
        for name, (k, n) in scores.LAYERS.items()
    }
    monkeypatch.setattr(scores, "magnitudes", lambda: made)


def tiny_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers, few tokens, square blocks that leave a grid, little time for each; made-up weights. Every
    problem keeps the tokens that it was drawn with."""
    made_up_weights(monkeypatch)
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
    # None is too long for the CPU: beside busy processes some of these were, and got fewer tokens.
    real = cpu.dense_seconds
    monkeypatch.setattr(cpu, "dense_seconds", lambda of: min(real(of), 1e-3))
    # So small that the reference is a candidate like others, on every machine a second one.
    monkeypatch.setattr(record, "HOPELESS", 1e9)
    monkeypatch.setattr(record, "REFERENCE", "")


def gpu_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that the sweep on a GPU asks CUDA, replaced."""

    def plan_of(made: Any) -> Any:
        if isinstance(made, (ConvOperands, AttentionOperands)):
            return made.plan()
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

"""Measures what the demo's table says: sizes and speeds of the two trained models, timed in turn."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from sparseloom.report import medians

from .data import Text, even_offsets, windows
from .generate import generate
from .model import ByteTransformer
from .presets import finished
from .train import SCORE_BATCH, Settings, Trainer, score

GENERATED = 32  # bytes per timed generation


@dataclass(frozen=True)
class Outcome:
    """One column of the table. Speeds are in bytes (= tokens) per second."""

    kind: str
    held_out: float  # bits per byte
    parameters: int
    layer_parameters: int  # those of the matrices that are sparse in the sparse model
    file_bytes: int
    training: float
    scoring: float
    generation: float
    losses: list[float]
    validation: list[tuple[int, float]]

    @property
    def label(self) -> str:
        return {"dense": "dense", "sparse": "block-sparse"}[self.kind]


def measure(
    trainers: list[Trainer],
    models: list[ByteTransformer],
    files: list[Path],
    text: Text,
    settings: Settings,
    seconds: float,
) -> list[Outcome]:
    """Scores the held-out text with the trained models and times `models`, made for inference, in turn for
    about `seconds` per kind of work."""
    context = settings.context
    held_out = [
        score(trainer.model, text.held_out, settings.held_out_bytes, settings.amp) for trainer in trainers
    ]
    inputs, _ = windows(text.held_out, even_offsets(text.held_out, SCORE_BATCH, context), context)
    inputs = inputs.to(settings.device)
    prompt = bytes(text.held_out[: max(1, context // 2)].tolist())
    calls = [
        torch.compile(model, fullgraph=True, dynamic=False) if settings.compiled else model
        for model in models
    ]
    scorers = [finished(partial(call, inputs), settings.device) for call in calls]
    with torch.no_grad():
        scoring = medians(scorers, seconds)
        generation = medians([partial(generate, model, prompt, GENERATED) for model in models], seconds)
    outcomes = []
    for i, trainer in enumerate(trainers):
        # The first steps are slower, because they touch memory for the first time.
        step = statistics.median(trainer.seconds[min(5, len(trainer.seconds) - 1) :])
        outcomes.append(
            Outcome(
                kind=trainer.kind,
                held_out=held_out[i],
                parameters=_count(trainer.model),
                # without the norms
                layer_parameters=_count(trainer.model.layers) - 2 * settings.layers * settings.width,
                file_bytes=files[i].stat().st_size,
                training=settings.tokens_per_step / step,
                scoring=1e6 * inputs.numel() / scoring[i],
                generation=1e6 * GENERATED / generation[i],
                losses=trainer.losses,
                validation=trainer.validation,
            )
        )
    return outcomes


def rows(outcomes: list[Outcome]) -> list[tuple[str, str, str, str]]:
    """Returns (figure, dense, sparse, sparse against dense) as text."""
    dense, sparse = outcomes

    def row(name: str, attribute: str, form: str, faster: bool = False) -> tuple[str, str, str, str]:
        a, b = getattr(dense, attribute), getattr(sparse, attribute)
        ratio = f"{b / a:.2f}x" if faster else f"{100 * (b / a - 1):+.1f} %"
        return name, format(a, form), format(b, form), ratio

    return [
        row("held-out bits per byte", "held_out", ".4f"),
        row("parameters", "parameters", ",d"),
        row("  of them in the layers' matrices", "layer_parameters", ",d"),
        row("bytes on disk", "file_bytes", ",d"),
        row("training, tokens/s", "training", ",.0f", True),
        row("inference, scoring in batches, tokens/s", "scoring", ",.0f", True),
        row("inference, generating one by one, tokens/s", "generation", ",.0f", True),
    ]


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())

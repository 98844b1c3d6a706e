"""Writes the results file of a run on a GPU, <folder>/<gpu>/demo_<preset>.json, from which the README's table
is made."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparseloom.report import LayerReport, Report

from ..bench.gpu.device import slug
from ..bench.results import header, write_results
from .data import Text
from .measure import Outcome, rows
from .presets import device_name
from .train import Settings

#: The figures of an outcome that a README shows; the curves stay in the run's own folder.
FIGURES = ("held_out", "parameters", "layer_parameters", "file_bytes", "training", "scoring", "generation")


def write_record(
    folder: Path, settings: Settings, text: Text, outcomes: list[Outcome], layers: Report, seconds: float
) -> Path:
    """Writes the results file of a run and returns its path.

    It has the header of all results and: `preset`, `gpu`, `text`, `settings`, `seconds` (of the whole job),
    `table` (rows of figure, dense, sparse, sparse against dense, as shown); records of op "demo", one for
    each model, and "demo_layer", one for each sparse layer with its kernels and times. Raises
    sparseloom.Error when it cannot be written.
    """
    gpu = device_name(settings.device)
    head = header("training", None if gpu is None else slug(gpu)) | {
        "preset": settings.preset,
        "gpu": gpu,
        "text": {"name": text.name, "sha256": text.sha256, "files": text.files},
        "settings": asdict(settings),
        "seconds": round(seconds, 1),
        "table": [list(row) for row in rows(outcomes)],
    }
    records = [
        {"op": "demo", "model": o.kind} | {name: getattr(o, name) for name in FIGURES} for o in outcomes
    ]
    records += [_layer_record(layer) for layer in layers.layers if layer.kernels]
    return write_results(folder, f"demo_{settings.preset}", head, records)


def _layer_record(layer: LayerReport) -> dict[str, Any]:
    return {
        "op": "demo_layer",
        "layer": layer.name,
        "shape": list(layer.shape),
        "block": layer.block,
        "density": layer.density,
        "tokens": layer.tokens,
        "dtype": layer.dtype,
        "kernels": layer.kernels,
        "us": layer.times,
        "dense_us": layer.dense_times,
        "speedups": layer.speedups,
    }

"""Runs the suite as a whole: every model in order, its results file, its table, and the checks of what must
hold."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

import torch
from rich.table import Table

from ..gpu.device import Monitor, describe, require_gpu, slug
from ..results import header
from .train import Record, measure
from .ways import in_each_way
from .zoo import Spec

SUITE = "models"


def run(specs: list[Spec], seconds: float, ways: Sequence[str] = ()) -> tuple[dict[str, Any], list[Record]]:
    """Returns the head and the records of a results file: of the whole course of each model, or of it in
    these ways alone.

    A model that fails gets a record with its error, and the others still run.
    """
    device = require_gpu(SUITE)
    for spec in specs:
        spec.require()
    gpu = describe(device, Monitor(device))
    head = header("training", slug(gpu["name"])) | {"suite": SUITE, "gpu": gpu}
    start = time.perf_counter()

    def say(words: str) -> None:
        print(f"[{time.perf_counter() - start:4.0f} s] {words}", flush=True)

    records = []
    for spec in specs:
        try:
            if ways:
                records.append(in_each_way(spec, device, ways, say))
            else:
                records.append(measure(spec, device, seconds, say))
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            words = (str(error).strip().splitlines() or [""])[0][:300]
            op = "ways" if ways else "model"
            records.append({"op": op, "model": spec.name, "error": f"{type(error).__name__}: {words}"})
        torch._dynamo.reset()  # torch.compile's graphs hold the model
        torch.cuda.empty_cache()
    return head | {"seconds": round(time.perf_counter() - start, 1)}, records


def failed(records: list[Record]) -> list[str]:
    """Returns a sentence for everything that does not hold: an error, a loss that did not fall, parts without
    CUDA graphs, or a reloaded model that computes something else."""
    sentences = []
    for record in records:
        name = record["model"]
        if "error" in record:
            sentences.append(f"{name}: {record['error']}")
            continue
        if record.get("op") == "ways":
            failed = [
                f"{name}, {key}: {each['error']}" for key, each in record["ways"].items() if "error" in each
            ]
            sentences += failed
            continue
        first, *_, last = record["losses"]
        if not last < first:
            sentences.append(f"{name}: the loss went from {first} to {last} on the batch it is trained on")
        if skips := record["graphed"]["skips"]:
            sentences.append(
                f"{name}: {skips} compiled parts ran without a CUDA graph where graphs were asked for"
            )
        if not record["reloaded_equal"]:
            sentences.append(f"{name}: the reloaded model computes something else")
        if not record["fresh_differs"]:
            sentences.append(
                f"{name}: two models of different seeds compute the same, so that the reload shows nothing"
            )
    return sentences


def table(records: list[Record]) -> Table:
    """Returns the table to print, with one row per model, or per call and way."""
    if records and records[0]["op"] == "ways":
        return _of_ways(records)
    out = Table(
        "model",
        "parameters",
        "loss",
        "steps/s",
        "dense steps/s",
        "speedup",
        "by CUDA graphs",
        "training GB",
        "dense GB",
        "reloaded",
    )
    for record in records:
        if "error" in record:
            out.add_row(record["model"], record["error"])
            continue
        before, after = record["parameters"]
        rates, memory = record["steps_per_s"], record["training_bytes"]
        out.add_row(
            record["model"],
            f"{before / 1e6:.1f}M -> {after / 1e6:.1f}M",
            f"{record['losses'][0]:.3f} -> {record['losses'][-1]:.3f}",
            f"{rates['sparse']['median']:.2f}",
            f"{rates['dense']['median']:.2f}",
            f"{record['speedup']:.2f}",
            f"{record['graphed']['speedup']:.2f}",
            *("-" if memory[kind] is None else f"{memory[kind] / 1e9:.2f}" for kind in ("sparse", "dense")),
            "equal" if record["reloaded_equal"] else "NOT EQUAL",
        )
    return out


def _of_ways(records: list[Record]) -> Table:
    out = Table("model", "call", "ms", "dense ms", "speedup")
    for record in records:
        if "error" in record:
            out.add_row(record["model"], record["error"])
            continue
        for key, each in record["ways"].items():
            if "error" in each:
                out.add_row(record["model"], key, each["error"])
                continue
            sparse, dense = (f"{each[kind]['median']:.3f}" for kind in ("sparse", "dense"))
            out.add_row(record["model"], key, sparse, dense, f"{each['speedup']:.2f}")
    return out

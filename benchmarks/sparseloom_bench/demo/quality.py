"""Runs the experiment behind the demo's claim: some seeds, the same three learning rates for each model,
medians."""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..bench.results import header, write_results
from .data import Text, batch_offsets, load_text, windows
from .interrupt import Interrupts
from .job import Say, output_folder, progress
from .train import KINDS, LEARNING_RATES, Settings, Trainer, score

Record = dict[str, Any]
VALIDATION_BYTES = 64 << 10  # rates are picked on more bytes than draw the curves


def run(
    settings: Settings, source: Path | None, folder: Path, seeds: int, say: Say, jobs: int = 1
) -> tuple[Path, list[Record]]:
    """Trains 2 models x 3 rates x `seeds` seeds and writes folder/<device>/demo_quality.json.

    Returns the file's path and the summary. `jobs` trainings run at once, in processes of their own with
    settings.threads threads each. The scores are the same then; the speeds in the records are not, since the
    trainings share memory and clocks.

    A rate is chosen by the median over seeds of the validation score; what is reported is the median of the
    held-out scores at that rate, which had no part in the choice.
    """
    text = load_text(source, settings.context + 1)
    say(str(text))
    torch.set_num_threads(settings.threads)
    trainings = [
        Settings(**(asdict(settings) | {"seed": seed, "lr": dict.fromkeys(KINDS, lr)}))
        for seed in range(settings.seed, settings.seed + seeds)
        for lr in LEARNING_RATES
    ]
    records: list[Record] = []
    with output_folder(folder, 1 << 20, False), Interrupts():
        pairs = (
            map(partial(_pair, text=text), trainings) if jobs == 1 else _in_processes(trainings, source, jobs)
        )
        for pair in pairs:
            records += pair
            for record in pair:
                held_out, seconds = record["held_out_bits_per_byte"], record["seconds"]
                say(
                    f"{record['model']:>6}  seed {record['seed']}  lr "
                    f"{record['lr']:g}  held-out {held_out:.4f}  {seconds:.0f} s"
                )
        summary = summarise(records)
        about = {"name": text.name, "sha256": text.sha256, "files": text.files}
        head = header("training") | {
            "text": about,
            "settings": asdict(settings),
            "jobs": jobs,
            "summary": summary,
        }
        path = write_results(folder, "demo_quality", head, records)
    return path, summary


def summarise(records: list[Record]) -> list[Record]:
    """Returns for each model its best rate and the median held-out score there, and the sparse one's excess
    over dense in percent."""
    summary: list[Record] = []
    for kind in KINDS:
        mine = [record for record in records if record["model"] == kind]

        def median(lr: float, key: str, mine: list[Record] = mine) -> float:
            return statistics.median(record[key] for record in mine if record["lr"] == lr)

        rates = sorted({record["lr"] for record in mine})
        best = min(rates, key=lambda lr: median(lr, "validation_bits_per_byte"))
        held_out = median(best, "held_out_bits_per_byte")
        summary.append(
            {"model": kind, "lr": best, "seeds": len(mine) // len(rates), "held_out_bits_per_byte": held_out}
        )
    dense, sparse = (entry["held_out_bits_per_byte"] for entry in summary)
    summary[1]["excess_percent"] = 100 * (sparse / dense - 1)
    return summary


def _in_processes(trainings: list[Settings], source: Path | None, jobs: int) -> Iterator[list[Record]]:
    # Processes are spawned: a forked child would inherit torch's thread pool without its threads.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        try:
            yield from pool.map(partial(_pair_alone, source=source), trainings)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _pair_alone(settings: Settings, source: Path | None) -> list[Record]:
    torch.set_num_threads(settings.threads)
    return _pair(settings, load_text(source, settings.context + 1))


def _pair(settings: Settings, text: Text) -> list[Record]:
    """Trains both models at one rate and seed, in turn on the same batches."""
    trainers = [Trainer(kind, settings) for kind in KINDS]
    offsets = batch_offsets(text.train, settings.steps, settings.batch, settings.context, settings.seed)
    with progress(settings.steps, 0) as advance:
        for step in range(settings.steps):
            inputs, targets = windows(text.train, offsets[step], settings.context)
            for trainer in trainers:
                trainer.step(inputs, targets)
            advance(trainers)
    return [
        {
            "op": "demo_quality",
            "model": trainer.kind,
            "seed": settings.seed,
            "lr": settings.lr[trainer.kind],
            "density": settings.density if trainer.kind == "sparse" else 1.0,
            "block": [settings.block, settings.block] if trainer.kind == "sparse" else None,
            "steps": settings.steps,
            "validation_bits_per_byte": score(trainer.model, text.validation, VALIDATION_BYTES),
            "held_out_bits_per_byte": score(trainer.model, text.held_out, settings.held_out_bytes),
            "tokens_per_second": settings.tokens_per_step / statistics.median(trainer.seconds),
            "seconds": sum(trainer.seconds),
        }
        for trainer in trainers
    ]

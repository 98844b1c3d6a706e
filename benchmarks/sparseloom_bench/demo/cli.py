"""Provides `sparseloom demo`: its options, the table on the terminal, and every error as one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from sparseloom.errors import Error

from ..bench.results import default_folder
from . import job, quality
from .data import DemoError
from .interrupt import Interrupted
from .measure import Outcome, rows
from .presets import PRESETS, require_device
from .train import Settings

#: Sizes of a run that takes seconds, for a first look and for CI: everything runs, but no model is fully
#: trained.
QUICK: dict[str, Any] = {
    "steps": 24,
    "width": 128,
    "layers": 2,
    "context": 64,
    "validation_bytes": 2048,
    "held_out_bytes": 8192,
}
MEASURE_SECONDS_QUICK = 0.2


def demo(
    out: Annotated[Path, typer.Option(help="folder for the models, the report and a checkpoint")] = Path(
        "demo-out"
    ),
    text: Annotated[
        Path | None, typer.Option(help="file or folder; default: the Python standard library's sources")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="training steps")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="of weights, patterns and batches")] = 0,
    preset: Annotated[
        str, typer.Option(help="cpu, or h200: 101 M parameters on a GPU, compiled, in minutes")
    ] = "cpu",
    density: Annotated[
        float | None, typer.Option(help="share of blocks kept, above 0, at most 1; default: 0.25")
    ] = None,
    block: Annotated[
        int | None, typer.Option(help="side: 8, 16, 32, 64 or 128; default: 32, h200: 64")
    ] = None,
    width: Annotated[int | None, typer.Option(min=8, help="features")] = None,
    layers: Annotated[int | None, typer.Option(min=1, max=64)] = None,
    lr: Annotated[
        float | None, typer.Option(help="learning rate of both models; default: each one's best")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="default: torch's own number")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on from the checkpoint that Ctrl-C left in --out")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="seconds: small models, few steps")] = False,
    seeds: Annotated[
        int, typer.Option(min=0, help="instead, run the quality experiment with so many seeds")
    ] = 0,
    jobs: Annotated[
        int, typer.Option(min=1, max=256, help="trainings of the experiment that run at once")
    ] = 1,
    results: Annotated[
        Path | None,
        typer.Option(help="results folder of the experiment and of h200; default: bench/results, else --out"),
    ] = None,
) -> None:
    """Trains a byte-level transformer on real text, dense and block-sparse, and compares them; ends within 4
    minutes on 2 cores."""
    given: dict[str, Any] = {
        "steps": steps,
        "width": width,
        "layers": layers,
        "seed": seed,
        "density": density,
        "block": block,
        "threads": threads,
    }
    try:
        require_device(preset)
        chosen = PRESETS[preset].sizes | (QUICK if quick else {})
        settings = replace(Settings(threads=torch.get_num_threads(), preset=preset), **chosen)
        settings = replace(settings, **{key: value for key, value in given.items() if value is not None})
        if lr is not None:
            settings = settings.with_rate(lr)
        _check(settings, resume and seeds > 0)
        if seeds and preset != "cpu":
            raise DemoError(
                f"--seeds and --preset {preset} do not go together: the experiment is the CPU demo's", 2
            )
        console = Console()
        console.width = max(console.width, 100)
        if seeds:
            path, summary = quality.run(settings, text, results or default_folder(out), seeds, _say, jobs)
            console.print(_quality_table(summary))
            _say(f"results: {path.resolve()}")
            return
        # A quick look gives no result to keep; the results for CPUs are those of the experiment.
        record = results or (None if quick or preset == "cpu" else default_folder(out))
        seconds = MEASURE_SECONDS_QUICK if quick else PRESETS[preset].seconds
        outcomes = job.run(settings, text, out, resume, seconds, _say, record if preset != "cpu" else None)
        console.print(_table(outcomes))
        _say(f"report: {(out / 'report.html').resolve()}")
    except Interrupted as stopped:
        raise typer.Exit(stopped.code) from None
    except DemoError as error:
        raise _exit(str(error), error.code) from None
    except torch.OutOfMemoryError as error:
        raise _exit(f"the GPU has too little memory: lower --width or --layers ({error})", 1) from None
    except Error as error:
        raise _exit(str(error), 1) from None
    except OSError as error:
        raise _exit(f"{error.filename or out}: {error.strerror or error}", 1) from None


def _check(settings: Settings, resume_experiment: bool) -> None:
    """Checks what typer's ranges cannot express. Raises DemoError (2)."""
    if resume_experiment:
        raise DemoError("--resume and --seeds do not go together: the experiment keeps no checkpoint", 2)
    if not 0 < settings.density <= 1:
        raise DemoError(f"--density must be above 0 and at most 1, got {settings.density}", 2)
    if settings.block not in (8, 16, 32, 64, 128):
        raise DemoError(f"--block must be 8, 16, 32, 64 or 128, got {settings.block}", 2)
    if settings.width % 8:
        raise DemoError(f"--width must be a multiple of 8, got {settings.width}", 2)
    if not all(0 < lr < 1 for lr in settings.lr.values()):
        raise DemoError(f"--lr must lie between 0 and 1, got {settings.lr['dense']}", 2)


def _say(line: str) -> None:
    typer.echo(line)


def _exit(message: str, code: int) -> typer.Exit:
    typer.echo(f"sparseloom demo: {' '.join(message.split())}", err=True)
    return typer.Exit(code)


def _table(outcomes: list[Outcome]) -> Table:
    table = Table("", *(outcome.label for outcome in outcomes), "sparse against dense")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows(outcomes):
        table.add_row(*row)
    return table


def _quality_table(summary: list[quality.Record]) -> Table:
    table = Table("model", "best rate", "seeds", "held-out bits per byte (median)", "against dense")
    for entry in summary:
        excess = f"{entry['excess_percent']:+.2f} %" if "excess_percent" in entry else ""
        table.add_row(
            entry["model"],
            f"{entry['lr']:g}",
            str(entry["seeds"]),
            f"{entry['held_out_bits_per_byte']:.4f}",
            excess,
        )
    return table

"""Provides `sparseloom experiment pixelcnn`."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ..errors import Error
from . import cifar, pixelcnn, steps
from . import pixelcnn_outcome as outcomes
from .pixelcnn_model import ARMS, Size
from .pixelcnn_page import page

_OP = "experiment pixelcnn"
#: Seconds after a part of a run until the next checkpoint, at least.
SAVE_EVERY = 60.0
SMOKE = {"steps": 8, "batch": 4, "size": Size(64, 1, 4)}


def pixelcnn_command(
    data: Annotated[Path | None, typer.Option(help="the archive of CIFAR-10; --smoke needs none")] = None,
    arm: Annotated[
        str | None, typer.Option(help="dense, groups-2 or groups-4; without it all in turn")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for outcomes and checkpoints of all arms")] = Path(
        "experiment-pixelcnn"
    ),
    only: Annotated[str, typer.Option(help="regex of an arm's runs, as 'rate.*' or 'seed1'")] = ".*",
    updates: Annotated[int, typer.Option("--steps", min=1, help="the same for every arm")] = pixelcnn.STEPS,
    minutes: Annotated[float, typer.Option(min=0, help="stops then; the same command goes on")] = 8.0,
    device: Annotated[str, typer.Option(help="cuda, or cpu for a look")] = "cuda",
    graph: Annotated[bool, typer.Option(help="on a GPU each step replays one CUDA graph")] = True,
    smoke: Annotated[
        bool, typer.Option(help="seconds on a CPU: tiny networks, any number of images")
    ] = False,
    table: Annotated[Path | None, typer.Option(help="trains nothing: writes the page of that folder")] = None,
) -> None:
    """Trains what --out lacks of an arm: three learning rates, then three seeds. Several commands may run
    side by side for several arms, or seeds; --table, or a command for all arms, compares them in pixelcnn.md,
    pixelcnn.html and record.json."""
    if table is not None:
        _write(table)
        return
    if arm is not None and arm not in ARMS:
        raise Error(_OP, f"--arm as one of {', '.join(ARMS)}", arm, "choose one of them")
    if data is None and not smoke:
        raise Error(_OP, "--data", "none", "pass the archive of CIFAR-10, or --smoke")
    if smoke:
        device = "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise Error(_OP, "a CUDA device", "none", "a CPU would take days; --smoke shows that it runs")
    begin = time.monotonic()
    images = pixelcnn.invented() if data is None else cifar.load(data, out / "images.pt", whole=not smoke)
    changes: dict[str, Any] = SMOKE if smoke else {"steps": updates}
    setting = pixelcnn.Setting("invented" if data is None else cifar.digest(data), **changes)
    parts = pixelcnn.split(images.to(torch.device(device)))
    out.mkdir(parents=True, exist_ok=True)
    for name in ARMS if arm is None else (arm,):
        if not _trained(name, only, setting, parts, out, graph, begin + 60 * minutes):
            return
    if arm is None and only == ".*":
        _write(out)


def _trained(
    arm: str, only: str, setting: pixelcnn.Setting, parts: pixelcnn.Parts, out: Path, graph: bool, end: float
) -> bool:
    """Runs what is wanted and missing of an arm; returns False where the time was over before."""
    for run in pixelcnn.searches(arm):
        if re.fullmatch(only, run.name) and not _ran(run, setting, parts, out, graph, end):
            return False
    if not any(re.fullmatch(only, run.name) for run in pixelcnn.finals(arm, 0.0)):
        return True
    for run in pixelcnn.finals(arm, outcomes.chosen_rate(out, arm)):
        if re.fullmatch(only, run.name) and not _ran(run, setting, parts, out, graph, end):
            return False
    return True


def _ran(
    run: pixelcnn.Run, setting: pixelcnn.Setting, parts: pixelcnn.Parts, out: Path, graph: bool, end: float
) -> bool:
    """Trains one run, or goes on with it, and writes its outcome; returns False where time was over."""
    path = outcomes.path_of(out, run)
    if path.exists():
        return True
    training, unfinished = pixelcnn.Training(run, setting, parts, graph), path.with_suffix(".pt")
    if unfinished.exists():
        training.load_state_dict(torch.load(unfinished, map_location=parts.train.device, weights_only=True))
        typer.echo(f"{path.stem}: goes on at step {training.step} of {training.steps}")
    saved = time.monotonic()

    def save() -> None:
        nonlocal saved
        steps.save(unfinished, training.state_dict())
        saved = time.monotonic()

    def after_part() -> bool:
        if time.monotonic() - saved >= SAVE_EVERY:
            save()
        return time.monotonic() >= end

    if not training.train(after_part, save):
        typer.echo(f"{path.stem}: step {training.step} of {training.steps}; run the same command again")
        return False
    outcome = training.outcome()
    path.write_text(json.dumps(outcome) + "\n")
    unfinished.unlink(missing_ok=True)
    bits = outcome["validation" if run.searching else "test"]
    typer.echo(f"{path.stem}: {bits} bits per dimension, {outcome['seconds']:.0f} s")
    return True


def _write(folder: Path) -> None:
    record = outcomes.read(folder)
    text = outcomes.table(record)
    whole = {name: arm._asdict() for name, arm in record.items()}
    (folder / "record.json").write_text(json.dumps(whole) + "\n")
    (folder / "pixelcnn.md").write_text(text)
    (folder / "pixelcnn.html").write_text(page(record))
    typer.echo(text)

"""Provides `sparseloom experiment pixelcnn`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sparseloom.errors import Error

from . import cifar, pixelcnn, runs
from . import pixelcnn_outcome as outcomes
from .pixelcnn_model import ARMS, Size
from .pixelcnn_page import page

_OP = pixelcnn.PLAN.op
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
    minutes: Annotated[float, typer.Option(min=0, help="stops then; the same command goes on")] = 4.0,
    device: Annotated[str, typer.Option(help="cuda, or cpu for a look")] = "cuda",
    graph: Annotated[bool, typer.Option(help="on a GPU each step replays one CUDA graph")] = True,
    smoke: Annotated[
        bool, typer.Option(help="seconds on a CPU: tiny networks, any number of images")
    ] = False,
    table: Annotated[Path | None, typer.Option(help="trains nothing: writes the page of that folder")] = None,
) -> None:
    """Trains what --out lacks of an arm: three learning rates, then three seeds. Several commands may run
    side by side for several arms, or seeds; --table, or a command for all arms, compares them in pixelcnn.md,
    pixelcnn.html and the record pixelcnn.json."""
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
    images = pixelcnn.invented() if data is None else cifar.load(data, whole=not smoke)
    changes: dict[str, Any] = SMOKE if smoke else {"steps": updates}
    setting = pixelcnn.Setting("invented" if data is None else cifar.digest(data), **changes)
    parts = pixelcnn.split(images.to(torch.device(device)))

    def made(run: runs.Run) -> pixelcnn.Training:
        return pixelcnn.Training(run, setting, parts, graph)

    chosen = tuple(ARMS) if arm is None else (arm,)
    done = runs.go(pixelcnn.PLAN, out, chosen, made, setting, torch.device(device), minutes, typer.echo, only)
    if done and arm is None and only == ".*":
        _write(out)


def _write(folder: Path) -> None:
    record = outcomes.read(folder)
    text = outcomes.table(record)
    whole = {name: arm._asdict() for name, arm in record.items()}
    (folder / "pixelcnn.json").write_text(json.dumps(whole) + "\n")
    (folder / "pixelcnn.md").write_text(text)
    (folder / "pixelcnn.html").write_text(page(record))
    typer.echo(text)

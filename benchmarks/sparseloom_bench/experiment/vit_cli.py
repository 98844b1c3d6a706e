"""Provides `sparseloom experiment vit`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sparseloom.errors import Error
from sparseloom.io.files import write_whole

from . import checkpoints, cifar, vit, vit_outcome
from .steps import device_name
from .vit_model import Size

_OP = "experiment vit"
#: Seconds after an epoch until the next checkpoint, at least.
SAVE_EVERY = 60.0
SMOKE = {"epochs": 2, "batch": 4, "size": Size(32, 1, 2)}


def vit_command(
    data: Annotated[Path | None, typer.Option(help="the archive of CIFAR-10")] = None,
    arm: Annotated[str | None, typer.Option(help="what to train; a wrong name lists all")] = None,
    out: Annotated[Path, typer.Option(help="folder for outcomes and checkpoints of all arms")] = Path(
        "experiment-vit"
    ),
    seed: Annotated[int, typer.Option(min=0, help="of the start, the batches and the pattern")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="the same for every arm")] = vit.EPOCHS,
    minutes: Annotated[float, typer.Option(min=0, help="stops then; the same command goes on")] = 8.0,
    device: Annotated[str, typer.Option(help="cuda, or cpu for a look")] = "cuda",
    smoke: Annotated[
        bool, typer.Option(help="seconds on a CPU: a tiny network, any number of images")
    ] = False,
    speed: Annotated[bool, typer.Option(help="times some steps instead; run nothing beside it")] = False,
    table: Annotated[
        Path | None, typer.Option(help="trains nothing: writes vit.md and vit.html of that folder")
    ] = None,
) -> None:
    """Trains one arm of ViT-tiny on CIFAR-10, or goes on with it; --table compares the outcomes of arms."""
    if table is not None:
        record = vit_outcome.read(table)
        text = vit_outcome.table(record)
        (table / "vit.md").write_text(text)
        (table / "vit.html").write_text(vit_outcome.page(record))
        typer.echo(text)
        return
    names = list(vit.trials(1))
    if data is None or arm not in names:
        got = f"--data {data} --arm {arm}"
        raise Error(_OP, "--data and --arm", got, f"the arms are {', '.join(names)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise Error(
            _OP, "a CUDA device", "none", "a CPU would take days; --device cpu --smoke shows that it runs"
        )
    path, unfinished = out / f"{arm}.seed{seed}.json", out / f"{arm}.seed{seed}.checkpoint"
    if path.exists() and not speed:
        typer.echo(f"{path} is there already")
        return
    begin = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    images = cifar.load(data, whole=not smoke)
    changes: dict[str, Any] = SMOKE if smoke else {"epochs": epochs}
    setting = vit.Setting(cifar.digest(data), **changes)
    training = vit.Training(arm, seed, setting, images.to(torch.device(device)), compiled=device == "cuda")
    if speed:
        found = {"arm": arm, "steps_per_second": training.speed(), "device": device_name(device)}
        (out / f"{arm}.speed.json").write_text(json.dumps(found) + "\n")
        typer.echo(f"{arm}: {found['steps_per_second']:.1f} steps per second")
        return
    if unfinished.exists():
        training.load_state_dict(checkpoints.load(_OP, unfinished, device))
        typer.echo(f"{arm}: goes on at step {training.step} of {training.steps}")
    saved = time.monotonic()

    def save() -> None:
        nonlocal saved
        checkpoints.save(unfinished, training.state_dict())
        saved = time.monotonic()

    def after_epoch() -> bool:
        if time.monotonic() - saved >= SAVE_EVERY:
            save()
        return time.monotonic() - begin >= 60 * minutes

    if not training.train(after_epoch, save):
        typer.echo(f"{arm}: step {training.step} of {training.steps}; run the same command again")
        return
    outcome = training.outcome()
    write_whole(path, (json.dumps(outcome, indent=1) + "\n").encode())
    checkpoints.remove(unfinished)
    typer.echo(
        f"{arm}, seed {seed}: {100 * outcome['accuracy']:.2f} %, {100 * outcome['density']:.1f} % of the "
        f"weights kept, {time.monotonic() - begin:.0f} s"
    )

"""Provides `sparseloom experiment char-lstm`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer

from sparseloom.errors import Error
from sparseloom.io.files import write_whole

from . import char_lstm_outcome, reviews, runs
from .char_lstm import ARMS, OP, PLAN, TINY, Setting, Streams, Training


def char_lstm_command(
    data: Annotated[Path | None, typer.Option(help="the table of IMDB's reviews; --smoke needs none")] = None,
    out: Annotated[Path, typer.Option(help="folder for outcomes, networks, checkpoints and the page")] = Path(
        "experiment-char-lstm"
    ),
    arm: Annotated[list[str] | None, typer.Option(help="what to train now; default: all, in turn")] = None,
    only: Annotated[str, typer.Option(help="regex of an arm's runs, as 'rate.*' or 'seed1'")] = ".*",
    steps: Annotated[int, typer.Option(min=1, help="the same for every arm")] = Setting.steps,
    minutes: Annotated[float, typer.Option(min=0, help="stops then; the same command goes on")] = 4.0,
    device: Annotated[str, typer.Option(help="cuda, or cpu")] = "cuda",
    smoke: Annotated[bool, typer.Option(help="seconds on a CPU: tiny networks and a few steps")] = False,
) -> None:
    """Trains what is left of a dense LSTM and of small worlds with as many parameters; then writes the record
    char-lstm.json, the table and the page, of the arms that have all their seeds. Several commands may run
    side by side for several arms, or seeds."""
    chosen = list(arm or ARMS)
    if unknown := set(chosen) - set(ARMS):
        raise Error(OP, f"arms of {', '.join(ARMS)}", ", ".join(sorted(unknown)), "pass --arm again for more")
    if data is None and not smoke:
        raise Error(OP, "--data", "none", "pass a table of reviews, or --smoke to see that it runs")
    where = torch.device("cpu" if smoke else device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise Error(OP, "a CUDA device", "none", "pass --device cpu, which takes days, or --smoke")
    texts = reviews.invented() if data is None else reviews.imdb(data)
    name = "invented" if data is None else reviews.digest(data)
    setting = Setting(name, 8, 8, 8, TINY) if smoke else Setting(name, steps)
    streams = Streams.of(texts).to(where)

    def made(run: runs.Run) -> Training:
        return Training(run, setting, streams)

    done = runs.go(PLAN, out, chosen, made, setting, where, minutes, typer.echo, only)
    found = char_lstm_outcome.record(runs.read(PLAN, out))
    if not done or not found["arms"]:
        return
    text = char_lstm_outcome.table(found)
    record = json.dumps(found, indent=1) + "\n"
    files = {"char-lstm.json": record, "char-lstm.md": text, "char-lstm.html": char_lstm_outcome.html(found)}
    for name, content in files.items():
        write_whole(out / name, content.encode())
    typer.echo(text)

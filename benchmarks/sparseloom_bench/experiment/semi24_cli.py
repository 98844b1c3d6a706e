"""Provides `sparseloom experiment semi24`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sparseloom.errors import Error
from sparseloom.io.files import write_whole

from . import lm_prune, runs, semi24
from .semi24 import ARMS, PLAN

SMOKE = {"steps": 8, "batch": 2, "size": (32, 1, 2, 32), "every": 2, "tested": 4}


def semi24_command(
    data: Annotated[Path | None, typer.Option(help="IMDB's table; --smoke needs none")] = None,
    arm: Annotated[str | None, typer.Option(help="one arm; without it all in turn")] = None,
    out: Annotated[Path, typer.Option(help="folder for outcomes and checkpoints of all arms")] = Path(
        "experiment-semi24"
    ),
    only: Annotated[str, typer.Option(help="regex of an arm's runs, as 'rate.*' or 'seed1'")] = ".*",
    updates: Annotated[int, typer.Option("--steps", min=1, help="the same for every arm")] = semi24.STEPS,
    minutes: Annotated[float, typer.Option(min=0, help="stops then; the same command goes on")] = 4.0,
    device: Annotated[str, typer.Option(help="cuda, or cpu for a look")] = "cuda",
    smoke: Annotated[bool, typer.Option(help="seconds on a CPU: a tiny model, invented texts")] = False,
    table: Annotated[Path | None, typer.Option(help="trains nothing: writes the page of that folder")] = None,
) -> None:
    """Trains what --out lacks of an arm: two learning rates at a quarter of the steps, then three seeds.
    Several commands may run side by side for several arms, or seeds; --table, or a command for all arms,
    compares them in semi24.md."""
    if table is not None:
        _write(table)
        return
    if arm is not None and arm not in ARMS:
        raise Error(PLAN.op, f"--arm as one of {', '.join(ARMS)}", arm, "choose one of them")
    if data is None and not smoke:
        raise Error(PLAN.op, "--data", "none", "pass IMDB's table, or --smoke")
    if smoke:
        device = "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise Error(PLAN.op, "a CUDA device", "none", "a CPU would take days; --smoke shows that it runs")
    changes: dict[str, Any] = SMOKE if smoke else {"steps": updates}
    setting = semi24.Setting(lm_prune.digest(data), **changes)
    where = torch.device(device)
    texts = lm_prune.Texts(data, where)

    def made(run: runs.Run) -> semi24.Training:
        return semi24.Training(run, setting, texts, where)

    chosen = tuple(ARMS) if arm is None else (arm,)
    if runs.go(PLAN, out, chosen, made, setting, where, minutes, typer.echo, only) and arm is None:
        _write(out)


def _write(folder: Path) -> None:
    text = page(folder)
    write_whole(folder / "semi24.md", text.encode())
    typer.echo(text)


def page(folder: Path) -> str:
    """Returns the table of the outcomes in a folder. Raises Error where there is no dense arm to compare
    with."""
    record = runs.read(PLAN, folder)
    counted = {arm: runs.counted(PLAN, outcomes) for arm, outcomes in record.items()}
    if not counted["dense"]:
        raise Error(PLAN.op, "seeds of the arm dense", "none", "train it with --arm dense")
    lines = [
        "| arm | rate | seeds | bits per byte | to dense | ms a step | masks flipped | magnitude lost |",
        "|---|---|---|---|---|---|---|---|",
    ]
    dense = _bits(counted["dense"])[0]
    for arm, outcomes in counted.items():
        if not outcomes:
            continue
        mean, deviation = _bits(outcomes)
        each_step = sum(1e3 * each["seconds"] / each["steps"] for each in outcomes) / len(outcomes)
        shares = [_share(outcomes, name) for name in ("flips", "lost")]
        lines.append(
            f"| {ARMS[arm].text} | {outcomes[0]['rate']:g} | {len(outcomes)} | {mean:.4f} ± {deviation:.4f} "
            f"| {mean - dense:+.4f} | {each_step:.1f} | {' | '.join(shares)} |"
        )
    one = counted["dense"][0]
    setting = json.dumps(one["setting"])
    return "\n".join([*lines, "", f"{one['device']}, torch {one['torch']}; {setting}", ""])


def _bits(outcomes: list[dict[str, Any]]) -> tuple[float, float]:
    values = [float("inf") if each["test"] is None else each["test"] for each in outcomes]
    return runs.spread(values)


def _share(outcomes: list[dict[str, Any]], name: str) -> str:
    values = [each[name] for each in outcomes if each[name] is not None]
    return f"{100 * sum(values) / len(values):.2f} %" if values else "-"

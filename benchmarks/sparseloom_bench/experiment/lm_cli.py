"""Provides `sparseloom experiment lm`."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sparseloom.errors import Error
from sparseloom.io.files import write_whole

from . import corpus, lm, lm_page, lm_speed, runs, side_by_side
from . import lm_outcome as outcomes
from .lm_arms import ARMS, PRESETS

_OP = lm.PLAN.op
SMOKE: dict[str, Any] = {"steps": 8, "batch": 2, "preset": "tiny", "block": 16, "tested": 4}
#: The arms of a smoke run: one of each method, pattern and way to be wide.
SMOKE_ARMS = "dense|all25-time|mlp25-ba|mlp25-rigl|tail"


def made(
    setting: lm.Setting, data: Path | None, out: Path, device: str, graph: bool, compiled: bool
) -> Callable[[runs.Run], lm.Training]:
    """Returns what makes the trainings of a process."""
    texts = (corpus.invented() if data is None else corpus.load(data)).to(torch.device(device))
    multiples = lm_speed.multiples(out)
    return lambda run: lm.Training(run, setting, texts, graph, multiples.get(run.arm), compiled)


def lm_command(
    data: Annotated[Path | None, typer.Option(help="packed texts; --smoke needs none")] = None,
    prepare: Annotated[
        Path | None, typer.Option(help="folder of texts: packs them as --data, no more")
    ] = None,
    arms: Annotated[str, typer.Option(help="regex of the arms, as 'dense|mlp25.*'")] = ".*",
    out: Annotated[Path, typer.Option(help="folder for times, outcomes and checkpoints of all arms")] = Path(
        "experiment-lm"
    ),
    only: Annotated[str, typer.Option(help="regex of an arm's runs, as 'rate.*' or 'seed1'")] = ".*",
    updates: Annotated[int, typer.Option("--steps", min=1, help="the same for every arm")] = lm.STEPS,
    seconds: Annotated[float, typer.Option(min=0, help="of dense alone, in the place of --steps")] = 0.0,
    preset: Annotated[str, typer.Option(help=f"the dense arm: {', '.join(PRESETS)}")] = "small",
    block: Annotated[int, typer.Option(help="side of the blocks")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="windows of a step")] = lm.BATCH,
    minutes: Annotated[float, typer.Option(min=0, help="stops then; the same command goes on")] = 4.0,
    jobs: Annotated[int, typer.Option(min=0, help="processes side by side; 0: in this one")] = 0,
    slower: Annotated[
        float, typer.Option(min=0, help="times that a run takes beside others; 0: --jobs times")
    ] = 0.0,
    keep: Annotated[
        bool, typer.Option("--checkpoints/--no-checkpoints", help="without: no run begins that would not end")
    ] = True,
    device: Annotated[str, typer.Option(help="cuda, or cpu for a look")] = "cuda",
    graph: Annotated[bool, typer.Option(help="on a GPU each step replays one CUDA graph")] = True,
    compiled: Annotated[
        bool,
        typer.Option("--compile/--no-compile", help="on a GPU: the blocks, for training steps"),
    ] = True,
    speed: Annotated[bool, typer.Option(help="times steps and fits widths first; nothing beside it")] = False,
    smoke: Annotated[bool, typer.Option(help="seconds on a CPU: tiny networks, invented texts")] = False,
    table: Annotated[Path | None, typer.Option(help="trains nothing: writes the page of that folder")] = None,
) -> None:
    """Trains what --out lacks of the arms: four learning rates at a quarter of the steps, then three seeds.
    --speed measures steps alone, and fits the arms of dense's time a step. Each command, or --table, compares
    what is there in lm.md and lm.html."""
    if table is not None:
        _write(table)
        return
    if prepare is not None:
        if data is None:
            raise Error(_OP, "--data beside --prepare", "none", "pass the file to write")
        counts = corpus.prepare(prepare, data)
        typer.echo(f"{json.dumps(counts, indent=1)}\n{data}: {data.stat().st_size:,} bytes")
        return
    arms = SMOKE_ARMS if smoke and arms == ".*" else arms
    chosen = [arm for arm in ARMS if re.fullmatch(arms, arm)]
    if not chosen or preset not in PRESETS:
        got = f"--arms {arms} --preset {preset}"
        raise Error(_OP, f"some of the arms {', '.join(ARMS)}, and a preset", got, "choose some of them")
    if data is None and not smoke:
        raise Error(_OP, "--data", "none", "pass packed texts, or --smoke")
    if smoke:
        device = "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise Error(_OP, "a CUDA device", "none", "a CPU would take days; --smoke shows that it runs")
    digest = "" if data is None else corpus.digest(data)
    sizes = {"preset": preset, "block": block, "batch": batch}
    changes = SMOKE if smoke else {"steps": updates, **sizes}
    setting = lm.Setting(digest, **changes)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if data is not None:
            packed, data = data, Path(folder) / "texts"
            corpus.unpack(packed, data)
        if speed:
            texts = (corpus.invented() if data is None else corpus.load(data)).to(torch.device(device))
            lm_speed.measure(out, chosen, setting, texts, graph, typer.echo, compiled)
            del texts
        if seconds:
            setting = lm.Setting(digest, **changes | {"steps": lm_speed.steps(out, seconds)})
            typer.echo(f"{setting.steps} steps")
        if not minutes:
            return
        arguments = (setting, data, out, device, graph, compiled)
        _trained(out, chosen, only, setting, arguments, minutes, jobs, keep, slower)
    if runs.counted(lm.PLAN, runs.read(lm.PLAN, out)["dense"]):
        _write(out)


def _trained(
    out: Path, chosen: list[str], only: str, setting: lm.Setting, arguments: tuple[Any, ...],
    minutes: float, jobs: int, keep: bool, slower: float,
) -> None:  # fmt: skip
    if unfitted := [arm for arm in chosen if ARMS[arm].fits and arm not in lm_speed.multiples(out)]:
        typer.echo(f"{', '.join(unfitted)}: as wide as they were not fitted; --speed fits them")
    device: str = arguments[3]
    if not jobs:
        where = torch.device(device)
        runs.go(lm.PLAN, out, chosen, made(*arguments), setting, where, minutes, typer.echo, only)
        return
    runs.require_setting(lm.PLAN, out, setting)
    alone = side_by_side.as_found(lm_speed.milliseconds(out), lambda run: runs.steps_of(run, setting.steps))
    work = side_by_side.Work(lm.PLAN, out, made, arguments, device, keep)
    side_by_side.go(work, chosen, only, jobs, minutes, typer.echo, alone, slower)


def _write(folder: Path) -> None:
    record = outcomes.read(folder)
    text = outcomes.table(record)
    write_whole(folder / "lm.md", text.encode())
    write_whole(folder / "lm.html", lm_page.page(record).encode())
    typer.echo(text)

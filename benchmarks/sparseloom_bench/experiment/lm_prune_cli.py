"""Provides `sparseloom experiment lm-prune`."""

from __future__ import annotations

import json
import re
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sparseloom.errors import Error
from sparseloom.io.files import write_whole

from . import lm_prune
from .lm_model import Size
from .lm_prune import METHODS, SCANNED, TARGETS, WITHOUT_SWAPS, Experiment, Setting
from .steps import device_name

_OP = "experiment lm-prune"
SMOKE = {"size": Size(32, 2, 2, 32), "batch": 4, "minutes": 0.02, "calibration": 32, "tested": 4}
#: What recovers, by the issue's bars.
RECOVERED = ("2:4", "blocks32-50")


def lm_prune_command(
    data: Annotated[Path | None, typer.Option(help="IMDB's table; without it invented texts")] = None,
    out: Annotated[Path, typer.Option(help="folder of the dense model and the record")] = Path(
        "experiment-lm-prune"
    ),
    only: Annotated[str, typer.Option(help="regex of target/method")] = ".*",
    seeds: Annotated[int, typer.Option(min=1, help="draws of the calibration's texts")] = 3,
    minutes: Annotated[float, typer.Option(min=0.01, help="of the dense training")] = 4.0,
    recovery: Annotated[float, typer.Option(min=0, help="minutes of each recovery; 0: none")] = 0.0,
    device: Annotated[str, typer.Option(help="cuda, or cpu for a look")] = "cuda",
    smoke: Annotated[bool, typer.Option(help="seconds on a CPU: a tiny model")] = False,
) -> None:
    """Trains a byte-level GPT once, prunes it by every method to every target, and writes lm-prune.md.

    What the record in --out has already is not run again.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise Error(_OP, "a CUDA device", "none", "pass --device cpu --smoke for a look")
    out.mkdir(parents=True, exist_ok=True)
    changes: dict[str, Any] = SMOKE if smoke else {"minutes": minutes}
    setting = Setting(lm_prune.digest(data), **changes)
    texts = lm_prune.Texts(data, torch.device(device))
    path = out / "lm-prune.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    experiment = lm_prune.load(setting, out / "dense.pt", texts, torch.device(device))
    if experiment is None:
        experiment = Experiment(setting, texts, torch.device(device))
        trained = experiment.train(typer.echo)
        lm_prune.save(experiment, out / "dense.pt")
        record = {}
        typer.echo(f"dense: {trained['bits']:.4f} bits a byte after {trained['steps']} steps")
    if record.get("setting") != lm_prune.plain(setting):
        dense = experiment.judged(experiment.model)
        record = {
            "setting": lm_prune.plain(setting),
            "device": device_name(device),
            "dense": dense,
            "runs": [],
        }
    for target, method in _arms(only):
        for seed in range(seeds):
            if _run(record, target, method, seed) is None:
                _, outcome = experiment.pruned(target, method, seed)
                record["runs"].append(outcome)
                _write(path, record)
                typer.echo(f"{target}, {method}, seed {seed}: {outcome['bits']:.4f} bits a byte")
    if recovery:
        _recover(experiment, record, only, recovery, path)
    text = table(record)
    (out / "lm-prune.md").write_text(text)
    typer.echo(text)


def _arms(only: str) -> list[tuple[str, str]]:
    return [
        (target, method)
        for target in TARGETS
        for method in METHODS
        if re.fullmatch(only, f"{target}/{method}") and _has(target, method)
    ]


def _has(target: str, method: str) -> bool:
    if method.endswith("+scan"):
        return target == SCANNED
    return not (target in WITHOUT_SWAPS and "swaps" in method)


def _recover(experiment: Experiment, record: dict[str, Any], only: str, minutes: float, path: Path) -> None:
    for target in RECOVERED:
        if not re.fullmatch(only, f"{target}/sparsegpt"):
            continue
        if (run := _run(record, target, "sparsegpt", 0)) is None or "recovered" in run:
            continue
        model, _ = experiment.pruned(target, "sparsegpt", 0)
        begin = time.monotonic()
        run["recovered"] = experiment.recovered(model, minutes, 0)
        _write(path, record)
        typer.echo(
            f"{target} recovered to {run['recovered']['bits']:.4f} in {time.monotonic() - begin:.0f} s"
        )


def _run(record: dict[str, Any], target: str, method: str, seed: int) -> dict[str, Any] | None:
    key = (target, method, seed)
    return next((run for run in record["runs"] if (run["target"], run["method"], run["seed"]) == key), None)


def _write(path: Path, record: dict[str, Any]) -> None:
    write_whole(path, (json.dumps(record, indent=1) + "\n").encode())


def table(record: dict[str, Any]) -> str:
    """Returns bits a byte, what pruning added to dense's, and its ratio to what magnitude added."""
    dense, size = record["dense"], Size(*record["setting"]["size"])
    lines = [
        "# sparseloom experiment lm-prune",
        "",
        f"A byte-level GPT of width {size.width} and depth {size.depth}, {dense:.4f} bits a byte of held-out "
        f"reviews, on {record['device']}. Excess is what pruning adds, and its ratio to magnitude's.",
        "",
        "| target | method | seeds | bits a byte | excess | of magnitude's | recovered | closed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for target in TARGETS:
        runs = [run for run in record["runs"] if run["target"] == target]
        by_magnitude = [run["bits"] - dense for run in runs if run["method"] == "magnitude"]
        for method in METHODS:
            ours = [run for run in runs if run["method"] == method]
            if not ours:
                continue
            excess = statistics.mean(run["bits"] for run in ours) - dense
            spread = statistics.stdev(run["bits"] for run in ours) if len(ours) > 1 else 0.0
            ratio = f"{excess / statistics.mean(by_magnitude):.3f}" if by_magnitude else ""
            again = next((run for run in ours if "recovered" in run), None)
            late = "" if again is None else f"{again['recovered']['bits']:.4f}"
            closed = ""
            if again is not None:
                left = again["bits"] - dense
                closed = f"{100 * (again['bits'] - again['recovered']['bits']) / left:.0f} %"
            lines.append(
                f"| {target} | {method} | {len(ours)} | {dense + excess:.4f} ± {spread:.4f} | {excess:.4f} | "
                f"{ratio} | {late} | {closed} |"
            )
    return "\n".join([*lines, ""])

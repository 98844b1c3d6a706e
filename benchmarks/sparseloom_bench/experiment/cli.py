"""Provides `sparseloom experiment digits`."""

from __future__ import annotations

import json
import multiprocessing
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from . import digits as recipe
from . import outcome

STEPS, SMOKE_STEPS = 1200, 12


def digits(
    out: Annotated[Path, typer.Option(help="folder for the record, the table and the picture")] = Path(
        "experiment-out"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="runs of each arm")] = 5,
    jobs: Annotated[int, typer.Option(min=0, help="processes of one thread each; 0: in this one")] = 2,
    only: Annotated[str, typer.Option(help="regex of the arms to run now, such as 'RigL@.*'")] = ".*",
    smoke: Annotated[bool, typer.Option(help="seconds: a few steps, one seed, 80 % alone")] = False,
) -> None:
    """Trains every arm that the record in --out does not have yet; then writes digits.md and digits.png."""
    recipe.load(0)  # says so at once where scikit-learn is missing
    steps, seeds = (SMOKE_STEPS, 1) if smoke else (STEPS, seeds)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "digits.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    setting = {"steps": steps, "seeds": seeds}
    if record.get("setting") != setting:
        record = {"setting": setting, "arms": {}}
    wanted = [name for name in _names((80,) if smoke else outcome.SPARSITIES) if re.fullmatch(only, name)]
    missing = [name for name in wanted if name not in record["arms"]]
    begin = time.monotonic()
    for name, results in _trained(missing, seeds, steps, 0 if smoke else jobs):
        record["arms"][name] = results
        path.write_text(json.dumps(record, indent=1) + "\n")
        mean = sum(each["accuracy"] for each in results) / len(results)
        typer.echo(f"{time.monotonic() - begin:6.1f} s  {name}: {100 * mean:.2f} %")
    ordered = {name: record["arms"][name] for name in _names(outcome.SPARSITIES) if name in record["arms"]}
    if outcome.key("dense", 0) not in ordered:
        typer.echo("no table yet: the arm dense@0 is missing")
        return
    text = outcome.table(ordered, steps)
    (out / "digits.md").write_text(text)
    outcome.draw(ordered, out / "digits.png")
    typer.echo(text)


def _names(sparsities: tuple[int, ...]) -> list[str]:
    """Returns what a full record has: arms that decide on their density themselves have one row."""
    found = [outcome.key("dense", 0)]
    for arm in recipe.arms(STEPS).values():
        if not arm.dense:
            in_table = arm.name in outcome.REFERENCE
            found += [outcome.key(arm.name, each) for each in (sparsities if in_table else (80,))]
    return found


def _run(name: str, seed: int, steps: int) -> dict[str, Any]:
    arm, sparsity = name.rsplit("@", 1)
    return recipe.train(recipe.arms(steps)[arm], 1 - int(sparsity) / 100, seed, steps)


def _trained(
    names: list[str], seeds: int, steps: int, jobs: int
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields each arm with the results of its seeds, when all of them are there."""
    if not jobs:
        for name in names:
            yield name, [_run(name, seed, steps) for seed in range(seeds)]
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        runs: dict[Future[dict[str, Any]], tuple[str, int]] = {
            pool.submit(_run, name, seed, steps): (name, seed) for name in names for seed in range(seeds)
        }
        results: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in names}
        for future in as_completed(runs):
            name, seed = runs[future]
            results[name][seed] = future.result()
            if len(results[name]) == seeds:
                yield name, [results[name][each] for each in range(seeds)]

"""`sparseloom bench ranks`: starts the program of __main__.py on each rank of this host, and waits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

from sparseloom.errors import Error

from .arms import WAYS

#: What a dry run on the CPU takes seconds for.
SMOKE = {"width": 64, "hidden": 128, "layers": 1, "samples": 1, "tokens": 8, "head": 16, "block": 8}


def ranks(
    processes: Annotated[
        int | None, typer.Option(min=1, help="ranks; default: one for each GPU, two on the CPU")
    ] = None,
    device: Annotated[str, typer.Option(help="cuda, or cpu for a dry run by gloo")] = "cuda",
    way: Annotated[
        list[str] | None,
        typer.Option(help=f"one of {', '.join(WAYS)}; repeat for more; default: all of them"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="of three steps of each arm")] = 7,
    size: Annotated[
        list[str] | None,
        typer.Option(help="width=4096; also hidden, layers, samples, tokens, block, density, head"),
    ] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="tiny sizes: does it run?")] = False,
    results: Annotated[
        Path | None, typer.Option(help="default: bench/results of the checkout, else here")
    ] = None,
) -> None:
    """Times a step of a model with sparse MLPs and of its dense twin, alone and shared by all ranks, and
    writes <results>/<device>/ranks.json."""
    found = torch.cuda.device_count() if device == "cuda" else 2
    if found < (processes or 1) and device == "cuda":
        error = Error("bench", f"{processes or 1} GPUs", str(found), "lower --processes, or --device cpu")
        typer.echo(f"sparseloom bench ranks: {error}", err=True)
        raise typer.Exit(1)
    words = ["--device", device, "--rounds", str(rounds)]
    words += [f"--{name}={value}" for name, value in SMOKE.items() if smoke]
    words += [f"--{each}" for each in size or []]
    words += ["--way", *way] if way else []
    words += ["--results", str(results)] if results else []
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start += [f"--nproc-per-node={processes or found}", "-m", "sparseloom_bench.bench.ranks", *words]
    raise typer.Exit(subprocess.run(start, check=False).returncode)

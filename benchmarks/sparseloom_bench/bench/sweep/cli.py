"""Provides `sparseloom bench sweep`: its options, what it prints, and every error as one line."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from sparseloom import ops
from sparseloom.errors import Error

from ..results import default_folder
from . import attention, conv, layouts, summary
from . import compare as comparison
from .beside_busy import BesideBusy
from .cpu import Cpu
from .gpu import Gpu
from .run import FAMILIES, Device, Sweep, replayed

#: Families whose kernels have names of their own.
REQUIRED = {"bsr_conv": conv.require_kernel, "attention": attention.require_kernel}
DEVICES: dict[str, Callable[[bool], Device]] = {"cpu": Cpu, "cuda": Gpu}


def sweep(
    seed: Annotated[
        int | None, typer.Option(min=0, help="of the problems; default: drawn from the clock, and printed")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="end after so long with what was measured; default: no limit")
    ] = math.inf,
    problems: Annotated[
        int, typer.Option(min=1, help="to measure; with --compare: as many as OLD has")
    ] = 300,
    device: Annotated[str, typer.Option(help="cuda or cpu; default: cuda where torch sees a GPU")] = "",
    family: Annotated[
        str,
        typer.Option(
            help="bsr (blocks), semi24 (2:4), tiles, bsr_conv or attention; on the CPU csr, bitmap or nmg "
            "too; with --compare OLD's"
        ),
    ] = "bsr",
    kernel: Annotated[
        str | None, typer.Option(help="only problems that this kernel takes, every candidate timed in each")
    ] = None,
    dense_copy: Annotated[
        bool,
        typer.Option(
            "--dense-copy", help="let products take a dense copy: forward, as inference may, and dX of 2:4"
        ),
    ] = False,
    beside_busy: Annotated[
        bool, typer.Option("--beside-busy", help="CPU: time each problem beside a busy process a core too")
    ] = False,
    compare: Annotated[
        Path | None, typer.Option(help="OLD.json: measure its problems again and print what moved")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="default: bench/results of the checkout, else here")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="of the results file; default: sweep-[FAMILY-]SEED[-dense-copy][-beside-busy], "
            "with --compare OLD-again"
        ),
    ] = None,
) -> None:
    """Measures random problems beside torch's dense product and writes <results>/<device>/<name>.json. When
    that file exists and has the same seed and commit, the run continues it."""
    try:
        old = _read(compare) if compare else None
        if old:
            seed, kernel, problems = old["seed"], old["kernel"], len(old["records"])
            dense_copy = dense_copy or old.get("dense_copy", False)
            beside_busy = beside_busy or old.get("beside_busy", False)
            family = old.get("family", family)
        if family not in FAMILIES:
            raise Error("bench sweep", f"--family {' or '.join(FAMILIES)}", repr(family), "name one of them")
        if kernel and family == "bsr":
            ops.kernel_number(kernel)
        seed = int(time.time()) if seed is None else seed
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if device not in DEVICES:
            raise Error("bench sweep", f"--device {' or '.join(DEVICES)}", repr(device), "name one of them")
        if family in layouts.FAMILIES and device != "cpu":
            raise Error("bench sweep", f"--family {family} with --device cpu", device, "add --device cpu")
        if beside_busy and device != "cpu":
            raise Error("bench sweep", "--beside-busy with --device cpu", device, "add --device cpu")
        if kernel and family in REQUIRED:
            REQUIRED[family](kernel, device)
        kind = BesideBusy if beside_busy else DEVICES[device]
        flags = {"dense-copy": dense_copy, "beside-busy": beside_busy}
        asked = [flag for flag, given in flags.items() if given]
        first = f"sweep-{seed}" if family == "bsr" else f"sweep-{family}-{seed}"
        stem = "-".join([first, *([kernel] if kernel else []), *asked])
        stem = f"{compare.stem}-again" if compare else stem
        folder = results or default_folder(Path("."))
        made = Sweep(kind(dense_copy), seed, kernel, folder, name or stem, family)
        there = len(made.records)
        before = f", {there} of them measured before" if there else ""
        typer.echo(f"seed {seed}, {problems} problems on {made.device.slug}{before}")

        def again(left: float) -> list[str]:
            """Returns the arguments of a process that goes on; one that has no time left prints what there
            is."""
            options: dict[str, Any] = {"seed": seed, "problems": problems, "device": device, "kernel": kernel}
            options |= {"family": family, "compare": compare, "results": folder, "name": name or stem}
            options["seconds"] = max(0.0, left) if math.isfinite(left) else None
            given = ((f"--{key}", str(value)) for key, value in options.items() if value is not None)
            return ["bench", "sweep", *itertools.chain.from_iterable(given), *(f"--{flag}" for flag in asked)]

        drawn = replayed(old["records"], made.records, family) if old else made.drawn()
        made.measure(drawn, problems, seconds, again)
        path = made.save()
    except Error as error:
        typer.echo(f"sparseloom bench: {error}", err=True)
        raise typer.Exit(2 if error.op.startswith("bench") or error.op == "kernel" else 1) from None
    except KeyboardInterrupt:
        typer.echo("sparseloom bench: interrupted; the same seed goes on from what was saved", err=True)
        raise typer.Exit(130) from None
    show(made.records, dense_copy)
    if old:
        typer.echo("\n".join(comparison.sentences(old, made.head | {"records": made.records})))
    typer.echo(f"results: {path.resolve()}")
    if any(record.get("tile_excess", 0) > 1 for record in made.records):
        raise typer.Exit(1)


def _read(path: Path) -> dict[str, Any]:
    """Reads a sweep's results file. Raises Error when it is none."""
    wanted, remedy = "a results file of a sweep", "name a file that `bench sweep` wrote"
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Error("bench sweep", wanted, f"{path}: {error}", remedy) from None
    if not isinstance(found, dict) or found.get("suite") != "sweep":
        raise Error("bench sweep", wanted, f"{path}, which is none", remedy)
    return found


def show(records: list[dict[str, Any]], dense_copy: bool = False) -> None:
    """Prints the tables, the ten worst problems with their plans, and the sentences."""
    console = Console()
    console.width = max(console.width, 160)
    table = Table(*summary.HEAD)
    for line in summary.rows(records):
        table.add_row(*line)
    console.print(table)
    for title, text in summary.worst_texts(records):
        typer.echo(title)
        typer.echo("\n".join(f"    {line}" for line in text.splitlines()))
    typer.echo("\n".join(summary.sentences(records, dense_copy)))

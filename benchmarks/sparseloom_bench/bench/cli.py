"""Provides `sparseloom bench SUITE`, which measures, checks, prints a table and writes one JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from sparseloom.errors import Error

from . import int8, measure, targets
from .cells import Cell, cell_of, select
from .gpu import jobs as gpu_jobs
from .gpu import run as gpu_run
from .gpu import table as gpu_table
from .gpu.measure import DeadContext
from .gpu.targets import failed
from .models import cpu_zoo, on_cpu
from .models import run as model_run
from .models.ways import WAYS
from .models.zoo import Spec
from .models.zoo import select as select_models
from .peak import rates
from .results import default_folder, header, write_results
from .timing import busy_share, load_average

#: When other processes take more than this share of the CPUs' time, medians drift by more than the 10 % that
#: the targets are about.
BUSY_LIMIT = 0.10
#: Default seconds of timing per cell. gpu: zero means the least rounds, which take some five minutes in all.
#: models: seconds of the report for each layer.
SECONDS = {"cpu": 1.0, "plan": 1.0, "gpu": 0.0, "models": 0.1}
#: models on a CPU: seconds of each column, and of one in --smoke.
CPU_MODEL_SECONDS, SMOKE_SECONDS = 3.0, 0.01


def bench(
    suite: Annotated[
        str,
        typer.Argument(
            help="cpu (share of the peak, against dense), plan (is the plan's "
            "choice the best), gpu (against dense and peers) or "
            "models (patched, trained, reloaded and timed on a GPU; with --device cpu "
            "one call beside other runtimes); random problems: `bench sweep --help`"
        ),
    ] = "cpu",
    only: Annotated[
        list[str] | None, typer.Option(help="cells whose name holds this text; repeat to narrow further")
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(help=f"gpu: a part of it ({', '.join(gpu_jobs.names())}); repeat for more"),
    ] = None,
    list_cells: Annotated[bool, typer.Option("--list", help="print the cells' names and end")] = False,
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="of timing per cell; eight rounds at least")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="default: torch's own number")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="exit 1 and name the targets that were missed")
    ] = False,
    busy: Annotated[bool, typer.Option("--busy", help="measure also while others use the machine")] = False,
    results: Annotated[
        Path | None, typer.Option(help="default: bench/results of the checkout, else here")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="of the results file; default: the suite's, and its groups'")
    ] = None,
    peers: Annotated[bool, typer.Option(help="gpu: time torch BSR and cuSPARSE too")] = True,
    way: Annotated[
        list[str] | None,
        typer.Option(
            help=f"models: time inference and a step in this way alone ({', '.join(WAYS)}); repeat for more"
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="models: cuda or cpu")] = "cuda",
    limit: Annotated[
        float | None,
        typer.Option(min=1.0, help="models on a CPU: seconds after which a model gets no further column"),
    ] = None,
    turn: Annotated[
        Path | None,
        typer.Option(
            help="models on a CPU: processes with one such file prepare at once and measure in turn"
        ),
    ] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="models on a CPU: tiny ones, do they run?")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="gpu: go on with the file of a run that was stopped")
    ] = False,
) -> None:
    """Measures block-sparse products beside torch's dense ones and writes <results>/<device>/<name>.json."""
    wanted, groups = only or [], group or []
    try:
        if device not in ("cuda", "cpu"):
            raise Error("bench", "device cuda or cpu", repr(device), "see --help")
        on_the_cpu = suite == model_run.SUITE and device == "cpu"
        if on_the_cpu:
            return _models_on_cpu(
                wanted, list_cells, seconds, threads, busy, smoke, limit, turn, results, name
            )
        models: list[Spec] = select_models(wanted, bool(way)) if suite == model_run.SUITE else []
        jobs = gpu_jobs.choose(groups, wanted) if suite == "gpu" else []
        cells = [] if models or jobs else select(suite, wanted)
        if list_cells:
            typer.echo("\n".join(str(each) for each in models or jobs or cells))
            return
        if threads is not None:
            torch.set_num_threads(threads)
        chosen = SECONDS[suite] if seconds is None else seconds
        folder = results or default_folder(Path("."))
        if suite == "gpu":
            on_gpu = gpu_run.Run(folder, name or "-".join((suite, *groups)), chosen, peers, resume)
            on_gpu.measure(jobs)
            records, path = on_gpu.records, on_gpu.save()
        elif models:
            head, records = model_run.run(models, chosen, way or [])
        else:
            head, records = run(suite, cells, chosen, busy)
        console = Console()
        console.width = max(console.width, 132 if suite == "plan" else 180)  # a cut kernel name says nothing
        console.print(table(suite, records))
        if suite != "gpu":
            path = write_results(folder, name or (f"{suite}-ways" if way else suite), head, records)
    except Error as error:
        typer.echo(f"sparseloom bench: {error}", err=True)
        raise typer.Exit(2 if error.op == "bench" else 1) from None
    except DeadContext as death:
        gpu_run.start_again(death)
    except KeyboardInterrupt:
        left = "--resume goes on from the last cells saved" if suite == "gpu" else "nothing written"
        typer.echo(f"sparseloom bench: interrupted, {left}", err=True)
        raise typer.Exit(130) from None
    if suite == "plan":
        typer.echo(
            "the plan's choice is within 10 % of the best in "
            f"{targets.good_choices(records)} of {len(records)} cells"
        )
    if suite == "gpu":
        typer.echo("\n".join(gpu_table.summary(records)))
    typer.echo(f"results: {path.resolve()}")
    # Wrong results are reported without --check too.
    broken = model_run.failed(records) if models else failed(records) if suite == "gpu" else []
    missed = targets.missed(suite, records) if check and not models else targets.wrong(records) + broken
    for sentence in missed:
        typer.echo(f"missed: {sentence}", err=True)
    if (check and missed) or broken:
        raise typer.Exit(1)


def _models_on_cpu(
    only: list[str],
    list_cells: bool,
    seconds: float | None,
    threads: int | None,
    busy: bool,
    smoke: bool,
    limit: float | None,
    turn: Path | None,
    results: Path | None,
    name: str | None,
) -> None:
    """`bench models --device cpu`."""
    specs = cpu_zoo.select(only)
    if list_cells:
        typer.echo("\n".join(map(str, specs)))
        return
    if threads is not None:
        torch.set_num_threads(threads)
    taken = quiet_enough(busy or smoke)
    chosen = (SMOKE_SECONDS if smoke else CPU_MODEL_SECONDS) if seconds is None else seconds
    head, records = on_cpu.run(specs, smoke, chosen, limit, turn)
    load = {"busy_before": round(taken, 3), "load_average": round(load_average(), 2)}
    console = Console()
    console.width = max(console.width, 150)
    console.print(on_cpu.table(records))
    path = write_results(
        results or default_folder(Path(".")),
        name or "models",
        header("burst") | head | {"load": load},
        records,
    )
    typer.echo(f"results: {path.resolve()}")
    failures = on_cpu.failed(records)
    for sentence in failures:
        typer.echo(f"missed: {sentence}", err=True)
    if failures:
        raise typer.Exit(1)


def quiet_enough(anyway: bool) -> float:
    """Returns the share of the CPUs' time that others take. Raises Error if it is too large, unless the
    measurement is wanted ``anyway``."""
    taken = busy_share()
    if taken > BUSY_LIMIT and not anyway:
        share = f"{100 * taken:.0f} % of its CPU time used by others"
        remedy = "wait until it is idle, or pass --busy and trust the ratios alone"
        raise Error("bench", "an idle machine", share, remedy)
    return taken


def run(
    suite: str, cells: list[Cell], seconds: float, busy: bool
) -> tuple[dict[str, Any], list[measure.Record]]:
    """Measures the cells and returns the head and the records of a results file.

    Raises Error when the machine is busy and `busy` is false.
    """
    taken = quiet_enough(busy)
    one = measure.measure_choice if suite == "cpu" else measure.measure_candidates
    cells = [cell for cell in cells if cell.dtype != "int8" or int8.runs_here()]
    records = []
    with torch.no_grad(), tqdm(cells, unit="cell", disable=None) as bar:
        for cell in bar:
            bar.set_postfix_str(str(cell))
            records.append((int8.measure_int8 if cell.dtype == "int8" else one)(cell, seconds))
    load = {
        "busy_before": round(taken, 3),
        "busy_after": round(busy_share(), 3),
        "load_average": round(load_average(), 2),
    }
    per_core = {key: round(rate) for key, rate in rates().items()}
    return header("burst") | {
        "suite": suite,
        "load": load,
        "seconds_per_cell": seconds,
        "rates_per_core": per_core,
    }, records


def table(suite: str, records: list[measure.Record]) -> Table:
    """Returns the table to print, with one row per cell."""
    if suite == model_run.SUITE:
        return model_run.table(records)
    if suite == "gpu":
        return gpu_table.table(records)
    last = (
        ["of peak", "GB/s", "to even rows", "over bf16", "torch bsr us"]
        if suite == "cpu"
        else ["best", "over best"]
    )
    out = Table("cell", "kernel", "us", "dense us", "speedup", *last)
    for column in out.columns:
        column.no_wrap = True
    for record in records:
        if suite == "cpu":
            peer = record["peers"].get("torch_bsr")
            over = record.get("over_balanced")
            tail = [
                f"{100 * record['share_of_peak']:.1f} %",
                f"{record['weight_gb_s']:.1f}" if record["rotated"] else "",
            ]
            tail += ["" if over is None else f"{over['median']:.2f}"]
            tail += [
                f"{record['over_bf16']['median']:.2f}" if "over_bf16" in record else "",
                "" if peer is None else f"{peer:.0f}",
            ]
        else:
            tail = [record["best"], f"{record['over_best']:.2f}"]
        spread = record["speedup_spread"]
        ratio = f"{record['speedup']:.2f} ({spread['p20']:.2f} to {spread['p80']:.2f})"
        times = [f"{record['us']['median']:.0f}", f"{record['dense_us']:.0f}", ratio]
        out.add_row(str(cell_of(record)), record["kernel"], *times, *tail)
    return out

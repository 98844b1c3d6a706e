"""Makes tables of a CPU's results files (bench/results/<cpu>/*.json)."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from cpu_goals import torch_limit
from generated import table
from gpu_tables import is_gpu
from result_files import Record, caption, runs_of

DIRECTIONS = ("forward", "dx", "dw")
DTYPES = {"f32": "fp32", "fp32": "fp32", "bf16": "bf16", "f16": "fp16", "fp16": "fp16", "int8": "int8"}


def cell(record: Record) -> tuple[Any, ...]:
    """Returns the key of what was measured: later measurements of the same cell replace earlier ones."""
    return (
        record["op"],
        DTYPES[record["dtype"]],
        DIRECTIONS.index(record["direction"]),
        record["m"],
        record["k"],
        record["n"],
        tuple(record["block"]),
        record["density"],
        record.get("pattern", ""),
    )


def load(folder: Path) -> dict[str, list[Record]]:
    """Returns the records of all CPU runs of one device by instruction set and threads.

    The setting with the most records comes first. Each cell has its newest record, with its run's caption, in
    the order of cells.
    """
    newest: dict[str, dict[tuple[Any, ...], Record]] = defaultdict(dict)
    for run in (run for run in runs_of(folder) if not is_gpu(run)):
        machine = run.get("machine", {})
        setting = f"{machine.get('isa', '?')}, {machine.get('threads', '?')} threads"
        if limit := torch_limit(run):
            setting += f", torch by {limit}"
        for record in run["records"]:
            if record.get("op") == "linear" and record.get("dense_us") and record.get("dtype") in DTYPES:
                newest[setting][cell(record)] = record | {"caption": caption(run), "date": str(run["date"])}
    by_size = sorted(newest.items(), key=lambda item: (-len(item[1]), item[0]))
    return {setting: [records[key] for key in sorted(records)] for setting, records in by_size}


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def record_row(record: Record) -> list[str]:
    dense, sparse = record["dense_us"], record["us"]["median"]
    speedup = dense / sparse
    shape = [
        f"{record['m']} x {record['k']} x {record['n']}",
        "{}x{}".format(*record["block"]),
        record.get("pattern", ""),
    ]
    torch_bsr = record.get("peers", {}).get("torch_bsr")
    return [
        DTYPES[record["dtype"]],
        record["direction"],
        *shape,
        f"{record['density']:g}",
        record["kernel"],
        f"{number(sparse)} ({number(record['us']['p20'])} to {number(record['us']['p80'])})",
        f"{100 * record['share_of_peak']:.0f} % {record['peak']}" if record.get("peak") else "-",
        number(dense),
        number(torch_bsr) if torch_bsr else "-",
        f"{speedup:.2f}x" + (" **slower**" if speedup < 1 else ""),
    ]


def record_table(records: list[Record]) -> str:
    columns = [
        "density",
        "kernel",
        "us (p20 to p80)",
        "of the peak",
        "dense us",
        "torch BSR us",
        "against dense",
    ]
    head = ["dtype", "direction", "tokens x in x out", "block", "pattern", *columns]
    return table(head, [record_row(record) for record in records])


def captions(records: list[Record]) -> str:
    """Returns the captions of the runs that these records come from, one a line."""
    return "\n".join(dict.fromkeys(record["caption"] for record in records))

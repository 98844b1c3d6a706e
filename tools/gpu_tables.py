"""Makes tables of a GPU's results files (bench/results/<gpu>/gpu*.json): one layer beside its peers, and the
whole list."""

import json
from collections.abc import Callable
from typing import Any

from generated import table

Record = dict[str, Any]
#: The product that is shown beside its peers: 8192 tokens, 4096 x 4096, bf16, forward, square blocks.
SHOWN = {"op": "linear", "direction": "forward", "dtype": "bf16", "m": 8192, "k": 4096, "n": 4096}
SHOWN_BLOCKS = (32, 64, 128)
DTYPES = {
    "f32": "fp32",
    "tf32": "tf32",
    "bf16": "bf16",
    "f16": "fp16",
    "fp8": "fp8",
    "fp8_promoted": "fp8, promoted",
}
#: The fields that tell one record from another.
NAMES = ("op", "name", "direction", "dtype", "m", "k", "n", "block", "density", "pattern")
DIRECTIONS = ("forward", "dx", "dw")
MODES = {"without_gradients": "without gradients", "with_gradients": "with gradients"}


def is_gpu(run: Record) -> bool:
    return run.get("suite") == "gpu"


def merged(runs: list[Record], caption: Callable[[Record], str]) -> Record:
    """Merges the runs of one GPU, oldest first: the newest record of everything that was measured, and the
    captions of the runs that are shown."""
    newest: dict[str, tuple[Record, Record]] = {}
    for run in runs:
        newest |= {
            json.dumps([record.get(name) for name in NAMES]): (record, run) for record in run["records"]
        }
    captions = dict.fromkeys(caption(run) for _, run in newest.values())
    return {
        "suite": "gpu",
        "gpu": runs[-1]["gpu"],
        "records": [record for record, _ in newest.values()],
        "caption": "\n".join(captions),
    }


def cells(run: Record) -> list[Record]:
    """Returns the run's cells in order: direction, dtype, shape, block, density. Cells that failed are
    included; they show their error."""
    found = [record for record in run["records"] if record["op"] == "linear"]
    return sorted(
        found,
        key=lambda r: (
            DIRECTIONS.index(r["direction"]),
            r["dtype"],
            -r["m"],
            r["k"],
            r["n"],
            r["block"],
            r["density"],
            r["pattern"],
        ),
    )


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def times(numerator: float, denominator: float | None) -> str:
    """Formats a speed-up; one below 1 is marked as slower."""
    if denominator is None:
        return "-"
    return f"{numerator / denominator:.2f}x" + (" **slower**" if numerator < denominator else "")


def peers_table(run: Record) -> str:
    """Returns time, and speed over dense and peers, by density for blocks of 32, 64 and 128; empty when the
    run has no such cell."""
    rows = []
    for record in cells(run):
        if "error" in record or any(record[key] != value for key, value in SHOWN.items()):
            continue
        if (
            record["block"][0] not in SHOWN_BLOCKS
            or record["block"][0] != record["block"][1]
            or record["pattern"] != "balanced"
        ):
            continue
        us, peers = record["us"]["median"], record["peers"]
        rows.append(
            [
                "{}x{}".format(*record["block"]),
                f"{record['density']:.3g}",
                record["kernel"],
                number(us),
                times(record["dense_us"], us),
                times(record["sustained"]["dense_us"], record["sustained"]["us"]),
                *(
                    "-" if peers.get(name) is None else times(peers[name], us)
                    for name in ("torch_bsr", "cusparse_ell")
                ),
            ]
        )
    if not rows:
        return ""
    head = [
        "block",
        "density",
        "kernel",
        "us",
        "against dense",
        "sustained",
        "against torch BSR",
        "against cuSPARSE",
    ]
    about = "{m} tokens, {k} x {n}, bf16, forward, balanced rows:".format(**SHOWN)
    return f"{about}\n\n{table(head, rows)}"


def host_line(run: Record) -> str:
    """Says the host overhead of a module call; empty when that was not measured."""
    for record in run["records"]:
        if record["op"] == "host" and "error" not in record:
            costs = (
                f"{record[mode]['us']['median']:.1f} us {words} (F.linear "
                f"{record[mode]['linear_us']['median']:.1f})"
                for mode, words in MODES.items()
            )
            size = "{m} tokens, {k} x {n}, {calls:,} unsynchronised calls".format(**record)
            return f"A module call costs the host {' and '.join(costs)}: {size}, median."
    return ""


def cell_row(record: Record) -> list[str]:
    shape = [
        f"{record['m']} x {record['k']} x {record['n']}",
        "{}x{}".format(*record["block"]),
        density(record),
    ]
    start = [DTYPES[record["dtype"]], record["direction"], *shape]
    if "error" in record:
        return [*start, f"failed: {record['error']}".replace("|", "/"), *[""] * 7]
    us, sustained = record["us"], record["sustained"]
    sparse = (
        "-" if record["sparse_us"] is None else f"{number(record['sparse_us'])} {record['sparse_kernel']}"
    )
    return [
        *start,
        record["kernel"],
        f"{number(us['median'])} ({number(us['p20'])} to {number(us['p80'])})",
        number(record["dense_us"]),
        times(record["dense_us"], us["median"]),
        times(sustained["dense_us"], sustained["us"]),
        "the same" if record["sparse_kernel"] == record["kernel"] else sparse,
        number(record["peers"].get("torch_bsr")),
        number(record["peers"].get("cusparse_ell")),
    ]


def density(record: Record) -> str:
    """Returns the density, with the pattern's name when it is not balanced."""
    return f"{record['density']:.3g}" + ("" if record["pattern"] == "balanced" else f" {record['pattern']}")


def page(run: Record, caption: str) -> str:
    """Returns every cell, and what no column can say."""
    head = [
        "dtype",
        "direction",
        "tokens x in x out",
        "block",
        "density",
        "kernel",
        "us (p20 to p80)",
        "dense us",
        "against dense",
        "sustained",
        "best sparse us",
        "torch BSR us",
        "cuSPARSE us",
    ]
    gpu = run["gpu"]
    shown = table(head, list(map(cell_row, cells(run))))
    machine = f"{gpu['name']}, driver {gpu['driver']}, L2 {gpu['l2_bytes'] / 2**20:.0f} MB"
    return "\n\n".join(part for part in (caption, machine, host_line(run), shown) if part)

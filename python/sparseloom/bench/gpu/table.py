"""The suite's records on the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ..cells import cell_of

HEAD = ("kernel", "us", "dense us", "speedup", "sustained", "best sparse us", "torch bsr us", "cusparse ell us")


def table(records: list[dict[str, Any]]) -> Table:
    """One row per cell; under it what a module call costs the host, when that was measured."""
    out = Table("cell", *HEAD)
    for column in out.columns:
        column.no_wrap = True
    for record in records:
        if record["op"] == "linear":
            out.add_row(str(cell_of(record)), *row(record))
        elif "error" not in record:
            out.caption = host_line(record)
    return out


def row(record: dict[str, Any]) -> list[str]:
    """HEAD's columns of one cell."""
    if "error" in record:
        return [record["error"], *[""] * (len(HEAD) - 1)]
    peers = ["-" if us is None else f"{us:.1f}" for us in (record["peers"].get(name) for name in ("torch_bsr", "cusparse_ell"))]
    sparse = "" if record["sparse_us"] is None else f"{record['sparse_us']:.1f} {record['sparse_kernel']}"
    wrong = "" if record["tile_excess"] <= 1 else f" WRONG x{record['tile_excess']:.3g}"
    return [
        record["kernel"] + wrong,
        f"{record['us']['median']:.1f}",
        f"{record['dense_us']:.1f}",
        f"{record['speedup']:.2f}",
        f"{record['sustained']['speedup']:.2f}",
        sparse,
        *peers,
    ]


def host_line(record: dict[str, Any]) -> str:
    """A record of op "host" in words."""
    modes = []
    for mode in ("without_gradients", "with_gradients"):
        ours, linear = record[mode]["us"]["median"], record[mode]["linear_us"]["median"]
        modes.append(f"{mode.replace('_', ' ')} {ours:.1f} us (F.linear {linear:.1f})")
    return f"host, one module call: {', '.join(modes)}"

"""Formats the suite's records for the terminal."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ..cells import cell_of
from ..timing import Spread
from . import attention_blocks, attention_group, cell_targets, goals, targets

HEAD = (
    "kernel",
    "us",
    "dense us",
    "speedup",
    "target",
    "sustained",
    "best sparse us",
    "torch bsr us",
    "cusparse ell us",
)


def table(records: list[dict[str, Any]]) -> Table:
    """Returns one row per cell, and as the caption the host overhead of a module call, when that was
    measured."""
    out = Table("cell", *HEAD)
    for column in out.columns:
        column.no_wrap = True
    for record in records:
        if record["op"] == "linear":
            out.add_row(str(cell_of(record)), *row(record))
        elif record["op"] in ("step", "mlp") and "error" not in record:
            tail = [""] * (len(HEAD) - 4)
            out.add_row(
                record["name"],
                "",
                f"{record['us']['median']:.1f}",
                f"{record['dense_us']:.1f}",
                f"{record['speedup']:.2f}",
                *tail,
            )
        elif record["op"].startswith("semi24"):
            out.add_row(record["name"], *semi24_row(record))
        elif record["op"] == attention_group.GROUP:
            out.add_row(record["name"], *attention_group.row(record))
        elif record["op"] == attention_blocks.GROUP:
            out.add_row(record["name"], *attention_blocks.row(record))
        elif record["op"] == "host" and "error" not in record:
            out.caption = host_line(record)
    return out


def row(record: dict[str, Any]) -> list[str]:
    """Returns HEAD's columns for one cell."""
    if "error" in record:
        return [record["error"], *[""] * (len(HEAD) - 1)]
    peers = [
        "-" if us is None else f"{us:.1f}"
        for us in (record["peers"].get(name) for name in ("torch_bsr", "cusparse_ell"))
    ]
    sparse = "" if record["sparse_us"] is None else f"{record['sparse_us']:.1f} {record['sparse_kernel']}"
    wrong = "" if record["tile_excess"] <= 1 else f" WRONG x{record['tile_excess']:.3g}"
    return [
        record["kernel"] + wrong,
        f"{record['us']['median']:.1f}",
        f"{record['dense_us']:.1f}",
        f"{record['speedup']:.2f}",
        target(record),
        f"{record['sustained']['speedup']:.2f}",
        sparse,
        *peers,
    ]


def semi24_row(record: dict[str, Any]) -> list[str]:
    """Returns HEAD's columns for a record of 2:4 weights, cuSPARSELt's best where the best sparse one
    stands."""
    empty = [""] * len(HEAD)
    if "error" in record:
        return [record["error"], *empty[1:]]
    us = f"{record['us']['median']:.1f}"
    if record["op"] == "semi24_prune":
        wrong = "" if record["same_bits"] else "WRONG"
        most, torchs = record["most_us"], record["torch_us"]
        beside = "" if torchs is None else f"{torchs:.1f} torch"
        return [wrong, us, "", "", "" if most is None else f"{most:g} us", "", beside, "", ""]
    if record["op"] == "semi24_train":
        speedups = f"{record['speedup']:.2f}", f"{record['least']['speedup']:g}"
        loaded, peers = f"{record['sustained']['speedup']:.2f}", record["peers"].items()
        beside = ", ".join(f"{peer:.1f} {name}" for name, peer in peers)
        return ["step", us, f"{record['dense_us']:.1f}", *speedups, loaded, beside, "", ""]
    wrong = "" if record["tile_excess"] <= 1 else f" WRONG x{record['tile_excess']:.3g}"
    peer = "" if record["peer"] is None else f"{record['peers'][record['peer']]:.1f} {record['peer']}"
    figures = f"{record['speedup']:.2f}", f"{record['goal']['dense']:g}"
    loaded = f"{record['sustained']['speedup']:.2f}"
    return [record["kernel"] + wrong, us, f"{record['dense_us']:.1f}", *figures, loaded, peer, "", ""]


def host_line(record: dict[str, Any]) -> str:
    """Puts a record of op "host" in words."""
    modes = []
    for mode in ("without_gradients", "with_gradients"):
        ours, linear = record[mode]["us"]["median"], record[mode]["linear_us"]["median"]
        modes.append(f"{mode.replace('_', ' ')} {ours:.1f} us (F.linear {linear:.1f})")
    return f"host, one module call: {', '.join(modes)}"


def target(record: dict[str, Any]) -> str:
    """Returns the target speed-up, over dense or as a share of the forward cell's ("of F"); empty when there
    is none."""
    goal = record["goal"]
    return "" if goal is None else f"{goal['figure']:g} of F" if goal["of_forward"] else f"{goal['figure']:g}"


def summary(records: list[dict[str, Any]]) -> list[str]:
    """Returns sentences on how the plan did over the cells and where the time of a run went; none when no
    cell was measured."""
    cells = [record for record in records if record["op"] == "linear" and "error" not in record]
    if not cells:
        return []
    good, many = (
        cell_targets.well_chosen(cells),
        sum(cell_targets.timed(record) >= goals.CANDIDATES for record in cells),
    )
    few = sum(len(record["candidates"]) < goals.CANDIDATES for record in cells)
    lines = [
        *targets.slowed(cells),
        f"the plan's choice is within {100 * (goals.WITHIN - 1):.0f} % "
        f"of the best in {good} of {len(cells)} cells",
        f"{goals.CANDIDATES} or more candidates timed in {many} of "
        f"{len(cells)} cells; fewer can run in {few}",
    ]
    if ratios := [record["over_predicted"] for record in cells if record["over_predicted"]]:
        spread = Spread.of(ratios)
        lines.append(
            f"measured over predicted time: {spread.median:.2f} ({spread.p20:.2f} to {spread.p80:.2f})"
        )
    spent: dict[str, float] = {}
    for record in cells:
        for part, seconds in record["seconds"].items():
            spent[part] = spent.get(part, 0.0) + seconds
    lines.append(f"seconds: {', '.join(f'{part} {seconds:.0f}' for part, seconds in spent.items())}")
    return lines

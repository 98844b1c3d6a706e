"""The targets of products on a GPU: checks the cells of a run, its records of linear products, and returns
sentences on what they miss. The figures are in goals.py."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..cells import Cell, cell_of
from ..skewed import KINDS
from . import goals
from .groups import compared

Record = dict[str, Any]

#: Above this density any candidate counts against torch BSR; up to it, only sparse kernels do.
SPARSE_UP_TO = 0.3
DECODE_TOKENS = 64
#: The least speed over torch BSR's: FASTER for blocks of 16 and 32 and for every decode cell, COARSE_AT_LEAST
#: for the larger blocks.
FASTER, COARSE_AT_LEAST, COARSE_BLOCK = 1.0, 0.7, 64
SPARSER_AT_MOST = 0.6  # the most time at density .05 over the time at .2
OF_DENSE = 0.95
#: The rms over a tile's n errors is itself uncertain by 1 / sqrt(2 n), and the ratio of two by 1 / sqrt(n).
#: The worst of 10^4 tiles lies 4 of these above.
NOISE = 5.0


def missed_by(cells: list[Record]) -> list[str]:
    """Returns a sentence for every target that these cells miss."""
    return [
        *not_repeated(cells),
        *below_goal(cells),
        *less_accurate(cells),
        *unbalanced(cells),
        *behind_torch_bsr(cells),
        *not_sparser(cells),
        *slower_than_dense(cells),
        *badly_planned(cells),
    ]


def not_repeated(cells: Iterable[Record]) -> list[str]:
    """Returns sentences on sparse kernels whose results on equal operands differ. `dense` is exempt: it calls
    cuBLAS, which promises no equal bits."""
    return [
        f"{cell_of(record)} by {each['kernel']}: results of equal operands differ"
        for record in cells
        for each in record["candidates"]
        if each["kernel"] != "dense" and each.get("same_bits") is False
    ]


def below_goal(cells: list[Record]) -> list[str]:
    """Returns sentences on cells that miss their speed-up in the table of goals, in bursts or under load.

    dx is compared with the forward cell of the same run and is skipped where that was not measured.
    """
    speeds = {cell_of(record): record["speedup"] for record in cells}
    sentences = []
    for record in cells:
        cell = cell_of(record)
        goal = goals.goal(cell)
        if goal is None:
            continue
        base = (
            speeds.get(Cell("forward", cell.dtype, cell.m, cell.k, cell.n, cell.block, cell.density))
            if goal.of_forward
            else 1.0
        )
        if base is None:
            continue
        least = goal.least * base
        of_what = f"{goal.figure:g} of forward's {base:.2f}x" if goal.of_forward else f"{goal.figure:g}x"
        if record["speedup"] < least:
            sentences.append(
                f"{cell}: {record['kernel']} is {record['speedup']:.2f}x as fast as dense, target {of_what}"
            )
        sustained = record["sustained"]["speedup"]
        if sustained < goals.SUSTAINED * least:
            sentences.append(
                f"{cell}: {record['kernel']} sustains {sustained:.2f}x, target {goals.SUSTAINED} of {of_what}"
            )
    return sentences


def less_accurate(cells: Iterable[Record]) -> list[str]:
    """Compares fp32 errors with those of cuBLAS fp32 on the same matrix, where a record has them."""
    sentences = []
    for record in cells:
        found = record.get("accuracy")
        if found is None or goals.goal(cell_of(record)) is None:
            continue
        most = goals.RMS_OVER_DENSE + NOISE / math.sqrt(found["tile_elements"])
        if not (found["median_tile_rms"] <= goals.RMS_OVER_DENSE and found["worst_tile_rms"] <= most):
            over = f"{found['median_tile_rms']:.3f} (median tile), {found['worst_tile_rms']:.3f} (worst)"
            limits = f"target {goals.RMS_OVER_DENSE:g} and with the tile's noise {most:.2f}"
            sentences.append(f"{cell_of(record)}: rms error {over} of cuBLAS fp32's, {limits}")
        if not found["largest"] <= goals.MAX_OVER_DENSE:
            over = f"{found['largest']:.2f} of cuBLAS fp32's"
            sentences.append(f"{cell_of(record)}: largest error {over}, target {goals.MAX_OVER_DENSE:g}")
    return sentences


def over_balanced(record: Record, balanced: Record) -> float:
    """Returns the time per stored element over that of the balanced pattern, each relative to the dense
    product timed beside it."""
    cost, base = (each["us"]["median"] / each["dense_us"] / each["stored"] for each in (record, balanced))
    return float(cost / base)


def unbalanced(cells: list[Record]) -> list[str]:
    """Compares skewed rows with balanced ones of the same density."""
    by_cell = {cell_of(record): record for record in cells}
    sentences = []
    for cell, record in by_cell.items():
        even = by_cell.get(Cell(cell.direction, cell.dtype, cell.m, cell.k, cell.n, cell.block, cell.density))
        if cell.pattern in KINDS and even is not None:
            ratio = over_balanced(record, even)
            if ratio > goals.OVER_BALANCED:
                sentences.append(
                    f"{cell}: {ratio:.2f} of a balanced pattern's time, target <= {goals.OVER_BALANCED}"
                )
    return sentences


def behind_torch_bsr(cells: Iterable[Record]) -> list[str]:
    """Compares bf16 forward with torch BSR, in square blocks of the compared sides and on the compared
    shapes."""
    sentences = []
    for record in cells:
        cell = cell_of(record)
        if not compared(cell):
            continue
        peer = record["peers"].get("torch_bsr")
        if peer is None:
            sentences.append(
                f"{cell}: torch BSR was not measured: "
                f"{record['peers_absent'].get('torch_bsr', 'no reason given')}"
            )
            continue
        if cell.density <= SPARSE_UP_TO:
            kernel, us = record["sparse_kernel"], record["sparse_us"]
        else:
            kernel = record["best"]
            us = next(each["us"]["median"] for each in record["candidates"] if each["kernel"] == kernel)
        if us is None:
            sentences.append(f"{cell}: no sparse kernel ran")
            continue
        coarse = cell.block[0] >= COARSE_BLOCK and cell.m > DECODE_TOKENS
        least = COARSE_AT_LEAST if coarse else FASTER
        if peer / us < least:
            sentences.append(f"{cell}: {kernel} has {peer / us:.2f} of torch BSR's speed, target {least:g}")
    return sentences


def not_sparser(cells: Iterable[Record]) -> list[str]:
    """Compares sparse kernels' bf16 forward at density .05 with density .2, in the layers of 8192 tokens."""
    times = {cell_of(record): record["sparse_us"] for record in cells}
    sentences = []
    for low, us in times.items():
        high = Cell("forward", "bf16", low.m, low.k, low.n, low.block, 0.2)
        if replace(low, density=0.2) != high or low.density != 0.05 or low.m != goals.SQUARE[0]:
            continue
        if us is not None and times.get(high) is not None and us > SPARSER_AT_MOST * times[high]:
            sentences.append(
                f"{low}: {us / times[high]:.2f} of the time at density "
                f"{high.density:g}, target <= {SPARSER_AT_MOST}"
            )
    return sentences


def slower_than_dense(cells: Iterable[Record]) -> list[str]:
    """Compares the plan's choice with torch's dense product, in bursts, in cells for which the table asks for
    no speed-up."""
    sentences = []
    for record in cells:
        goal = goals.goal(cell_of(record))
        if record["speedup"] < OF_DENSE and (goal is None or goal.of_forward):
            how = f"{record['kernel']} has {record['speedup']:.2f} of dense's speed"
            sentences.append(f"{cell_of(record)}: {how}, target {OF_DENSE}")
    return sentences


def timed(record: Record) -> int:
    return sum("us" in each for each in record["candidates"])


def well_chosen(cells: Iterable[Record]) -> int:
    """Returns in how many cells the plan's choice was within 5 % of the fastest."""
    return sum(record["over_best"] <= goals.WITHIN for record in cells)


def badly_planned(cells: list[Record]) -> list[str]:
    """Returns sentences where fewer candidates were timed than should be, and when too few choices were among
    the fastest."""
    sentences = []
    for record in cells:
        can_run = len(record["candidates"])
        if timed(record) < min(goals.CANDIDATES, can_run):
            some = f"{timed(record)} of the {can_run} candidates that can run were timed"
            sentences.append(f"{cell_of(record)}: {some}, target {goals.CANDIDATES}")
    if well_chosen(cells) < goals.IN_SHARE * len(cells):
        share, within = 100 * well_chosen(cells) / len(cells), 100 * (goals.WITHIN - 1)
        words = f"the plan's choice is within {within:.0f} % of the best in {share:.0f} % of the cells"
        sentences.append(f"{words}, target {100 * goals.IN_SHARE:.0f} %")
    return sentences

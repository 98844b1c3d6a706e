"""Prints a report in lines of at most WIDTH columns: what was found, the whole model, and a row for each
group of equal layers."""

from __future__ import annotations

import os
import textwrap
from typing import TextIO

from ..timing.busy import loud
from .groups import Group, grouped
from .result import LayerReport, ModelReport, Report
from .ways import MORE_WAYS
from .words import (
    DIRECTIONS,
    byte_words,
    even_words,
    hidden_words,
    host_words,
    kernel_words,
    legend,
    parameter_words,
    quality_words,
    unit_of,
)

WIDTH = 100
_INDENT = "  "
_CELLS = 8  # of a bar: the dense twin's time
#: Widths of the columns: group, size, dense, sparse, bar, ratio, kernel, break-even.
_WIDTHS = (26, 17, 8, 9, _CELLS, 6, 13, 5)
_GREEN, _RED, _BOLD, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[1m", "\x1b[0m"


def text(report: Report, colour: bool = False) -> str:
    """Returns the report as text: a warning on a busy machine, what was found, the whole model, the groups of
    layers, their notes and the legend; in ``colour``, with the escapes of a terminal."""
    groups, hidden = grouped(report.layers)
    headline = _wrapped("", report.headline)
    parts = [
        *_wrapped("", loud(report.lost)),
        *([f"{_BOLD}{line}{_PLAIN}" for line in headline] if colour else headline),
        *_whole(report, colour),
        *_groups(groups, colour),
        *_wrapped(_INDENT, hidden_words(len(hidden))),
        *_wrapped("", legend(report, any(len(group.names) > 1 for group in groups))),
    ]
    return "\n".join(parts)


def on_terminal(stream: TextIO) -> bool:
    """Returns whether a stream is a terminal that wants colours (https://no-color.org)."""
    is_terminal = callable(getattr(stream, "isatty", None)) and stream.isatty()
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def elided(name: str, width: int) -> str:
    """Shortens a name in its middle to at most ``width`` columns, at least 5: models' names differ at both
    ends."""
    if len(name) <= width:
        return name
    head = (width - 2) // 2
    return f"{name[:head]}..{name[-(width - 2 - head) :]}"


def bar(entry: LayerReport | ModelReport, direction: str, cells: int = _CELLS) -> str:
    """Returns the time beside that of the dense twin, which is as long as all cells; '>' goes beyond it."""
    speedup = entry.speedups.get(direction)
    if not speedup:
        return ""
    share = 1 / speedup
    if share > 1:
        return "#" * (cells - 1) + (">" if round(cells * share) > cells else "#")
    filled = max(1, round(cells * share))
    return "#" * filled + "." * (cells - filled)


def _whole(report: Report, colour: bool) -> list[str]:
    model, lines = report.model or ModelReport(None), []
    rows = [(model, direction, direction) for direction in (*DIRECTIONS, *MORE_WAYS)]
    for size in report.batches:
        rows += [(size, way, f"{way}, {rows_words(size)}") for way in (*DIRECTIONS, *MORE_WAYS)]
    measured = [row for row in rows if row[0].times and row[1] in row[0].times]
    if measured:
        unit = unit_of([entry for entry, _, _ in measured])
        lines.append(_head("whole model", "", unit.name))
        for entry, direction, name in measured:
            lines += _row(entry, direction, f"{_INDENT}{name}", "", unit.factor, colour)
    for size in report.batches:
        missing = "" if size.times else f"{rows_words(size)}: not measured; "
        if missing or size.note:
            lines += _wrapped(_INDENT, missing + size.note)
    lines += _wrapped(_INDENT, host_words(model)) + _wrapped(_INDENT, model.note)
    if report.totals is not None:
        lines += _wrapped(f"{_INDENT}parameters  ", parameter_words(report.totals))
        lines += _wrapped(f"{_INDENT}bytes       ", byte_words(report.totals))
    return [*lines, *_wrapped(f"{_INDENT}quality     ", quality_words(report.quality))]


def rows_words(size: ModelReport) -> str:
    """Returns the size of a batch as text."""
    return "1 row" if size.batch == 1 else f"{size.batch} rows"


def _groups(groups: list[Group], colour: bool) -> list[str]:
    if not groups:
        return []
    unit = unit_of([group.entry for group in groups])
    lines, notes = [_head("layers", "size", unit.name)], list[str]()
    for group in groups:
        entry = group.entry
        count = f"{len(group.names)} x " if len(group.names) > 1 else ""  # "1 x 0" reads as a size
        title, size = f"{count:>6}{joined_name(group.names)}", size_words(entry)
        fits = len(title) <= _WIDTHS[0] and len(size) <= _WIDTHS[1]
        directions = [way for way in DIRECTIONS if entry.times and way in entry.times]
        if not fits:  # a line of their own: what is cut out of a name may be all that tells two apart
            kernels = "" if directions else kernel_words(entry, "")
            words = f"{title}  {size}" + (f"  {kernels}" if kernels else "")
            lines += textwrap.wrap(words, WIDTH, subsequent_indent=" " * 6)
        elif not directions:
            directions = [""]
        for number, direction in enumerate(directions):
            name, told = (title, size) if fits and not number else (f"{'':6}{direction}", "")
            lines += _row(entry, direction, name, told, unit.factor, colour)
        if entry.note:
            notes += _wrapped(_INDENT, f"{joined_name(group.names)}: {entry.note}")
    return lines + notes


def joined_name(names: list[str]) -> str:
    """Returns the name of a layer, or the first and the last of several with what they share said once."""
    first, last = names[0], names[-1]
    if len(names) == 1:
        return first
    here, there = first.split("."), last.split(".")
    same = [i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b]
    if len(here) != len(there) or len(same) != 1:
        return f"{first} .. {last}"
    here[same[0]] = f"{here[same[0]]}-{there[same[0]]}"
    return ".".join(here)


def size_words(entry: LayerReport) -> str:
    """Returns shape, block or layout, and density, in as few columns as they take."""
    block = "" if entry.block is None else f"{entry.block[0]}x{entry.block[1]}"
    if entry.block is not None and entry.block[0] == entry.block[1]:
        block = f"b{entry.block[0]}"
    density = "" if entry.density is None else f"{entry.density:.2g}".removeprefix("0")
    parts = "x".join(map(str, entry.shape)), block or (entry.layout or ""), density
    return " ".join(part for part in parts if part)


def _head(name: str, size: str, unit: str) -> str:
    cells = (name, size, f"dense {unit}", f"sparse {unit}", "0  dense", "ratio", "kernel", "even")
    return _line(list(cells))


def _row(
    entry: LayerReport | ModelReport, direction: str, name: str, size: str, factor: float, colour: bool
) -> list[str]:
    """Returns the line of one direction, and below it the kernels that are too long for their column."""
    ours, dense = ((times or {}).get(direction) for times in (entry.times, entry.dense_times))
    speedup, undecided = entry.speedups.get(direction), direction in entry.undecided
    kernels, even, below = "", "", []
    if isinstance(entry, LayerReport):
        kernels = kernel_words(entry, direction)
        even = even_words(entry.break_even[direction]) if direction in entry.break_even else ""
    if len(kernels) > _WIDTHS[6]:
        at_kernel = WIDTH - _WIDTHS[7] - 1
        kernels, below = "", [each.rjust(at_kernel) for each in textwrap.wrap(kernels, at_kernel - 8)]
    numbers = ["" if us is None else f"{us * factor:,.{_digits(us * factor)}f}" for us in (dense, ours)]
    ratio = "" if speedup is None else f"{'~' if undecided else ''}{speedup:.{2 if speedup < 10 else 0}f}x"
    cells = [name, size, *numbers, bar(entry, direction), ratio, kernels, even]
    shade = "" if speedup is None or undecided else _GREEN if speedup > 1 else _RED
    return [_line(cells, shade if colour else ""), *below]


def _digits(number: float) -> int:
    return 0 if number >= 100 else 1 if number >= 10 else 2


def _line(cells: list[str], shade: str = "") -> str:
    fitted = []
    for at, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True)):
        cell = cell.rjust(width) if at in (2, 3, 5, 7) else cell.ljust(width)
        fitted.append(f"{shade}{cell}{_PLAIN}" if shade and at in (4, 5) else cell)
    return " ".join(fitted).rstrip()


def _wrapped(start: str, words: str) -> list[str]:
    """Returns the words after ``start``, wrapped to lines; no line if there are no words."""
    return textwrap.wrap(
        words, WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
    )

"""Prints a report in lines of at most WIDTH columns: the whole model first, then its layers, equal ones
together."""

from __future__ import annotations

import textwrap

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
    legend,
    parameter_words,
    time_words,
)

WIDTH = 100
_INDENT = " " * 6


def text(report: Report) -> str:
    """Returns the report as text: a warning on a busy machine, totals, batch sizes, layers and the legend."""
    groups, hidden = grouped(report.layers)
    parts = [
        *_wrapped("", loud(report.lost)),
        *_totals(report),
        *_batches(report.batches),
        *(line for group in groups for line in _group(group)),
        *_wrapped(_INDENT, hidden_words(len(hidden))),
        *_wrapped("", legend(report, any(len(group.names) > 1 for group in groups))),
    ]
    return "\n".join(parts)


def elided(name: str, width: int) -> str:
    """Shortens a name in its middle to at most ``width`` columns, at least 5: models' names differ at both
    ends."""
    if len(name) <= width:
        return name
    head = (width - 2) // 2
    return f"{name[:head]}..{name[-(width - 2 - head) :]}"


def _totals(report: Report) -> list[str]:
    lines = ["whole model, dense twin -> sparse"]
    if report.model is not None:
        lines += _times(report.model) + _wrapped(_INDENT, host_words(report.model))
        lines += _wrapped(_INDENT, report.model.note)
    if report.totals is not None:
        lines += _wrapped(f"{_INDENT}parameters  ", parameter_words(report.totals))
        lines += _wrapped(f"{_INDENT}bytes       ", byte_words(report.totals))
    return lines if len(lines) > 1 else []


def _batches(batches: list[ModelReport]) -> list[str]:
    lines = ["whole model by first dimension"] if batches else []
    for batch in batches:
        first, *more_lines = _times(batch) or [f"{_INDENT}not measured"]
        lines += [f"{batch.batch:>5} {first[len(_INDENT) :]}", *more_lines, *_wrapped(_INDENT, batch.note)]
    return lines


def _group(group: Group) -> list[str]:
    entry, names = group.entry, group.names
    kind = f" ({elided(entry.kind, 20)})"
    room = WIDTH - len(_INDENT) - len(kind)
    if len(names) == 1:
        title = elided(names[0], room)
    else:
        title = " .. ".join(elided(name, (room - 4) // 2) for name in (names[0], names[-1]))
    about = [
        " x ".join(map(str, entry.shape)),
        "" if entry.block is None else f"blocks {entry.block[0]}x{entry.block[1]}",
        "" if entry.layout is None else f"layout {entry.layout}",
        "" if entry.density is None else f"density {entry.density:.3g}",
        f"{entry.tokens} tokens of {entry.dtype}" if entry.tokens else "",
        f"input {' x '.join(map(str, entry.x_shape))} of {entry.dtype}" if entry.x_shape else "",
        byte_words(entry) + (" in all" if len(names) > 1 else ""),
    ]
    return [
        f"{len(names):>3} x {title}{kind}",
        *_wrapped(_INDENT, ", ".join(part for part in about if part)),
        *_times(entry),
        *_wrapped(_INDENT, entry.note),
    ]


def _times(entry: LayerReport | ModelReport) -> list[str]:
    """Returns a line for each measured direction: its times, and for a layer its kernels and break-even."""
    lines = []
    for direction in (*DIRECTIONS, *MORE_WAYS):
        words = [time_words(entry, direction)]
        if isinstance(entry, LayerReport):
            words.append(_kernels(entry, direction))
            if direction in entry.break_even:
                words.append(f"break-even {even_words(entry.break_even[direction])}")
        if words[0]:
            lines += _wrapped(f"{_INDENT}{direction:<12}", "; ".join(word for word in words if word))
    return lines


def _kernels(layer: LayerReport, direction: str) -> str:
    products = ("forward",) if direction == "forward" else ("dx", "dw")
    kernels = {product: layer.kernels[product] for product in products if product in layer.kernels}
    if len(set(kernels.values())) < 2:
        return next(iter(kernels.values()), "")
    return ", ".join(f"{product} {kernel}" for product, kernel in kernels.items())


def _wrapped(start: str, words: str) -> list[str]:
    """Returns the words after ``start``, wrapped to lines; no line if there are no words."""
    return textwrap.wrap(
        words, WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
    )

"""Renders a report as HTML: tables and a picture of every pattern."""

from __future__ import annotations

import html

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

Rows = list[list[str]]

_MODEL_HEAD = ["", "parameters", "bytes", "forward", "backward", "compiled", "graph", "note"]
_BATCH_HEAD = ["first dimension", "forward", "backward", "note"]
_HEAD = [
    *("layers", "names", "kind", "shape", "block or layout", "density", "bytes"),
    *("kernels", "forward", "backward", "break-even", "note"),
]


def fragment(report: Report) -> str:
    """Returns one <section>, self-contained: it has no scripts and fetches nothing."""
    groups, hidden = grouped(report.layers)
    figures = "".join(
        f"<figure style='display:inline-block;margin:8px'>{layer.pattern.svg(160)}"
        f"<figcaption>{html.escape(layer.name or 'model')}, density "
        f"{layer.pattern.density:.3g}</figcaption></figure>"
        for layer in report.layers
        if layer.pattern is not None
    )
    tables = _table(_MODEL_HEAD, _model_rows(report))
    tables += _table(
        _BATCH_HEAD, [[str(batch.batch), *_times(batch), batch.note] for batch in report.batches]
    )
    tables += _table(_HEAD, [_group_row(group) for group in groups])
    busy = f"<p><strong>{html.escape(words)}</strong></p>" if (words := loud(report.lost)) else ""
    note = f"<p>{html.escape(legend(report, any(len(group.names) > 1 for group in groups)))}</p>"
    return f"<section class='sparseloom-report'>{busy}{tables}{_untouched(hidden)}{note}{figures}</section>"


def _model_rows(report: Report) -> Rows:
    totals, model = report.totals, report.model or ModelReport(None)
    if totals is None:
        return []
    times = [*_times(model), *(time_words(model, way) for way in MORE_WAYS)]
    note = "; ".join(words for words in (host_words(model), model.note) if words)
    return [["whole model", parameter_words(totals), byte_words(totals), *times, note]]


def _group_row(group: Group) -> list[str]:
    entry, names = group.entry, group.names
    return [
        str(len(names)),
        names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}",
        entry.kind,
        " x ".join(str(side) for side in entry.shape),
        entry.layout or "" if entry.block is None else f"{entry.block[0]}x{entry.block[1]}",
        "" if entry.density is None else f"{entry.density:.3g}",
        byte_words(entry),
        " ".join(dict.fromkeys(entry.kernels.values())),
        *_times(entry),
        " / ".join(even_words(density) for density in entry.break_even.values()),
        entry.note,
    ]


def _times(entry: LayerReport | ModelReport) -> list[str]:
    return [time_words(entry, direction) for direction in DIRECTIONS]


def _untouched(hidden: list[LayerReport]) -> str:
    if not hidden:
        return ""
    names = ", ".join(layer.name or "model" for layer in hidden)
    return f"<details><summary>{hidden_words(len(hidden))}</summary><p>{html.escape(names)}</p></details>"


def _table(head: list[str], rows: Rows) -> str:
    if not rows:
        return ""
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"

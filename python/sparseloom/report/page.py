"""Renders a report as HTML: the tables and a picture of every pattern."""

from __future__ import annotations

import html

from ..timing.busy import loud
from .result import Report
from .table import Rows, batch_table, legend, table


def fragment(report: Report) -> str:
    """Returns one <section>, self-contained: it has no scripts and fetches nothing."""
    figures = "".join(
        f"<figure style='display:inline-block;margin:8px'>{layer.pattern.svg(160)}"
        f"<figcaption>{html.escape(layer.name or 'model')}, density "
        f"{layer.pattern.density:.3g}</figcaption></figure>"
        for layer in report.layers
        if layer.pattern is not None
    )
    tables = _table(*table(report)) + (_table(*batch_table(report)) if report.batches else "")
    busy = f"<p><strong>{html.escape(words)}</strong></p>" if (words := loud(report.lost)) else ""
    told = f"<p>{html.escape(legend(report))}</p>"
    return f"<section class='sparseloom-report'>{busy}{tables}{told}{figures}</section>"


def _table(head: list[str], rows: Rows) -> str:
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"

"""Makes the tables of a report, as rows of cells and as text."""

from __future__ import annotations

import io

from ..timing.busy import loud
from .result import LayerReport, ModelReport, Report

Rows = list[list[str]]

_HEAD = [
    *(
        "layer",
        "kind",
        "shape",
        "block",
        "density",
        "bytes",
        "kernel",
        "forward us",
        "backward us",
        "break-even",
        "note",
    ),
]
_BATCH_HEAD = ["first dimension", "forward us", "backward us", "note"]


def text(report: Report) -> str:
    """Returns all tables and the legend, with rich where it is installed."""
    parts = [loud(report.lost), _drawn(*table(report))]
    if report.batches:
        parts.append(_drawn(*batch_table(report)))
    return "\n".join(part for part in (*parts, legend(report)) if part)


def table(report: Report) -> tuple[list[str], Rows]:
    """Returns head and rows: the layers, then the whole model."""
    rows = [_layer_row(layer) for layer in report.layers]
    if report.totals is not None:
        rows.append(_total_row(report))
    return _HEAD, rows


def batch_table(report: Report) -> tuple[list[str], Rows]:
    """Returns head and rows: the whole model by batch size."""
    return _BATCH_HEAD, [_batch_row(batch) for batch in report.batches]


def legend(report: Report) -> str:
    """Says what the columns mean, and where they were measured."""
    words = (
        f"{report.machine}, {report.threads} CPU threads. us: median of "
        "one call, sparse / dense twin, interleaved, warm; "
        "= the rounds' median ratio (20th to 80th percentile), no difference shown where those hold 1; "
        "backward is everything that needs a gradient."
    )
    if any(layer.break_even for layer in report.layers):
        words += (
            " Break-even: density above which dense is faster, forward / "
            "backward, from predictions scaled to the time measured."
        )
    return words


def _layer_row(layer: LayerReport) -> list[str]:
    block = "" if layer.block is None else f"{layer.block[0]}x{layer.block[1]}"
    density = "" if layer.density is None else f"{layer.density:.3g}"
    return [
        layer.name or "model",
        layer.kind,
        " x ".join(str(side) for side in layer.shape),
        block,
        density,
        _of(size(layer.bytes), size(layer.dense_bytes)),
        " ".join(dict.fromkeys(layer.kernels.values())),
        *(_time(layer, direction) for direction in ("forward", "backward")),
        " / ".join("never" if even is None else f"{even:.2f}" for even in layer.break_even.values()),
        layer.note,
    ]


def _total_row(report: Report) -> list[str]:
    totals, model = report.totals, report.model or ModelReport(None)
    assert totals is not None
    left_out = 1 - totals.parameters / max(1, totals.dense_parameters)
    note = (
        f"{100 * totals.sparse_share:.0f} % of the parameters in "
        f"sparse layers, {100 * left_out:.0f} % left out"
    )
    return [
        "total",
        "",
        _of(_count(totals.parameters), _count(totals.dense_parameters)) + " parameters",
        "",
        "",
        _of(size(totals.bytes), size(totals.dense_bytes)),
        "",
        *(_time(model, direction) for direction in ("forward", "backward")),
        "",
        "; ".join(part for part in (note, model.note) if part),
    ]


def _batch_row(batch: ModelReport) -> list[str]:
    return [str(batch.batch), *(_time(batch, direction) for direction in ("forward", "backward")), batch.note]


def _time(entry: LayerReport | ModelReport, direction: str) -> str:
    times, dense_times = entry.times, entry.dense_times
    if times is None or direction not in times:
        return ""
    if dense_times is None or direction not in dense_times:
        return f"{times[direction]:.0f}"
    words = f"{times[direction]:.0f} / {dense_times[direction]:.0f} = {entry.speedups[direction]:.2f}x"
    ratio = entry.ratios.get(direction)
    return words if ratio is None else words + ratio.words


def _of(ours: str, dense: str) -> str:
    return ours if ours == dense else f"{ours} / {dense}"


def size(count: float) -> str:
    """Formats a number of bytes."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _count(number: float) -> str:
    for unit in ("", "k"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:,.3g}M" if number < 1000 else f"{number:,.0f}M"


def _drawn(head: list[str], rows: Rows) -> str:
    try:
        return _rich_table(head, rows)
    except ImportError:  # the cli extra is not installed
        return _plain_table(head, rows)


def _plain_table(head: list[str], rows: Rows) -> str:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]
    ]
    return "\n".join(line.rstrip() for line in lines)


def _rich_table(head: list[str], rows: Rows) -> str:
    from rich.console import Console
    from rich.table import Table

    drawn = Table(*head)
    for row in rows:
        drawn.add_row(
            *row, style="yellow" if row[-1].startswith("slower") else "bold" if row[0] == "total" else None
        )
    # The table is wide enough for every cell: a cut kernel name says nothing.
    buffer = io.StringIO()
    Console(
        file=buffer, width=sum(max(len(row[i]) for row in [head, *rows]) + 3 for i in range(len(head))) + 1
    ).print(drawn)
    return buffer.getvalue().rstrip()

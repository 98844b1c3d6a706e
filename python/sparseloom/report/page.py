"""Renders a report as HTML that one can send on: what was found, bars of the whole model, the groups of
layers, their patterns, advice, and the machine."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from ..timing.busy import loud
from .groups import Group, grouped
from .result import LayerReport, ModelReport, Report
from .style import STYLE
from .text import joined_name, rows_words
from .ways import MORE_WAYS
from .words import (
    DIRECTIONS,
    byte_words,
    duration,
    even_words,
    hidden_words,
    host_words,
    kernel_words,
    legend,
    parameter_words,
    quality_words,
)

#: Patterns that are drawn: those of the first groups. A model of many sizes would fill screens with them.
_FIGURES, _PIXELS = 12, 160
#: A bar that is as long as its column stands for this many times the dense twin's time.
_FULL = 1.5
_TITLES = {
    "forward": "forward, eager",
    "backward": "backward, eager",
    "compiled": "forward, torch.compile",
    "exported": "forward, AOTInductor",
    "graph": "forward, CUDA graph",
}


def page(report: Report, title: str) -> str:
    """Returns a whole page."""
    head = "<meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>"
    dark = "@media (prefers-color-scheme:dark){body{background:#12161b}}"
    style = f"<style>body{{margin:0;background:#ffffff}}{dark}</style>"
    return (
        f"<!DOCTYPE html>\n<html lang='en'><head>{head}<title>{html.escape(title)}</title>{style}</head>"
        f"<body>{fragment(report)}</body></html>\n"
    )


def fragment(report: Report) -> str:
    """Returns one <section>, self-contained: it has no scripts and fetches nothing."""
    groups, hidden = grouped(report.layers)
    busy = (
        f"<p class='busy'><strong>{html.escape(words)}</strong></p>" if (words := loud(report.lost)) else ""
    )
    told = legend(report, any(len(group.names) > 1 for group in groups))
    return (
        f"<section class='sparseloom-report'><style>{STYLE}</style>{busy}"
        f"<h1>{html.escape(report.headline)}</h1>{_whole(report)}{_layers(groups)}{_untouched(hidden)}"
        f"{_patterns(report, groups)}{_advice(report)}<h2>Machine and measurement</h2>{_soft(told)}</section>"
    )


def _whole(report: Report) -> str:
    model = report.model or ModelReport(None)
    ways = [_way(model, way, _TITLES[way]) for way in (*DIRECTIONS, *MORE_WAYS)]
    for size in report.batches:
        ways += [_way(size, way, f"{_TITLES[way]}, {rows_words(size)}") for way in (*DIRECTIONS, *MORE_WAYS)]
        missing = "" if size.times else f"{rows_words(size)}: not measured. "
        ways.append(_soft(missing + size.note))
    sizes = ""
    if report.totals is not None:
        told = {"parameters": parameter_words(report.totals), "bytes": byte_words(report.totals)}
        told |= {"quality": quality_words(report.quality)} if report.quality else {}
        sizes = "".join(f"<p><b>{name}</b> {html.escape(words)}</p>" for name, words in told.items())
    notes = _soft(host_words(model)) + _soft(model.note)
    return f"<h2>Whole model</h2>{''.join(ways)}{notes}{sizes}"


def _way(model: ModelReport, way: str, title: str) -> str:
    """Returns the two bars of one way to call the model."""
    if not model.times or way not in model.times:
        return ""
    ours, dense = model.times[way], (model.dense_times or {}).get(way)
    longest = max(ours, dense or 0.0)
    rows = [("dense", dense, " of-dense"), ("sparse", ours, "")]
    bars = "".join(
        f"<span>{name}</span><span><span class='bar{kind}' style='width:{100 * us / longest:.1f}%'></span>"
        f"</span><span class='num'>{duration(us)}</span>"
        for name, us, kind in rows
        if us is not None
    )
    head = f"<b>{html.escape(title)}</b>{_ratio(model, way)}"
    return f"<div class='way'>{head}<div class='pair'>{bars}</div></div>"


def _ratio(entry: LayerReport | ModelReport, direction: str) -> str:
    """Returns the ratio with its spread, coloured where a difference was shown."""
    speedup = entry.speedups.get(direction)
    if speedup is None:
        return ""
    ratio = entry.ratios.get(direction)
    spread = "" if ratio is None else f" ({ratio.p20:.2f} to {ratio.p80:.2f})"
    if direction in entry.undecided:
        return f"<span>{speedup:.2f}x{spread}, no difference shown</span>"
    kind = "good" if speedup > 1 else "bad"
    return f"<span><span class='{kind}'>{speedup:.2f}x</span>{spread}</span>"


def _layers(groups: Sequence[Group]) -> str:
    if not groups:
        return ""
    head = ("layers", "direction", "dense", "sparse", "", "ratio", "kernel", "break-even")
    rows = [cells for group in groups for cells in _group_rows(group)]
    return "<h2>Layers</h2>" + _table(head, rows)


def _group_rows(group: Group) -> Iterable[list[str]]:
    entry, names = group.entry, group.names
    title = f"{len(names)} x {joined_name(names)}" if len(names) > 1 else names[0]
    block = f"blocks of {entry.block[0]} x {entry.block[1]}" if entry.block else (entry.layout or "")
    what = [entry.kind, " x ".join(map(str, entry.shape)), block]
    what += ["" if entry.density is None else f"density {entry.density:.3g}"]
    what += [f"{entry.tokens} tokens of {entry.dtype}" if entry.tokens else ""]
    what += [f"input {' x '.join(map(str, entry.x_shape))} of {entry.dtype}" if entry.x_shape else ""]
    what += [byte_words(entry)]
    directions = [way for way in DIRECTIONS if entry.times and way in entry.times] or [""]
    for number, direction in enumerate(directions):
        dense, ours = ((times or {}).get(direction) for times in (entry.dense_times, entry.times))
        even = even_words(entry.break_even[direction]) if direction in entry.break_even else ""
        name = f"<b>{html.escape(title)}</b>"
        about = html.escape(", ".join(part for part in what if part))
        first = f"<span>{name}<br><span class='soft'>{about}</span>{_soft(entry.note)}</span>"
        yield [
            f"<span class='again'>{name}</span>" if number else first,
            direction,
            "" if dense is None else duration(dense),
            "" if ours is None else duration(ours),
            "" if dense is None or ours is None else _meter(ours / dense),
            _ratio(entry, direction),
            html.escape(kernel_words(entry, direction)),
            even,
        ]


def _meter(share: float) -> str:
    """Returns a bar beside a mark at the dense twin's time."""
    width = 100 * min(_FULL, share) / _FULL
    return f"<span class='track'><span class='bar' style='width:{width:.1f}%'></span></span>"


def _patterns(report: Report, groups: Sequence[Group]) -> str:
    first = {layer.name or "model": layer for layer in report.layers}
    shown = [(group, first[group.names[0]]) for group in groups if first[group.names[0]].pattern is not None]
    if not shown:
        return ""
    figures = "".join(
        f"<figure>{layer.pattern.svg(_PIXELS)}<figcaption>{html.escape(group.names[0])}, density "
        f"{layer.pattern.density:.3g}</figcaption></figure>"
        for group, layer in shown[:_FIGURES]
        if layer.pattern is not None
    )
    more = _soft(f"and those of {len(shown) - _FIGURES} more groups") if len(shown) > _FIGURES else ""
    told = _soft("The first layer of each group: what is drawn is stored.")
    return f"<h2>Patterns</h2>{told}<div class='figures'>{figures}</div>{more}"


def _advice(report: Report) -> str:
    advice = report.advice
    if advice is None:
        return ""
    head = ("layers", "choice", "dense", "sparse", "ratio", "cost in quality")
    rows = [[html.escape(cell) for cell in cells] for cells in advice.choices()]
    code = f"<pre>{html.escape(advice.code())}</pre>" if rows else ""
    table = _table(head, rows) if rows else "<p>No dense layer would gain.</p>"
    told = (
        "The share of sum |w| that stays is known; what the model loses by it shows after training: prune_("
    )
    told += "evaluate=..) and recover measure it."
    return f"<h2>Advice for the dense layers</h2>{table}{code}{_soft(told) if rows else ''}"


def _untouched(hidden: list[LayerReport]) -> str:
    if not hidden:
        return ""
    names = ", ".join(layer.name or "model" for layer in hidden)
    return f"<details><summary>{hidden_words(len(hidden))}</summary><p>{html.escape(names)}</p></details>"


def _soft(words: str) -> str:
    return f"<p class='soft'>{html.escape(words)}</p>" if words else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table of cells that are HTML already. On narrow screens each row becomes a card, whose cells
    have the titles of their columns."""
    titles = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_META if not title else ''} data-label='{html.escape(title)}'>{cell}</td>"
            for title, cell in zip(head, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


_META = " class='meter'"

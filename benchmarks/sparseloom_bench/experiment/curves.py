"""The page of an experiment: its table, curves and pictures in one HTML file that fetches nothing."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from sparseloom.errors import Error


class Picture(NamedTuple):
    """A named picture [rows, columns] of grey."""

    name: str
    pixels: Tensor


class Plot(NamedTuple):
    """Lines and points over numbers: {label: (x, y)} and {label: (x, y, deviation)}. With ``front`` the
    Pareto front is drawn: it joins the points that have no other one left of and below them."""

    name: str
    across: str
    lines: Mapping[str, tuple[Sequence[float], Sequence[float | None]]]
    points: Mapping[str, tuple[float, float, float]] = {}
    front: bool = False


def page(
    title: str,
    text: str,
    curves: Mapping[str, Mapping[str, Sequence[float | None]]],
    pictures: Sequence[Picture] = (),
    bars: Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]] | None = None,
    plots: Sequence[Plot] = (),
) -> str:
    """Returns the page of a text in Markdown, whose tables stay as they are written; ``curves``: picture ->
    line -> its values, in equal distances; ``bars``: picture -> colour -> group -> mean and deviation. Raises
    Error without matplotlib."""
    shown = [_plot(each) for each in plots if each.lines or each.points]
    shown += [_curves(name, lines) for name, lines in curves.items() if lines]
    shown += [_bars(name, groups) for name, groups in (bars or {}).items() if groups]
    shown += [_pictures(pictures)] if pictures else []
    images = "\n".join(f'<p><img alt="" src="data:image/png;base64,{each}"></p>' for each in shown)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        "<style>body {font-family: sans-serif; max-width: 60em; margin: auto} img {max-width: 100%}</style>\n"
        f"<pre>{html.escape(text)}</pre>\n{images}\n</html>\n"
    )


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        remedy = "pip install matplotlib jinja2"
        raise Error("experiment", "matplotlib for the page", "none", remedy) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _encoded(figure: Any) -> str:
    written = io.BytesIO()
    figure.savefig(written, dpi=100, format="png")
    return base64.b64encode(written.getvalue()).decode()


def _curves(name: str, lines: Mapping[str, Sequence[float | None]]) -> str:
    figure = _figure(9, 4.5)
    axes = figure.subplots()
    for label, values in lines.items():
        part = [100 * (number + 1) / len(values) for number in range(len(values))]
        axes.plot(part, [float("nan") if each is None else each for each in values], label=label, linewidth=1)
    axes.set(xlabel="steps, %", title=name)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=3)
    return _encoded(figure)


def _plot(plot: Plot) -> str:
    figure = _figure(9, 5)
    axes = figure.subplots()
    for number, (label, (x, y)) in enumerate(plot.lines.items()):
        style = ("-", "--", ":", "-.")[number // 10 % 4]  # ten colours
        numbers = [float("nan") if each is None else each for each in y]
        axes.plot(x, numbers, style, label=label, linewidth=1)
    for label, (across, up, deviation) in plot.points.items():
        axes.errorbar([across], [up], yerr=[deviation], marker="o", capsize=3)
        axes.annotate(label, (across, up), xytext=(4, 4), textcoords="offset points", fontsize="x-small")
    if plot.front and plot.points:
        best = front([(x, y) for x, y, _ in plot.points.values()])
        axes.plot(*zip(*best, strict=True), color="grey", linewidth=1, zorder=0)
    axes.set(xlabel=plot.across, title=plot.name)
    axes.grid(alpha=0.3)
    if plot.lines:
        axes.legend(fontsize="x-small", ncols=3)
    return _encoded(figure)


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the points that no other one has both left of and below it, from the left."""
    found: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not found or y < found[-1][1]:
            found.append((x, y))
    return found


def _bars(name: str, colours: Mapping[str, Mapping[str, tuple[float, float]]]) -> str:
    figure = _figure(9, 4.5)
    axes = figure.subplots()
    groups = list(dict.fromkeys(group for each in colours.values() for group in each))
    width = 0.8 / len(colours)
    for number, (label, each) in enumerate(colours.items()):
        places = [groups.index(group) + (number - (len(colours) - 1) / 2) * width for group in each]
        means, deviations = zip(*each.values(), strict=True)
        axes.bar(places, means, width, yerr=deviations, capsize=3, label=label)
    axes.set_xticks(range(len(groups)), groups)
    axes.set(title=name)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize="small")
    return _encoded(figure)


def _pictures(pictures: Sequence[Picture]) -> str:
    figure = _figure(2.4 * len(pictures), 2.7)
    for axes, picture in zip(figure.subplots(1, len(pictures), squeeze=False)[0], pictures, strict=True):
        axes.imshow(picture.pixels.tolist(), cmap="Greys", interpolation="nearest")
        axes.set_title(picture.name, fontsize="small")
        axes.set_axis_off()
    return _encoded(figure)

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


def page(
    title: str,
    text: str,
    curves: Mapping[str, Mapping[str, Sequence[float | None]]],
    pictures: Sequence[Picture] = (),
    bars: Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]] | None = None,
) -> str:
    """Returns the page of a text in Markdown, whose tables stay as they are written; ``curves``: picture ->
    line -> its values, in equal distances; ``bars``: picture -> colour -> group -> mean and deviation. Raises
    Error without matplotlib."""
    shown = [_curves(name, lines) for name, lines in curves.items() if lines]
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

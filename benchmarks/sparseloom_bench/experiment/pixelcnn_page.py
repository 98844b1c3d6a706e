"""The page of `sparseloom experiment pixelcnn`: one HTML file that fetches nothing."""

from __future__ import annotations

import base64
import io
import math
import statistics
from pathlib import Path

from sparseloom.errors import Error

from . import pixelcnn_outcome as outcomes
from .pixelcnn import SAMPLES

COLOURS = {"dense": "#8a5a00", "groups-2": "#0a6cc2", "groups-4": "#1f8a4c"}


def page(record: outcomes.Record) -> str:
    """Returns the page: tables, curves and the pictures that the arms draw. Raises Error without matplotlib
    and jinja2."""
    try:
        import jinja2
        import matplotlib  # noqa: F401  what the pictures need
    except ModuleNotFoundError as error:
        remedy = "pip install matplotlib jinja2"
        raise Error("experiment pixelcnn", "matplotlib and jinja2", f"no {error.name}", remedy) from error
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.undefined = jinja2.StrictUndefined
    finals = {name: arm.finals for name, arm in record.items()}
    drawn = {name: next((e["samples"] for e in some if e["samples"]), None) for name, some in finals.items()}
    side = record["dense"].finals[0]["setting"]["size"]["side"]
    return environment.get_template("pixelcnn.html.j2").render(
        introduction=outcomes.introduction(record),
        rows=outcomes.rows(record),
        search=outcomes.search_rows(record),
        bars=list(outcomes.bars(record)),
        curves=_url("svg+xml", curves(record)),
        pictures={name: _url("png", pictures(text, side)) for name, text in drawn.items() if text},
    )


def curves(record: outcomes.Record) -> bytes:
    """Draws training bits over steps as SVG: the mean of each arm's seeds, and the range of them."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    for name, arm in record.items():
        numbers = [[math.nan if e is None else e for e in each["losses"]] for each in arm.finals]
        parts = list(zip(*numbers, strict=True))
        steps = [(at + 1) * arm.finals[0]["steps"] / len(parts) for at in range(len(parts))]
        axes.plot(steps, [statistics.mean(each) for each in parts], color=COLOURS[name], label=name)
        low, high = [min(each) for each in parts], [max(each) for each in parts]
        axes.fill_between(steps, low, high, color=COLOURS[name], alpha=0.2, linewidth=0)
    axes.set(xlabel="steps", ylabel="training bits per dimension")
    # the first parts are several times the rest
    ends = [e for arm in record.values() for each in arm.finals for e in each["losses"][2:] if e is not None]
    if ends:
        axes.set_ylim(min(ends) - 0.05, max(ends) + 0.05)
    axes.legend()
    content = io.BytesIO()
    figure.savefig(content, format="svg")
    return content.getvalue()


def pictures(text: str, side: int) -> bytes:
    """Returns an outcome's samples in a line, four times as large, as PNG."""
    import numpy
    from matplotlib.image import imsave

    pixels = numpy.frombuffer(base64.b64decode(text), numpy.uint8).reshape(SAMPLES, side, side, 3)
    line = numpy.pad(pixels, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=255)
    line = line.reshape(2, SAMPLES // 2, side + 2, side + 2, 3).transpose(0, 2, 1, 3, 4)
    whole = line.reshape(2 * (side + 2), SAMPLES // 2 * (side + 2), 3).repeat(4, 0).repeat(4, 1)
    content = io.BytesIO()
    imsave(content, numpy.ascontiguousarray(whole), format="png")
    return content.getvalue()


def _url(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"

"""Draws the speed-up plot as a plain SVG: readable on light and dark pages, the same bytes for the same
numbers."""

import html
import math
from dataclasses import dataclass

WIDTH, HEIGHT, GAP, LEFT, TOP = 270, 260, 60, 70, 60
#: Of the lines: each has a contrast of 3 or more on white and on near black.
COLOURS = ("#3b82c4", "#d9730d", "#2a9d4a", "#a65fc4")
#: Where the picture stands alone it follows the reader's theme. The site's pages take this off.
STYLE = (
    "<style>.drawing{color:#444;background:#fff}"
    "@media (prefers-color-scheme:dark){.drawing{color:#ccc;background:#181a1c}}</style>"
)


@dataclass(frozen=True)
class Panel:
    """One direction. lines: block -> (density, dense time / sparse time), ascending in density; as many as
    there are colours."""

    title: str
    lines: dict[str, list[tuple[float, float]]]


def bounds(panels: list[Panel]) -> tuple[float, float, float, float]:
    """Returns the limits of densities and speed-ups that all panels share; the axis always shows 1, where
    dense is."""
    points = [point for panel in panels for line in panel.lines.values() for point in line]
    low, high = min(1.0, *(y for _, y in points)), max(1.0, *(y for _, y in points))
    densities = [x for x, _ in points]
    return (
        min(densities),
        max(densities),
        2 ** math.floor(math.log2(low)),
        2 ** math.ceil(math.log2(high * 1.05)),
    )


def text(
    x: float, y: float, content: str, size: int = 12, anchor: str = "middle", colour: str = "currentColor"
) -> str:
    """Writes one label; what the root element says already is left out."""
    told = {"font-size": (size, 12), "text-anchor": (anchor, "middle"), "fill": (colour, "currentColor")}
    more = "".join(f' {name}="{value}"' for name, (value, default) in told.items() if value != default)
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{html.escape(content)}</text>'


def panel_svg(panel: Panel, left: float, limits: tuple[float, float, float, float]) -> list[str]:
    """Draws one panel. Both axes are logarithmic: halving the density should double the speed, which is a
    straight line."""
    x0, x1, y0, y1 = limits

    def x_of(density: float) -> float:
        return left + WIDTH * (math.log(density / x0) / math.log(x1 / x0) if x1 > x0 else 0.5)

    def y_of(speedup: float) -> float:
        return TOP + HEIGHT * (1 - math.log(speedup / y0) / math.log(y1 / y0))

    parts = [text(left + WIDTH / 2, TOP - 10, panel.title, 14)]
    for power in range(round(math.log2(y0)), round(math.log2(y1)) + 1):
        y = y_of(2.0**power)
        style = 'stroke="currentColor" stroke-width="1.5" stroke-dasharray="5 3"'
        style = style if power == 0 else 'stroke="currentColor" stroke-opacity=".25"'
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + WIDTH}" y2="{y:.1f}" {style}/>')
        # Between two panels is no room for more than the number.
        label = "dense = 1" if power == 0 and left == LEFT else f"{2.0**power:g}x"
        parts.append(text(left - 6, y + 4, label, anchor="end"))
    for density in sorted({x for line in panel.lines.values() for x, _ in line}):
        parts.append(text(x_of(density), TOP + HEIGHT + 18, f"{density:g}"))
    parts.append(text(left + WIDTH / 2, TOP + HEIGHT + 36, "density (share of blocks stored)"))
    for row, (colour, (name, line)) in enumerate(zip(COLOURS, panel.lines.items(), strict=False)):
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        # A point is a line of no length with round ends.
        points = "".join(f"M{x_of(x):.1f} {y_of(y):.1f}h0" for x, y in line)
        parts.append(f'<path d="{points}" stroke="{colour}" stroke-width="6" stroke-linecap="round"/>')
        parts.append(text(left + WIDTH - 4, TOP + 16 + 16 * row, name, anchor="end", colour=colour))
    return parts


def speedup_svg(panels: list[Panel], title: str, note: str) -> str:
    """Draws the panels; `note` says machine, commit and date, under the panels."""
    limits = bounds(panels)
    width = LEFT + len(panels) * (WIDTH + GAP)
    height = TOP + HEIGHT + 70
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="0 0 {width} '
        f'{height}" width="{width}" font-family="sans-serif" font-size="12" '
        'text-anchor="middle" fill="currentColor">',
        STYLE,
        text(width / 2, 22, title, 15),
    ]
    for number, panel in enumerate(panels):
        parts += panel_svg(panel, LEFT + number * (WIDTH + GAP), limits)
    parts.append(text(width / 2, height - 10, note, 10))
    return "\n".join([*parts, "</svg>", ""])

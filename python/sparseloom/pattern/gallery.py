"""A gallery of patterns: their pictures, their figures, and an animation of a signal that spreads through a
small world. Needs nothing but torch; the same seed gives the same bytes."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from pathlib import Path

from .. import pattern
from . import Pattern

#: Block rows and block columns of the gallery's patterns; a power of two, so that the butterfly is whole.
NODES = 64
#: The torus of the animation, its neighbours, and the share of rewired edges. With these the mean path has
#: less than five steps, as in the animation that announced OpenAI's block-sparse kernels.
SIDE, NEIGHBOURS, REWIRED = 32, 8, 0.1
_SECONDS = 0.5  # for one step
_DARK, _LIGHT, _PAPER = (31, 95, 139), (244, 162, 65), "#e9edf2"


@dataclass(frozen=True)
class Picture:
    """A pattern of the gallery. ``call`` is what makes it, without the size and the seed."""

    name: str
    call: str
    made: Pattern


def pictures(seed: int = 1) -> list[Picture]:
    """Returns the gallery's patterns: most of them with about seven blocks in a block row."""
    size = NODES * 8, NODES * 8, 8
    root = math.isqrt(NODES)
    hubs = pattern.barabasi_albert(*size, 3, seed)
    return [
        Picture("random", "random(density=0.11)", pattern.random(*size, 0.11, seed)),
        Picture("balanced", "balanced(density=0.11)", pattern.balanced(*size, 0.11, seed)),
        Picture("biregular", "biregular(density=0.11)", pattern.biregular(*size, 0.11, seed)),
        Picture("expander", "expander(degree=7)", pattern.expander(*size, 7, seed)),
        Picture("banded", "banded(bandwidth=3)", pattern.banded(*size, 3)),
        Picture("watts_strogatz", "watts_strogatz(k=6, p=0.2)", pattern.watts_strogatz(*size, 6, 0.2, seed)),
        Picture(
            "watts_strogatz_2d",
            "watts_strogatz_2d(k=6, p=0.2)",
            pattern.watts_strogatz_2d(*size, 6, 0.2, seed),
        ),
        Picture("barabasi_albert", "barabasi_albert(m=3)", hubs),
        Picture("extra_edges", "extra_edges(barabasi_albert(m=3), 64)", pattern.extra_edges(hubs, 64, seed)),
        Picture("butterfly", "butterfly()", pattern.butterfly(*size)),
        Picture("strided", "strided(stride=8)", pattern.strided(*size, root)),
        Picture("fixed", "fixed(stride=8)", pattern.fixed(*size, root)),
        Picture("fixed_causal", "fixed(stride=8, causal=True)", pattern.fixed(*size, root, causal=True)),
        Picture("block_diagonal", "block_diagonal(groups=8)", pattern.block_diagonal(*size, root)),
        Picture(
            "block_diagonal_shuffled",
            "block_diagonal(groups=8, shuffle=True)",
            pattern.block_diagonal(*size, root, shuffle=True),
        ),
    ]


#: The columns of ``figures``.
HEAD = ["density", "path length", "clustering", "small-world figure", "% reached after 1, 2, .. steps"]


def figures(square: Pattern) -> list[str]:
    """Returns the figures of a square pattern, as HEAD has them."""
    world = pattern.small_world(square)
    shares = [f"{100 * share:.3g}" for share in pattern.mixing(square)]
    if len(shares) > 6:
        shares = [*shares[:4], "..", f"{shares[-1]} after {len(shares)}"]
    length = f"{world.path_length:.2f}" if math.isfinite(world.path_length) else "in parts"
    figure = f"{world.figure:.2f}" if world.figure else "-"
    return [f"{square.density:.3f}", length, f"{world.clustering:.2f}", figure, ", ".join(shares)]


def spreading(seed: int = 1) -> str:
    """Returns an animated SVG: a signal that spreads from the middle of a torus, by its lattice alone and
    with a share of the edges rewired. A viewer that does not animate shows all steps in their colours."""
    nodes = SIDE * SIDE
    ring, right = (
        pattern.watts_strogatz_2d(nodes * 8, nodes * 8, 8, NEIGHBOURS, p, seed) for p in (0, REWIRED)
    )
    middle = nodes // 2 + SIDE // 2
    spread = [pattern.distances(ring_pattern, middle).tolist() for ring_pattern in (ring, right)]
    last = max(max(steps) for steps in spread)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * SIDE + 4} {SIDE + 4}" width="504" '
        f'height="{6 * (SIDE + 4)}" role="img">',
        f"<title>A signal that spreads from the middle of {SIDE} x {SIDE} nodes: {NEIGHBOURS} nearest "
        f"neighbours each, and the same with {100 * REWIRED:.0f} % of the edges rewired</title>",
        f'<rect width="100%" height="100%" fill="{_PAPER}"/>',
        '<g font-family="sans-serif" font-size="2.4" fill="#333">',
    ]
    titles = "lattice", f"{100 * REWIRED:.0f} % rewired"
    for panel, (title, steps) in enumerate(zip(titles, spread, strict=True)):
        parts.append(f'<g transform="translate({1 + panel * (SIDE + 2)} 1)">')
        parts.append(f'<g stroke-width="1.03" transform="translate(0 .5)">{_waves(steps, last)}</g>')
        # The text turns with the steps: each is seen while its step is the newest one.
        for step in range(max(steps) + 1):
            share = 100 * sum(distance <= step for distance in steps) / nodes
            line = f"{title}: {share:.0f} % in {step} step{'s' * (step != 1)}"
            until = step + 1 if step < max(steps) else None
            shown = ' display="none"' if until else ""
            parts.append(f'<text y="{SIDE + 2.4}"{shown}>{line}{_seen(step, until, last)}</text>')
        parts.append("</g>")
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _waves(steps: list[int], last: int) -> str:
    """Draws the nodes that each step reaches as one SVG path, with a line for each run of nodes."""
    paths = []
    for step in range(max(steps) + 1):
        runs = []
        for y in range(SIDE):
            row = [reached == step for reached in steps[y * SIDE : (y + 1) * SIDE]] + [False]
            start = None
            for x, reached in enumerate(row):
                if reached and start is None:
                    start = x
                elif not reached and start is not None:
                    runs.append(f"M{start} {y}h{x - start}")
                    start = None
        share = step / max(1, last)
        colour = "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(_LIGHT, _DARK, strict=True))
        paths.append(f'<path stroke="#{colour}" d="{"".join(runs)}">{_seen(step, None, last)}</path>')
    return "\n".join(paths)


def _seen(since: int, until: int | None, last: int) -> str:
    """Shows an element from one step on, until another if it is set; the film ends three steps after the
    last."""
    if since == 0 and until is None:
        return ""
    film = last + 4
    times, values = ["0"], ["inline" if since == 0 else "none"]
    for moment, value in ((since, "inline"), (until, "none")):
        if moment:
            times.append(f"{moment / film:.4f}")
            values.append(value)
    return (
        f'<animate attributeName="display" dur="{film * _SECONDS:g}s" repeatCount="indefinite" '
        f'calcMode="discrete" keyTimes="{";".join(times)}" values="{";".join(values)}"/>'
    )


def write(folder: Path, seed: int = 1) -> list[Path]:
    """Writes the gallery into a folder, which is made if need be: a picture of each pattern, the animation
    spreading.svg, and index.html, which shows them with their figures. Returns what it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    drawings = pictures(seed)
    files = {f"{picture.name}.svg": picture.made.svg(160) for picture in drawings}
    files["spreading.svg"] = spreading(seed)
    files["index.html"] = _page(drawings)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in files]


def _page(drawings: list[Picture]) -> str:
    cell = "".join
    head = cell(f"<th>{name}</th>" for name in ["", "pattern", *HEAD])
    rows = cell(
        f'<tr><td><img src="{picture.name}.svg" alt=""></td><td><code>{html.escape(picture.call)}</code></td>'
        + cell(f"<td>{html.escape(figure)}</td>" for figure in figures(picture.made))
        + "</tr>\n"
        for picture in drawings
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>Patterns</title>\n'
        "<style>body{font-family:sans-serif}td{padding:4px 12px}th{text-align:left}</style>\n"
        f"<h1>Patterns of {NODES} x {NODES} blocks</h1>\n"
        f'<p><img src="spreading.svg" alt="a signal that spreads through a small world"></p>\n'
        f"<table><tr>{head}</tr>\n{rows}</table></html>\n"
    )

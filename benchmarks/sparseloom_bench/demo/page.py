"""Makes the demo's HTML report: one file that fetches nothing, with pictures as inline SVG."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

from sparseloom.report import Report

from ..bench.results import header
from .data import Text
from .measure import Outcome, rows
from .presets import device_name
from .train import Settings

WIDTH, HEIGHT = 860, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 16, 40
SMOOTHING = 0.9  # weight of the mean so far, per step


def report_page(
    settings: Settings,
    text: Text,
    outcomes: list[Outcome],
    layers: Report,
    prompt: str,
    samples: dict[str, str],
    seconds: float,
) -> str:
    """Returns the page as one string.

    prompt and samples (by kind) are shown as they are; seconds: of the whole job so far.
    """
    import jinja2

    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)
    environment.undefined = jinja2.StrictUndefined
    head = header("training")
    gpu = device_name(settings.device)
    machine = [
        *([("GPU", gpu)] if gpu else []),
        (
            "machine",
            f"{head['machine']['cpu']} ({head['device']}), "
            f"{settings.threads} threads, {head['machine']['isa']}",
        ),
        ("system", head["machine"]["platform"]),
        ("versions", ", ".join(f"{name} {version}" for name, version in head["versions"].items())),
        ("commit", head["commit"]),
        ("date", head["date"]),
        ("text", str(text)),
        ("settings", ", ".join(f"{name} {value}" for name, value in asdict(settings).items())),
        ("seconds", f"{seconds:.0f}"),
    ]
    return environment.get_template("report.html.j2").render(
        settings=settings,
        tokens=settings.steps * settings.tokens_per_step,
        rows=rows(outcomes),
        curves=_safe(curves(outcomes, settings.steps)),
        layers=_safe(layers.to_html()),
        prompt=prompt,
        samples=samples,
        machine=machine,
    )


def curves(outcomes: list[Outcome], steps: int) -> str:
    """Draws training (smoothed, lines) and validation (dots) bits per byte over steps, as SVG."""
    smooth = {outcome.kind: _smoothed(outcome.losses) for outcome in outcomes}
    shown = [
        bits
        for outcome in outcomes
        for bits in smooth[outcome.kind] + [bits for _, bits in outcome.validation]
    ]
    low, high = math.floor(2 * min(shown)) / 2, math.ceil(2 * max(shown)) / 2
    high = max(high, low + 0.5)

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / max(steps, 1)

    def y(bits: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - bits) / (high - low)

    ticks = []
    for i in range(round((high - low) * 2) + 1):
        bits = low + i / 2
        ticks.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(bits):.1f}" '
            f'y2="{y(bits):.1f}" stroke="var(--line)"/>'
        )
        if i % 2 == 0 or high - low <= 2:
            ticks.append(f'<text x="{LEFT - 8}" y="{y(bits) + 4:.1f}" text-anchor="end">{bits:g}</text>')
    for i in range(5):
        step = steps * i / 4
        ticks.append(
            f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{step:.0f}</text>'
        )
    ticks.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">steps</text>')
    ticks.append(f'<text x="{LEFT + 8}" y="{TOP + 12}">bits per byte</text>')
    drawn = []
    for i, outcome in enumerate(outcomes):
        colour = f"var(--{outcome.kind})"
        points = " ".join(
            f"{x(step + 1):.1f},{y(bits):.1f}" for step, bits in enumerate(smooth[outcome.kind])
        )
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        drawn += [
            f'<circle cx="{x(step):.1f}" cy="{y(bits):.1f}" r="4" fill="{colour}"/>'
            for step, bits in outcome.validation
        ]
        legend = TOP + 14 + 20 * i
        drawn.append(f'<rect x="{WIDTH - 140}" y="{legend - 6}" width="28" height="3" fill="{colour}"/>')
        drawn.append(f'<text x="{WIDTH - 104}" y="{legend}">{outcome.label}</text>')
    label = "Bits per byte over steps, dense and block-sparse"
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {WIDTH} '
        f'{HEIGHT}" width="100%">{"".join(ticks + drawn)}</svg>'
    )


def _smoothed(losses: list[float]) -> list[float]:
    """Returns the exponential mean, corrected for its start."""
    mean, smoothed = 0.0, []
    for i, loss in enumerate(losses):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        smoothed.append(mean / (1 - SMOOTHING ** (i + 1)))
    return smoothed


def _safe(markup: str) -> object:
    from markupsafe import Markup

    return Markup(markup)  # our own SVG and HTML, not text from outside

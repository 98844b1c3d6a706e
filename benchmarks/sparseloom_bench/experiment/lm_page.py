"""The page of `sparseloom experiment lm`: tables, curves over steps and seconds, the Pareto front over
parameters and time, and what moving blocks tell of themselves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from . import curves, moves_plots
from .curves import Plot
from .lm_outcome import Record, parameters, table


def page(record: Record) -> str:
    """Returns the page. Raises Error without matplotlib."""
    plots = [*_learning(record), *_fronts(record), *moves_plots.plots(_told(record))]
    return curves.page("Wide and sparse against dense", table(record), {}, plots=plots)


def _learning(record: Record) -> list[Plot]:
    """Training bits over steps, and over the seconds that they take alone."""
    means = {arm: _mean([each["losses"] for each in row.finals]) for arm, row in record.items()}
    steps = {arm: _places(len(means[arm]), row.finals[0]["steps"]) for arm, row in record.items()}
    late = {
        arm: (steps[arm][skip:], mean[skip:]) for arm, mean in means.items() for skip in [len(mean) // 10]
    }
    timed = {
        arm: ([1e-3 * ms * step for step in late[arm][0]], late[arm][1])
        for arm, row in record.items()
        if (ms := row.ms) is not None
    }
    name = "training bits a byte, without the first tenth of the steps"
    return [Plot(name, "steps", late), Plot(name, "seconds of the arm alone", timed)]


def _fronts(record: Record) -> list[Plot]:
    name = "held-out bits a byte, and the Pareto front"
    by_size = {arm: (parameters(arm, row) / 1e6, *row.bits) for arm, row in record.items()}
    by_time = {arm: (row.ms, *row.bits) for arm, row in record.items() if row.ms is not None}
    return [
        Plot(name, "parameters, millions", {}, by_size, True),
        Plot(name, "milliseconds a step", {}, by_time, True),
    ]


def _told(record: Record) -> dict[str, Any]:
    """Returns what the first seed of each arm tells whose blocks move."""
    moves = {arm: [each["moves"] for each in row.finals if each.get("moves")] for arm, row in record.items()}
    return {arm: some[0] for arm, some in moves.items() if some and some[0]["changes"]}


def _mean(losses: Sequence[Sequence[float | None]]) -> list[float | None]:
    return [
        None if None in part else statistics.mean(each for each in part if each is not None)
        for part in zip(*losses, strict=False)
    ]


def _places(parts: int, steps: int) -> list[float]:
    return [(number + 1) * steps / parts for number in range(parts)]

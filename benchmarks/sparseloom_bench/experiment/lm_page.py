"""The page of `sparseloom experiment lm`: tables, curves over steps and seconds, the Pareto front over
parameters and time, and what moving blocks tell of themselves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from . import curves
from .curves import Plot
from .lm_outcome import Record, Row, parameters, table
from .moves import AGES, KINDS


def page(record: Record) -> str:
    """Returns the page. Raises Error without matplotlib."""
    plots = [*_learning(record), *_fronts(record), *_moves(record)]
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


def _moves(record: Record) -> list[Plot]:
    """What the first seed of each arm tells whose blocks move."""
    found = []
    told = {arm: each for arm, row in record.items() if (each := _told(row)) is not None}
    for arm, told_of in told.items():
        changes = told_of["changes"]
        steps = [each["step"] for each in changes]
        lines = {kind: (steps, [each["gradients"][kind] for each in changes]) for kind in KINDS}
        found.append(Plot(f"{arm}: mean norm of the gradient of a block, at a change", "steps", lines))
    updates = {}
    for arm, told_of in told.items():
        for kind in ("grown", "kept"):
            by_age = [[e[kind] for e in told_of["updates"] if e["age"] == age] for age in AGES]
            there = [(age, statistics.mean(some)) for age, some in zip(AGES, by_age, strict=True) if some]
            updates[f"{arm}, {kind}"] = ([float(age) for age, _ in there], [each for _, each in there])
    lives = {arm: _survival(told_of) for arm, told_of in told.items()}
    tried = {
        arm: ([e["step"] for e in told_of["changes"]], [e["tried"] for e in told_of["changes"]])
        for arm, told_of in told.items()
    }
    returned = {
        arm: (
            [e["step"] for e in told_of["changes"]],
            [e["returned"] / max(1, e["grown"]) for e in told_of["changes"]],
        )
        for arm, told_of in told.items()
    }
    found += [
        Plot("Adam's updates over the rate, root of the mean square", "steps since a block grew", updates),
        Plot("share of grown blocks that live so long", "changes", lives),
        Plot("share of all blocks that were ever tried", "steps", tried),
        Plot("share of grown blocks that had been dropped before", "steps", returned),
    ]
    return found


def _told(row: Row) -> dict[str, Any] | None:
    return next((each["moves"] for each in row.finals if each.get("moves", {}).get("changes")), None)


def _survival(told: dict[str, Any]) -> tuple[list[float], list[float | None]]:
    """Returns the Kaplan-Meier estimate: blocks that still live at the end count while they were seen."""
    lives, alive = told["lives"], told["alive"]
    longest = max(len(lives), len(alive))
    ended = [*lives, *[0] * (longest - len(lives))]
    seen = [*alive, *[0] * (longest - len(alive))]
    share, shares = 1.0, [1.0]
    for age in range(longest):
        at_risk = sum(ended[age:]) + sum(seen[age:])
        share *= 1 - ended[age] / at_risk if at_risk else 1.0
        shares.append(share)
    return [float(age) for age in range(longest + 1)], list(shares)


def _mean(losses: Sequence[Sequence[float | None]]) -> list[float | None]:
    return [
        None if None in part else statistics.mean(each for each in part if each is not None)
        for part in zip(*losses, strict=False)
    ]


def _places(parts: int, steps: int) -> list[float]:
    return [(number + 1) * steps / parts for number in range(parts)]

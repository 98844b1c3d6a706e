"""Pictures of what moving blocks tell of themselves: the records of moves.Moves."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from .curves import Plot
from .moves import AGES, KINDS


def plots(told: Mapping[str, dict[str, Any]]) -> list[Plot]:
    """Returns the pictures of the records of arms; none without any."""
    found = []
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
    lives = {arm: survival(told_of) for arm, told_of in told.items()}
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


def survival(told: dict[str, Any]) -> tuple[list[float], list[float | None]]:
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

"""Checks a run's records against the targets of the kernels and returns sentences on what was missed."""

from __future__ import annotations

from typing import Any

from .cells import cell_of
from .cpu_targets import missed_cpu
from .gpu.targets import missed_gpu

Record = dict[str, Any]

CELLS, CANDIDATES = 40, 3
WITHIN, IN_SHARE = 1.1, 0.8


def missed(suite: str, records: list[Record]) -> list[str]:
    """Returns a sentence for every target of the suite that these records miss."""
    promised = {"cpu": missed_cpu, "plan": missed_plan, "gpu": missed_gpu}
    return wrong(records) + promised[suite](records)


def wrong(records: list[Record]) -> list[str]:
    """Returns sentences on results beyond the tolerance of sparseloom.testing, for every candidate that was
    timed."""
    sentences = []
    for record in records:
        for entry in record.get("candidates", [record]):
            # a record without it is of something else, or has the error why it failed
            if not entry.get("tile_excess", 0) <= 1:
                sentences.append(
                    f"{cell_of(record)} by {entry['kernel']}: "
                    f"{entry['tile_excess']:.2f} of the error allowed in a tile"
                )
    return sentences


def missed_plan(records: list[Record]) -> list[str]:
    """Checks that the choice is within 10 % of the best candidate in 80 % of at least 40 cells, each with at
    least three candidates."""
    sentences = []
    if len(records) < CELLS:
        sentences.append(f"{len(records)} cells measured, at least {CELLS} are needed")
    few = [cell_of(record) for record in records if len(record["candidates"]) < CANDIDATES]
    if few:
        sentences.append(
            f"fewer than {CANDIDATES} candidates in {len(few)} cells: {', '.join(map(str, few))}"
        )
    share = good_choices(records) / max(1, len(records))
    if share < IN_SHARE:
        sentences.append(
            "the plan's choice is within 10 % of the best in "
            f"{100 * share:.0f} % of the cells, target {100 * IN_SHARE:.0f} %"
        )
    return sentences


def good_choices(records: list[Record]) -> int:
    """Returns in how many cells the plan's choice was within 10 % of the best."""
    return sum(record["over_best"] <= WITHIN for record in records)

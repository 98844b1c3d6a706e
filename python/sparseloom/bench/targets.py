"""What the project promises of its kernels, as tests of a run's records. Each returns the sentences of what was missed."""

from __future__ import annotations

from typing import Any

from .cells import cell_of
from .gpu.targets import missed_gpu
from .peak import peak_flops

Record = dict[str, Any]

SHARE_OF_PEAK = {"f32": 0.50, "bf16": 0.45}
PROMISED_DENSITY = 0.1
SPARSER_AT_MOST = 0.6  # time at density .05 over time at .2: nothing is densified
CELLS, CANDIDATES = 40, 3
WITHIN, IN_SHARE = 1.1, 0.8


def missed(suite: str, records: list[Record]) -> list[str]:
    """Sentences, none when all targets of the suite are met by these records."""
    promised = {"cpu": missed_cpu, "plan": missed_plan, "gpu": missed_gpu}
    return wrong(records) + promised[suite](records)


def wrong(records: list[Record]) -> list[str]:
    """Results beyond the tolerance of sparseloom.testing, by any candidate that was timed."""
    sentences = []
    for record in records:
        for entry in record.get("candidates", [record]):
            if not entry.get("tile_excess", 0) <= 1:  # a record without it is of something else, or says why it failed
                sentences.append(
                    f"{cell_of(record)} by {entry['kernel']}: {entry['tile_excess']:.2f} of the error allowed in a tile"
                )
    return sentences


def missed_cpu(records: list[Record]) -> list[str]:
    """Share of the peak at density .1, and forward's time at .05 against .2."""
    sentences = []
    for record in records:
        least = SHARE_OF_PEAK.get(record["dtype"])
        if record["density"] == PROMISED_DENSITY and least is not None and record["share_of_peak"] < least:
            share = f"{100 * record['share_of_peak']:.1f} % of the peak, target {100 * least:.0f} %"
            sentences.append(f"{cell_of(record)}: {share} ({peak_flops(record['dtype'], record['threads']) / 1e9:.0f} GF/s)")
    forward = {(tuple(r["block"]), r["density"]): r for r in records if r["direction"] == "forward" and r["dtype"] == "f32"}
    for (block, density), record in forward.items():
        other = forward.get((block, 0.2))
        if density == 0.05 and other is not None:
            ratio = record["us"]["median"] / other["us"]["median"]
            if ratio > SPARSER_AT_MOST:
                sentences.append(f"{cell_of(record)}: {ratio:.2f} of the time at density 0.2, target <= {SPARSER_AT_MOST}")
    return sentences


def missed_plan(records: list[Record]) -> list[str]:
    """The choice within 10 % of the best candidate in 80 % of at least 40 cells of at least three candidates."""
    sentences = []
    if len(records) < CELLS:
        sentences.append(f"{len(records)} cells measured, at least {CELLS} are needed")
    few = [cell_of(record) for record in records if len(record["candidates"]) < CANDIDATES]
    if few:
        sentences.append(f"fewer than {CANDIDATES} candidates in {len(few)} cells: {', '.join(map(str, few))}")
    share = good_choices(records) / max(1, len(records))
    if share < IN_SHARE:
        sentences.append(
            f"the plan's choice is within 10 % of the best in {100 * share:.0f} % of the cells, target {100 * IN_SHARE:.0f} %"
        )
    return sentences


def good_choices(records: list[Record]) -> int:
    """In how many cells the plan's choice was within 10 % of the best."""
    return sum(record["over_best"] <= WITHIN for record in records)

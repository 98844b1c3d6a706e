"""Checks the records of a CPU run against the CPU kernels' targets: their share of the peak, their speed-up
over torch, the rate of dx and dw against forward's, and the time of skewed patterns against balanced ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .cells import Cell, cell_of
from .skewed import KINDS

Record = dict[str, Any]

DENSITIES = (0.05, 0.1, 0.2, 0.5, 0.8)
#: Percent of the register peak that forward must reach, by the name of that peak and the block side; the
#: columns are DENSITIES.
SHARES: dict[str, dict[int, tuple[int, ...]]] = {
    "f32_avx512": {8: (55, 67, 75, 77, 77), 16: (60, 72, 80, 82, 82)},
    "f32_avx2": {8: (63, 72, 76, 79, 79), 16: (68, 77, 81, 84, 84)},
    "bf16_avx512": {8: (40, 50, 55, 55, 55), 16: (55, 70, 78, 82, 82)},
    # blocks of 128 and more have no target
    "bf16_amx": {8: (5, 6, 7, 7, 7), 16: (11, 14, 16, 17, 18), 32: (22, 27, 30, 33, 35), 128: ()},
}
#: On more than two threads, the AMX targets are multiplied by this.
MANY_THREADS = 0.6
SPEEDUPS = dict(zip(DENSITIES, (12.0, 7.5, 3.8, 1.5, 1.0), strict=True))
SPEEDUP_BLOCK = 32
#: Rates of dx and dw over forward's, for blocks of SPEEDUP_BLOCK and more.
OF_FORWARD = {"dx": 0.90, "dw": 0.75}
OVER_BALANCED = 1.15
#: Speed of int8 over our own bf16, with x in int8 already, at these blocks and from this density on.
OVER_BF16, OVER_BF16_BLOCKS, OVER_BF16_DENSITY = 1.6, (32, 64), 0.2


@dataclass(frozen=True)
class Figure:
    """A measured value of one record and the target that it is held to."""

    cell: Cell
    value: float
    target: float
    words: str  #: a sentence with the fields {value} and {target}
    least: bool = True  #: whether the target is a lower limit; else it is an upper one

    @property
    def reached(self) -> bool:
        return self.value >= self.target if self.least else self.value <= self.target

    @property
    def sentence(self) -> str:
        return self.words.format(value=self.value, target=self.target)


def missed_cpu(records: list[Record]) -> list[str]:
    """Returns a sentence for every target that these records miss."""
    return [f"{figure.cell}: {figure.sentence}" for figure in promised_cpu(records) if not figure.reached]


def promised_cpu(records: list[Record]) -> list[Figure]:
    """Returns every figure of these records that has a target."""
    return [figure for record in records for figure in _figures(cell_of(record), record)]


def _figures(cell: Cell, record: Record) -> list[Figure]:
    if cell.dtype == "int8":
        promised = min(cell.block) in OVER_BF16_BLOCKS and cell.density >= OVER_BF16_DENSITY
        words = "{value:.2f}x of our bf16's speed, target {target}x"
        return [Figure(cell, record["over_bf16"]["median"], OVER_BF16, words)] if promised else []
    if cell.rotated:
        return _speedup(cell, record, decode_speedup(cell.density))
    if cell.pattern in KINDS:
        words = "{value:.2f} of a balanced pattern's time, target <= {target}"
        return [Figure(cell, record["over_balanced"]["median"], OVER_BALANCED, words, least=False)]
    if cell.direction != "forward":
        words = "{value:.2f} of forward's rate, target {target}"
        return (
            [Figure(cell, record["of_forward"]["median"], OF_FORWARD[cell.direction], words)]
            if "of_forward" in record
            else []
        )
    if cell.density == DENSITIES[-1] and record["kernel"] == "dense":  # the plan chose dense itself
        return []
    found = []
    peak = record["peak"]
    if (wanted := share_target(peak, min(cell.block), cell.density, record["threads"])) is not None:
        found.append(
            Figure(
                cell,
                100 * record["share_of_peak"],
                wanted,
                f"{{value:.1f}} % of {peak}, target {{target:g}} %",
            )
        )
    if cell.dtype in ("f32", "bf16") and min(cell.block) >= SPEEDUP_BLOCK:
        found += _speedup(cell, record, SPEEDUPS.get(cell.density))
    return found


def _speedup(cell: Cell, record: Record, wanted: float | None) -> list[Figure]:
    words = "{value:.2f}x of torch's speed, target {target:.3g}x"
    return [] if wanted is None else [Figure(cell, record["speedup"], wanted, words)]


def share_target(peak: str, block: int, density: float, threads: int) -> float | None:
    """Returns the target in percent of the peak, by the largest listed block that is not larger than `block`;
    None when the density or the block has no target."""
    if density not in DENSITIES or peak not in SHARES:
        return None
    table = SHARES[peak]
    row = table[max(side for side in table if side <= block)]
    if not row:
        return None
    wanted = row[DENSITIES.index(density)]
    return MANY_THREADS * wanted if peak == "bf16_amx" and threads > 2 else wanted


def decode_speedup(density: float) -> float | None:
    """Returns the speed-up wanted for 1 to 16 tokens with weights read from memory: most of what reading so
    many fewer bytes allows. None for a density without a target."""
    return 0.7 / density if density == DENSITIES[0] else 0.85 / density if density in DENSITIES[1:4] else None

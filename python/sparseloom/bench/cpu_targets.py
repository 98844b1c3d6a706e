"""What the CPU kernels promise, as tests of a run's records: shares of the peak, of torch's time, of forward's rate, of balance."""

from __future__ import annotations

from typing import Any

from .cells import Cell, cell_of
from .skewed import KINDS

Record = dict[str, Any]

DENSITIES = (0.05, 0.1, 0.2, 0.5, 0.8)
#: Percent of the register peak that forward reaches, by the peak it is held against and the block; columns are DENSITIES.
SHARES: dict[str, dict[int, tuple[int, ...]]] = {
    "f32_avx512": {8: (55, 67, 75, 77, 77), 16: (60, 72, 80, 82, 82)},
    "f32_avx2": {8: (63, 72, 76, 79, 79), 16: (68, 77, 81, 84, 84)},
    "bf16_avx512": {8: (40, 50, 55, 55, 55), 16: (55, 70, 78, 82, 82)},
    "bf16_amx": {8: (5, 6, 7, 7, 7), 16: (11, 14, 16, 17, 18), 32: (22, 27, 30, 33, 35)},
}
SPEEDUPS = dict(zip(DENSITIES, (12.0, 7.5, 3.8, 1.5, 1.0), strict=True))
SPEEDUP_BLOCK = 32
#: dx and dw over forward's rate, for blocks of SPEEDUP_BLOCK and more.
OF_FORWARD = {"dx": 0.90, "dw": 0.75}
OVER_BALANCED = 1.15
#: int8 over our own bf16, x in int8 already.
OVER_BF16, OVER_BF16_BLOCKS, OVER_BF16_DENSITY = 1.6, (32, 64), 0.2


def missed_cpu(records: list[Record]) -> list[str]:
    """Sentences, none when all targets are met by these records."""
    forward = {cell_of(r): r["useful_tflops"] for r in records if r["direction"] == "forward"}
    sentences = []
    for record in records:
        cell = cell_of(record)
        sentences += [f"{cell}: {sentence}" for sentence in _missed(cell, record, forward)]
    return sentences


def _missed(cell: Cell, record: Record, forward: dict[Cell, float]) -> list[str]:
    if cell.dtype == "int8":
        promised = min(cell.block) in OVER_BF16_BLOCKS and cell.density >= OVER_BF16_DENSITY
        over = record["over_bf16"]["median"]
        return [f"{over:.2f}x of our bf16's speed, target {OVER_BF16}x"] if promised and over < OVER_BF16 else []
    if cell.rotated:
        return _speedup(record, decode_speedup(cell.density))
    if cell.pattern in KINDS:
        over = record["over_balanced"]["median"]
        return [] if over <= OVER_BALANCED else [f"{over:.2f} of a balanced pattern's time, target <= {OVER_BALANCED}"]
    if cell.direction != "forward":
        base = forward.get(Cell("forward", cell.dtype, cell.m, cell.k, cell.n, cell.block, cell.density, cell.pattern))
        ratio = record["useful_tflops"] / base if base else 1.0
        least = OF_FORWARD[cell.direction]
        return [] if ratio >= least else [f"{ratio:.2f} of forward's rate, target {least}"]
    dense_chosen = cell.density == DENSITIES[-1] and record["kernel"] == "dense"  # as fast as dense by being dense
    found = []
    wanted = share_target(record["peak"], min(cell.block), cell.density)
    if wanted is not None and not dense_chosen and 100 * record["share_of_peak"] < wanted:
        found.append(f"{100 * record['share_of_peak']:.1f} % of {record['peak']}, target {wanted} %")
    if cell.dtype in ("f32", "bf16") and min(cell.block) >= SPEEDUP_BLOCK and not dense_chosen:
        found += _speedup(record, SPEEDUPS.get(cell.density))
    return found


def _speedup(record: Record, wanted: float | None) -> list[str]:
    short = wanted is not None and record["speedup"] < wanted
    return [f"{record['speedup']:.2f}x of torch's speed, target {wanted:.3g}x"] if short else []


def share_target(peak: str, block: int, density: float) -> int | None:
    """Percent of the peak, by the largest block listed that is not larger; None for a density without one."""
    if density not in DENSITIES or peak not in SHARES:
        return None
    table = SHARES[peak]
    return table[max(side for side in table if side <= block)][DENSITIES.index(density)]


def decode_speedup(density: float) -> float | None:
    """1 to 16 tokens, weights from memory: most of what reading so many fewer bytes allows."""
    return 0.7 / density if density == DENSITIES[0] else 0.85 / density if density in DENSITIES[1:4] else None

"""Cells of the GPU suite and records of them made by hand."""

from __future__ import annotations

from typing import Any

from sparseloom_bench.bench.cells import Cell
from sparseloom_bench.bench.gpu import goals, groups, measure


def record(
    cell: Cell,
    us: float = 50,
    dense: float = 345,
    bsr: float | None = 60,
    others: dict[str, Any] | None = None,
) -> Any:
    candidates = [
        {"kernel": "sparse", "us": {"median": us}, "tile_excess": 0.5, "same_bits": True},
        {"kernel": "dense", "us": {"median": dense}, "tile_excess": 0.5, "same_bits": True},
    ]
    promised = goals.goal(cell)
    made = {
        "goal": promised.record() if promised else None,
        "over_best": 1.0,
        "over_predicted": 1.1,
        "seconds": {"bursts": 0.5, "sustained": 0.25},
        "stored": cell.density,
        "kernel": "sparse",
        "us": {"median": us, "p20": us, "p80": us},
        "dense_us": dense,
        "speedup": dense / us,
        "sparse_kernel": "sparse",
        "sparse_us": us,
        "best": "sparse",
        "tile_excess": 0.5,
        "sustained": {"us": us, "dense_us": dense, "sparse_us": us, "speedup": dense / us},
        "candidates": candidates,
        "peers": {"torch_bsr": bsr, "cusparse_ell": None},
        "peers_absent": {"cusparse_ell": "why", **({"torch_bsr": "it broke"} if bsr is None else {})},
    }
    return measure.cell_fields(cell) | made | (others or {})


def forward(side: int, density: float, shape: tuple[int, int, int] = goals.SQUARE) -> Cell:
    return Cell("forward", "bf16", *shape, (side, side), density)


def plain(side: int, density: float, shape: tuple[int, int, int] = groups.SMALL_BATCH) -> Cell:
    """A cell that peers are compared on and the table of speed-ups asks nothing of."""
    return forward(side, density, shape)

"""Draws patterns that are not evenly random: skewed and structured ones.

In skewed patterns the rows differ much in length, as trained and grown networks have them: kernels that split
the work by rows would be slow with those.
"""

from __future__ import annotations

import bisect
import math

import torch
from torch import Tensor

from sparseloom import pattern as patterns
from sparseloom.errors import Error
from sparseloom.pattern import Pattern
from sparseloom.testing import Case

KINDS = ("lognormal", "barabasi")
STRUCTURED = ("banded", "block_diagonal")
#: The mask that pruning leaves: a global top-k of trained_scores, with exactly the density's blocks.
TRAINED = "trained"
SIGMA = 1.0
#: The trained mask's scores are |U V^T| of this rank, whose rows and columns are scaled by exp(SCALE_SIGMA
#: normal), plus NOISE times a normal's magnitude.
RANK, SCALE_SIGMA, NOISE = 8, 0.6, 0.25


def row_lengths(rows: int, cols: int, total: int, generator: torch.Generator) -> Tensor:
    """Draws log-normal row lengths with sigma 1: int64 [rows], none above ``cols``, with the sum exactly
    ``total`` (at most rows * cols)."""
    weight = torch.randn(rows, generator=generator, dtype=torch.float64).mul(SIGMA).exp()
    low, high = 0.0, float(cols * rows) / float(weight.min())
    for _ in range(200):  # bisects for the scale at which the clipped rows hold the total
        scale = (low + high) / 2
        low, high = (scale, high) if (weight * scale).clamp(max=cols).sum() < total else (low, scale)
    exact = (weight * high).clamp(max=cols)
    lengths = exact.floor().long()
    most_cut = (exact - lengths).masked_fill(lengths >= cols, -1).argsort(descending=True, stable=True)
    lengths[most_cut[: total - int(lengths.sum())]] += 1
    return lengths


def lognormal(grid: tuple[int, int], density: float, generator: torch.Generator) -> Tensor:
    """Draws a mask, bool [rows, cols], with row_lengths blocks in each row, whose columns are evenly
    random."""
    rows, cols = grid
    lengths = row_lengths(rows, cols, round(density * rows * cols), generator)
    rank = torch.rand(rows, cols, generator=generator).argsort(dim=1).argsort(dim=1)
    return rank < lengths[:, None]


def barabasi(grid: tuple[int, int], density: float, generator: torch.Generator) -> Tensor:
    """Draws the adjacency matrix of a Barabasi-Albert graph, with the diagonal: bool [rows, cols].

    Every new node joins ``links`` others, drawn in proportion to their degree, so that both rows and columns
    have hubs. The density is the nearest that a number of links reaches.
    """
    rows, cols = grid
    nodes = max(grid)
    # The mask has (2 links (nodes - links) + nodes) / nodes^2 of its blocks; this is the smaller root of that
    # quadratic.
    links = max(1, round((nodes - math.sqrt(max(0.0, nodes**2 - 2 * (density * nodes**2 - nodes)))) / 2))
    mask = torch.eye(nodes, dtype=torch.bool)
    ends = list(range(links))  # each node as often as its degree
    for node in range(links, nodes):
        chosen: set[int] = set()
        while len(chosen) < min(links, node):
            chosen.add(ends[int(torch.randint(len(ends), (1,), generator=generator))])
        for other in sorted(chosen):
            mask[node, other] = mask[other, node] = True
            ends += [node, other]
    order = torch.randperm(nodes, generator=generator)  # else all hubs would lie in the corner that is kept
    return mask[order][:, order][:rows, :cols]


def trained_scores(grid: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Draws scores like those of a trained weight: fp32 [block rows, block columns].

    They are low-rank, as the products of few features are, and rows and columns matter unequally, as training
    leaves them. Their global top-k has rows, and columns, of very different lengths.
    """

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    rows, cols = grid
    low_rank = (normal(rows, RANK) @ normal(RANK, cols)).abs_() / RANK**0.5
    scale = normal(rows, 1).mul_(SCALE_SIGMA).exp_() * normal(1, cols).mul_(SCALE_SIGMA).exp_()
    return low_rank * scale + NOISE * normal(rows, cols).abs_()


def banded(rows: int, cols: int, block: tuple[int, int], density: float) -> Pattern:
    """Returns the band whose density is the nearest to the one asked for: the corners of the grid cut the
    outer diagonals short."""
    widths = range(max(-(-rows // block[0]), -(-cols // block[1])))
    # A wider band holds the narrower one, so densities ascend. The nearest is the first that reaches the
    # density asked for, or the one before.
    reaching = bisect.bisect_left(
        widths, density, key=lambda width: patterns.banded(rows, cols, block, width).density
    )
    nearest = (
        patterns.banded(rows, cols, block, width) for width in widths[max(0, reaching - 1) : reaching + 1]
    )
    return min(nearest, key=lambda pattern: abs(pattern.density - density))


def block_diagonal(rows: int, cols: int, block: tuple[int, int], density: float) -> Pattern:
    """Returns dense boxes along the diagonal, in the number that comes nearest to the density."""
    shorter = min(-(-rows // block[0]), -(-cols // block[1]))
    return patterns.block_diagonal(rows, cols, block, min(shorter, max(1, round(1 / density))))


class SkewedCase(Case):
    """A case whose ``pattern`` is one of KINDS or STRUCTURED, or TRAINED."""

    def make_pattern(self, seed: int = 0) -> Pattern:
        """Returns the same pattern for the same seed, everywhere. Raises Error on another kind."""
        if self.pattern in STRUCTURED:
            made = banded if self.pattern == "banded" else block_diagonal
            return made(self.n, self.k, self.block, self.density)
        generator = torch.Generator().manual_seed(seed)
        grid = -(-self.n // self.block[0]), -(-self.k // self.block[1])
        if self.pattern == TRAINED:
            count = patterns.block_count("bench", self.n, self.k, self.block, self.density)
            return patterns.top_k(self.n, self.k, self.block, trained_scores(grid, generator), count)
        if self.pattern not in KINDS:
            known = ", ".join((*KINDS, *STRUCTURED, TRAINED))
            raise Error(
                "bench",
                f"a skewed pattern or a structured one ({known})",
                repr(self.pattern),
                "name one of them",
            )
        draw = lognormal if self.pattern == "lognormal" else barabasi
        return Pattern(self.n, self.k, self.block, draw(grid, self.density, generator))

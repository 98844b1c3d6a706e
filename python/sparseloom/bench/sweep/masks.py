"""The masks of the sweep: which blocks exist, as a pruner, a generator or chance would leave them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ... import pattern as patterns
from ...errors import Error
from ...pattern import Pattern
from ...testing import Case
from .. import skewed
from .scores import demo_scores

MASKS = ("balanced", "bernoulli", "trained", "demo", "banded")
#: The trained mask's scores: |U V^T| of this rank, rows and columns scaled by exp(SIGMA normal), and NOISE
#: times a normal's magnitude.
RANK, SIGMA, NOISE = 8, 0.6, 0.25


def trained_scores(grid: tuple[int, int], generator: torch.Generator) -> Tensor:
    """fp32 [block rows, block columns]: low-rank, as the products of few features are, with rows and columns
    that matter unequally, as training leaves them. A global top-k of it has rows, and columns, of very
    different lengths."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    rows, cols = grid
    low_rank = (normal(rows, RANK) @ normal(RANK, cols)).abs_() / RANK**0.5
    scale = normal(rows, 1).mul_(SIGMA).exp_() * normal(1, cols).mul_(SIGMA).exp_()
    return low_rank * scale + NOISE * normal(rows, cols).abs_()


def bernoulli(grid: tuple[int, int], density: float, generator: torch.Generator) -> Tensor:
    """bool [block rows, block columns]: each block by its own coin; one at least, so that there is a
    product."""
    draws = torch.rand(grid, generator=generator)
    mask = draws < density
    mask.view(-1)[draws.argmin()] = True
    return mask


@dataclass(frozen=True)
class MaskedCase(Case):
    """A case whose mask is one of MASKS, drawn from `mask_seed`; `layer` names the demo's layer where it is
    the demo's."""

    mask_seed: int = 0
    layer: str = ""

    def make_pattern(self, seed: int = 0) -> Pattern:
        """One mask of the problem; `seed` 0 is its own. Exactly block_count(density) blocks and at least one,
        but where chance (bernoulli) or the width of a band decides. Raises Error on another kind of mask, or
        another layer than the demo's."""
        rows, cols, block = self.n, self.k, self.block
        grid = -(-rows // block[0]), -(-cols // block[1])
        generator = torch.Generator().manual_seed(self.mask_seed + seed)
        count = max(1, patterns.block_count("sweep", rows, cols, block, self.density))
        if self.pattern == "balanced":
            return patterns.balanced(rows, cols, block, count / (grid[0] * grid[1]), generator)
        if self.pattern == "bernoulli":
            return Pattern(rows, cols, block, bernoulli(grid, self.density, generator))
        if self.pattern == "banded":
            return skewed.banded(rows, cols, block, self.density)
        if self.pattern == "trained":
            return patterns.top_k(rows, cols, block, trained_scores(grid, generator), count)
        if self.pattern == "demo":
            return patterns.top_k(rows, cols, block, demo_scores(self.layer, block), count)
        raise Error("bench sweep", f"a mask of {', '.join(MASKS)}", repr(self.pattern), "name one of them")

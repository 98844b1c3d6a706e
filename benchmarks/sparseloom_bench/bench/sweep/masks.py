"""Draws the masks of the sweep: which blocks exist, as a pruner, a generator or chance would leave them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparseloom import pattern as patterns
from sparseloom.errors import Error
from sparseloom.pattern import Pattern
from sparseloom.testing import Case

from .. import skewed
from .scores import demo_scores

MASKS = ("balanced", "bernoulli", "trained", "demo", "banded")


def bernoulli(grid: tuple[int, int], density: float, generator: torch.Generator) -> Tensor:
    """Draws each block by its own coin: bool [block rows, block columns]. At least one block is set, so that
    there is a product."""
    draws = torch.rand(grid, generator=generator)
    mask = draws < density
    mask.view(-1)[draws.argmin()] = True
    return mask


@dataclass(frozen=True)
class MaskedCase(Case):
    """A case whose mask is one of MASKS, drawn from `mask_seed`; for the demo's masks, `layer` names the
    demo's layer."""

    mask_seed: int = 0
    layer: str = ""

    def make_pattern(self, seed: int = 0) -> Pattern:
        """Draws one mask of the problem; `seed` 0 gives its own.

        The mask has exactly block_count(density) blocks and at least one, unless chance (bernoulli) or the
        width of a band decides. Raises Error on another kind of mask, or on a layer that the demo does not
        have.
        """
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
            return patterns.top_k(rows, cols, block, skewed.trained_scores(grid, generator), count)
        if self.pattern == "demo":
            return patterns.top_k(rows, cols, block, demo_scores(self.layer, block), count)
        raise Error("bench sweep", f"a mask of {', '.join(MASKS)}", repr(self.pattern), "name one of them")

"""The way of BlockwiseFraction to Bsr: the blocks of the layout are those of the sparsifier."""

from __future__ import annotations

from .._registry import OURS
from ..layouts import Bsr, Dense
from ..sparsify import BlockwiseFraction, Context


@OURS.register_sparsifier(BlockwiseFraction, Dense, Bsr)
def to_blocks(sparsifier: BlockwiseFraction, context: Context) -> Bsr:
    """Returns the layout of the blocks that stay."""
    return Bsr.from_mask(context.weight, sparsifier.select(context), sparsifier.block)

"""Conversions of sparsifiers to layouts that need more than a mask: the size of a block or of a group."""

from __future__ import annotations

from ..layouts import Bsr, Dense, Nm, Nmg
from ..ops.registry import OURS
from ..sparsify import BlockwiseFraction, Context, PerBlockNM


@OURS.register_sparsifier(BlockwiseFraction, Dense, Bsr)
def to_blocks(sparsifier: BlockwiseFraction, context: Context) -> Bsr:
    """Returns the layout of the kept blocks."""
    return Bsr.from_mask(context.weight, sparsifier.select(context), sparsifier.block)


@OURS.register_sparsifier(PerBlockNM, Dense, Nm)
def to_groups(sparsifier: PerBlockNM, context: Context) -> Nm:
    """Returns the layout of the kept elements of each group."""
    mask = sparsifier.select(context)
    return Nm.from_dense(context.weight, sparsifier.n, sparsifier.m, mask=mask)


@OURS.register_sparsifier(PerBlockNM, Dense, Nmg)
def to_grouped(sparsifier: PerBlockNM, context: Context) -> Nmg:
    """Returns the n:m:g layout. It chooses the elements itself, because each pattern must have as many
    outputs."""
    return Nmg.from_dense(context.weight, sparsifier.n, sparsifier.m)

"""The warning about patterns that leave outputs without a block."""

from __future__ import annotations

import warnings

from .._checks import outside
from . import Pattern, head_shape, heads_without_blocks


def warn_of_empty_rows(pattern: Pattern, what: str) -> None:
    """Emits a UserWarning where a pattern that was chosen by density has no block at all, or none in most
    block rows: the outputs of those rows are the bias alone, for every x. ``what`` names the layer in the
    text."""
    filled, rows = int(pattern._bits.any(1).sum()), pattern._bits.shape[0]
    if 2 * filled >= rows:
        return
    if filled:
        text = f"{rows - filled} of {rows} block rows have no block: their outputs are the bias alone"
        remedy = 'scope="row" gives every row its share; or take a higher density or smaller blocks'
    else:
        text = f"0 of {pattern._bits.numel()} blocks are stored: its outputs are the bias alone"
        remedy = "take a higher density or smaller blocks"
    warnings.warn(f"{what}: {text}; {remedy}", stacklevel=outside())


def warn_of_empty_heads(pattern: Pattern, head: tuple[int | None, int | None], what: str) -> None:
    """Emits a UserWarning where heads of an attention have no block at all: their outputs no longer depend
    on x."""
    empty, heads = heads_without_blocks(pattern._bits, pattern.block, head_shape("sparsify_", head))
    if empty and empty < heads:
        text = f"{empty} of {heads} heads have no block"
        warnings.warn(f'{what}: {text}; scope="head" gives every head its share', stacklevel=outside())

"""The sparsifiers that have names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .. import pattern as patterns
from ..errors import Error
from ..pattern import Pattern
from .context import Context, Sparsifier


@dataclass(frozen=True)
class Magnitude(Sparsifier):
    """Keeps the blocks with the largest norm: "l1" (the sum of |w|), "l2" or "max". Blocks of equal norm are
    taken in the order of their index."""

    norm: str = "l1"

    def __call__(self, context: Context) -> Pattern:
        return patterns.from_dense(context.weight, context.block, context.share, self.norm, context.scope)


@dataclass(frozen=True)
class Random(Sparsifier):
    """Keeps the same share of blocks in every block row, whatever their values."""

    needs_values = False

    def __call__(self, context: Context) -> Pattern:
        return patterns.balanced(*context.shape, context.block, context.share, context.generator)


NAMED: dict[str, Sparsifier] = {
    "magnitude": Magnitude("l1"),
    "l2": Magnitude("l2"),
    "max": Magnitude("max"),
    "random": Random(),
}


def sparsifier_of(op: str, select: object, names: Iterable[str] = NAMED, more: str = "") -> Sparsifier:
    """Returns the sparsifier that ``select`` is or names. Raises Error for anything else."""
    names = tuple(names)
    if isinstance(select, Sparsifier):
        return select
    if not isinstance(select, str) or select not in names:
        listed = ", ".join(repr(name) for name in names)
        raise Error(
            op,
            f"select to be one of {listed}{more} or a Sparsifier",
            repr(select),
            'pass select="magnitude"',
        )
    return NAMED[select]

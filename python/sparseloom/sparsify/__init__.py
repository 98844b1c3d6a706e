"""Sparsifiers choose the blocks of a weight that stay, from what a Context tells."""

from .context import Context, Sparsifier
from .select import NAMED, Magnitude, Random, sparsifier_of

__all__ = ["NAMED", "Context", "Magnitude", "Random", "Sparsifier", "sparsifier_of"]

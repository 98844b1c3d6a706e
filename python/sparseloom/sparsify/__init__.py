"""Sparsifiers choose what of a weight stays, blocks or single elements, from what a Context tells."""

from .context import Context, Sparsifier
from .elements import (
    BlockwiseFraction,
    ElementSparsifier,
    KeepAll,
    Learned,
    PerBlockNM,
    RandomFraction,
    SameFormat,
    ScalarFraction,
    ScalarThreshold,
)
from .select import NAMED, Magnitude, Random, sparsifier_of

__all__ = [
    "NAMED",
    "BlockwiseFraction",
    "Context",
    "ElementSparsifier",
    "KeepAll",
    "Learned",
    "Magnitude",
    "PerBlockNM",
    "Random",
    "RandomFraction",
    "SameFormat",
    "ScalarFraction",
    "ScalarThreshold",
    "Sparsifier",
    "sparsifier_of",
]

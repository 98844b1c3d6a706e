"""Sparsifiers choose what of a weight stays, blocks or single elements, from what a Context tells."""
"""Sparsifiers choose the blocks of a weight that stay, from what a Context tells. Methods choose again and
again while it trains."""

from . import densities, gates, gradients, methods, regrow, schedules, scores, select
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
from .distillation import distillation_loss
from .method import Method
from .run import Run
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
    "Context",
    "Magnitude",
    "Method",
    "Random",
    "Run",
    "Sparsifier",
    "densities",
    "distillation_loss",
    "gates",
    "gradients",
    "methods",
    "regrow",
    "schedules",
    "scores",
    "select",
    "sparsifier_of",
]

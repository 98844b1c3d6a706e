"""Sparsifiers choose what of a weight stays, blocks or single elements, from what a Context tells. Methods
choose again and again while it trains."""

from . import densities, gates, gradients, methods, regrow, schedules, scores, select
from .context import Context, Sparsifier
from .distillation import distillation_loss
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
    "Method",
    "PerBlockNM",
    "Random",
    "RandomFraction",
    "Run",
    "SameFormat",
    "ScalarFraction",
    "ScalarThreshold",
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

"""Sparsifiers choose what of a weight stays, blocks or single elements, from what a Context tells. Methods
choose again and again while it trains."""

import importlib
from typing import TYPE_CHECKING, Any

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
from .registered import DENSE, register
from .select import NAMED, Magnitude, Random, sparsifier_of

if TYPE_CHECKING:
    from . import densities, gates, gradients, methods, regrow, schedules, scores, select
    from .distillation import distillation_loss
    from .method import Method
    from .run import Run

__all__ = [
    "DENSE",
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
    "register",
    "regrow",
    "schedules",
    "scores",
    "select",
    "sparsifier_of",
]

#: Where names come from that are imported when they are asked for: the parts of methods would take a fifth of
#: the time that ``import sparseloom`` takes, and most programs train by none.
_LATER = {"Method": "method", "Run": "run", "distillation_loss": "distillation"}
_MODULES = ("densities", "gates", "gradients", "methods", "regrow", "schedules", "scores")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LATER:
        return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

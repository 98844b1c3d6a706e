"""Sparsifiers choose which blocks or single elements of a weight are kept, from the facts in a Context.
Methods choose repeatedly during training."""

import importlib
from typing import TYPE_CHECKING, Any

from .._rooms import Room
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

#: Names that are imported lazily -> their modules: the parts of methods would take a fifth of the time of
#: ``import sparseloom``, and most programs use none of them.
_LATER = {"Method": "method", "Run": "run", "distillation_loss": "distillation"}
_MODULES = ("densities", "gates", "gradients", "methods", "regrow", "schedules", "scores")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LATER:
        return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


Room.of(__name__)

"""Recovery: a sparse model learns from the dense one what pruning took from it."""

from .._rooms import Room
from .distillation import Distillation, Embed
from .result import Recovery
from .training import recover

__all__ = ["Distillation", "Embed", "Recovery", "recover"]

Room.of(__name__, "recover")

"""Checks the optimizers that a call is to change along with the parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.optim import Optimizer

from .errors import Error


def as_optimizers(op: str, optimizer: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer]:
    """Returns one, several or no optimizers as a list, checked before anything is changed. Raises Error for
    what is not an optimizer, and for those without state per parameter or that do not take 3-dimensional
    values."""
    if optimizer is None:
        return []
    found = list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
    for each in found:
        if not isinstance(each, Optimizer):
            raise Error(
                op,
                "optimizer to be a torch.optim.Optimizer, or several",
                type(each).__name__,
                "pass the optimizer itself",
            )
        if isinstance(each, torch.optim.LBFGS):
            raise Error(
                op, "an optimizer with state per parameter", "LBFGS", "make a new LBFGS after this call"
            )
        if type(each).__name__ == "Muon":
            raise Error(
                op,
                "an optimizer that takes 3-dimensional values",
                "Muon",
                "put block-sparse values into an AdamW group",
            )
    return found

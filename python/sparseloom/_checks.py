"""Checks of arguments: numbers and optimizers. Each Error says what the argument takes instead. And warnings,
at the line of the user who gets them."""

from __future__ import annotations

import itertools
import math
import operator
import sys
import warnings
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from .errors import Error


def whole(op: str, name: str, value: Any, least: int | None = 0) -> int:
    """Returns any integer as an int. Raises Error for a bool, for anything that is not an integer, and for a
    value below ``least``."""
    expected = f"{name} to be an int" + ("" if least is None else f" >= {least}")
    try:
        number = (
            None if isinstance(value, bool) or value.__class__.__name__ == "bool" else operator.index(value)
        )
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        raise Error(op, expected, repr(value), f"pass {name} as a whole number")
    return number


def require_sizes(op: str, model: nn.Module) -> None:
    """Raises Error for a model with lazy parameters or buffers, which have no sizes yet."""
    for name, value in itertools.chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(value):
            raise Error(op, "a model of known sizes", f"lazy {name}", "run the model once first")


def share(op: str, value: Any, name: str = "density") -> float:
    """Returns a density, or another share, as a float. Raises Error for anything that is not a real number;
    the range is checked where the share is used."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise Error(op, f"{name} in [0, 1]", repr(value), f"pass a share as a number: {name}=0.25")
    return float(value)


def gradient_rule(op: str, share_of_pruned: Any, decay: Any) -> tuple[float, float]:
    """Returns the share of the gradient that pruned weights get and the decay that is added, as floats.
    Raises Error for a share outside of [0, 1], and for a decay that is negative or not finite."""
    part, rate = share(op, share_of_pruned, "share"), not_negative(op, "decay", decay)
    if not 0 <= part <= 1:
        raise Error(op, "share in [0, 1]", repr(share_of_pruned), "1 is straight through, 0 is masked")
    return part, rate


def not_negative(op: str, name: str, value: Any, example: str = "2e-4, or 0 for none") -> float:
    """Returns a number as a float. Raises Error unless it is a finite one of at least 0."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= float(value) < math.inf:
        raise Error(op, f"{name} to be a finite number >= 0", repr(value), f"pass {name}={example}")
    return float(value)


def several(op: str, name: str, values: Any, example: str) -> list[Any]:
    """Returns a sequence as a list. Raises Error for a text, and for what is none."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise Error(op, f"{name} to be a list", repr(values), f"pass {name}={example}")
    return list(values)


def require_mask(
    op: str, mask: Any, shape: Sequence[int], remedy: str = "pass weight != 0, for example"
) -> None:
    """Raises Error unless ``mask`` is a bool tensor of the weight's shape."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != tuple(shape):
        got = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
        raise Error(op, f"a bool mask {list(shape)}", got, remedy)


def require_bool(op: str, name: str, value: Any) -> None:
    """Raises Error for anything that is not True or False, such as an argument in the wrong position."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        got, remedy = type(value).__name__, f"pass {name}=True or False, and other arguments by their names"
        raise Error(op, f"{name} to be a bool", got, remedy)


def _inner(optimizer: Any) -> Any:
    """Returns what a wrapper such as accelerate's, which has no hooks of its own, steps."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, Optimizer) and isinstance(optimizer, Optimizer) else optimizer


def as_optimizers(op: str, optimizer: Optimizer | Sequence[Optimizer] | None) -> list[Optimizer]:
    """Returns one, several or no optimizers as a list, checked before anything is changed. Raises Error for
    anything that is not an optimizer, and for optimizers that have no state per parameter or do not take
    3-dimensional values."""
    if optimizer is None:
        return []
    optimizers = [_inner(each) for each in (optimizer if isinstance(optimizer, Iterable) else [optimizer])]
    for candidate in optimizers:
        if not isinstance(candidate, Optimizer):
            raise Error(
                op,
                "optimizer to be a torch.optim.Optimizer, or several",
                type(candidate).__name__,
                "pass the optimizer itself",
            )
        if isinstance(candidate, torch.optim.LBFGS):
            raise Error(
                op, "an optimizer with state per parameter", "LBFGS", "make a new LBFGS after this call"
            )
        if type(candidate).__name__ == "Muon":
            raise Error(
                op,
                "an optimizer that takes 3-dimensional values",
                "Muon",
                "put block-sparse values into an AdamW group",
            )
    return optimizers


def warn(text: str) -> None:
    """Emits a UserWarning at the first caller outside of this package."""
    warnings.warn(text, stacklevel=outside())


def outside() -> int:
    """Returns the stack level of the first caller outside of this package, counted from the caller of this
    function."""
    package, level = __name__.partition(".")[0] + ".", 1
    frame = sys._getframe(1)
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith(package):
        frame, level = frame.f_back, level + 1
    return level

"""Numbers from callers: numpy's and torch's count as Python's do, and what is no number is refused in our
words."""

from __future__ import annotations

import operator
from numbers import Real
from typing import Any

from .errors import Error


def whole(op: str, name: str, value: Any, least: int | None = 0) -> int:
    """An int from whatever is an integer, bools left out. Raises Error on anything else, and below
    ``least``."""
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


def share(op: str, value: Any, name: str = "density") -> float:
    """A density, or another share, as a float. Raises Error on what is no real number; its range is checked
    where it is used."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise Error(op, f"{name} in [0, 1]", repr(value), f"pass a share as a number: {name}=0.25")
    return float(value)

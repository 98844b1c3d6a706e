"""The one exception of the library, with the same text as the C++ core's."""

from __future__ import annotations

import re

import torch

_TEXT = re.compile(r"\[(?P<op>[\w.]+)\] expected (?P<expected>.*?), got (?P<actual>.*?); (?P<remedy>.*)", re.DOTALL)


class Error(RuntimeError, ValueError):
    """What was asked, what was expected, what came, and what to do about it.

    Both a RuntimeError (what torch's own operators raise) and a ValueError, so that code written for either catches it.
    ``str(error)`` reads ``[op] expected <expected>, got <actual>; <remedy>``.
    """

    def __init__(self, op: str, expected: str, actual: str, remedy: str) -> None:
        super().__init__(f"[{op}] expected {expected}, got {actual}; {remedy}")
        self.op = op
        self.expected = expected
        self.actual = actual
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[Error], tuple[str, str, str, str]]:
        return type(self), (self.op, self.expected, self.actual, self.remedy)


def translated(error: RuntimeError) -> RuntimeError:
    """The Error that the C++ core meant, or ``error`` itself when it is none of ours.

    Across the binding only the text survives, with whatever torch puts around it. Too little memory on a GPU is torch's own
    OutOfMemoryError, which batch-size finders and training loops look for.
    """
    found = _TEXT.search(str(error))
    if isinstance(error, Error) or found is None:
        return error
    ours = Error(**found.groupdict())
    return torch.OutOfMemoryError(str(ours)) if ours.actual == "out of memory" else ours

"""Tells the progress of a flow: by a bar, or to a function."""

from __future__ import annotations

from collections.abc import Callable

from .._progress import Bar
from ..errors import Error

Told = Callable[[int, int, str], None]


def reporter(progress: bool | Told, bar: Bar) -> Told:
    """Returns what is called with (done, total, name). Raises Error for anything else than a bool or a
    function."""
    if progress is True:

        def tell(done: int, total: int, name: str) -> None:
            bar.total = total
            bar.at(done, name)

        return tell
    if progress is False:
        return lambda done, total, name: None
    if not callable(progress):
        remedy = "pass True, False, or a function of (done, total, name)"
        raise Error("prune_", "progress to be a bool or a function", type(progress).__name__, remedy)
    return progress

"""Tells the progress of a flow: by a bar of tqdm, or to a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import Error

Told = Callable[[int, int, str], None]


def reporter(progress: bool | Told) -> Told:
    """Returns what is called with (done, total, name). Raises Error for anything else than a bool or a
    function."""
    if progress is True:
        return _Bar()
    if progress is False:
        return lambda done, total, name: None
    if not callable(progress):
        remedy = "pass True, False, or a function of (done, total, name)"
        raise Error("prune_", "progress to be a bool or a function", type(progress).__name__, remedy)
    return progress


class _Bar:
    def __init__(self) -> None:
        self._bar: Any = None

    def __call__(self, done: int, total: int, name: str) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return
        if self._bar is None:
            self._bar = tqdm(
                total=total, desc="prune_", unit="block", disable=None
            )  # None: no terminal, no bar
        self._bar.set_postfix_str(name, refresh=False)
        self._bar.update(done - self._bar.n)
        if done == total:
            self._bar.close()

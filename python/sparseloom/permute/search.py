"""Searches for the order of a weight's inputs in another thread, so that Ctrl-C ends it and its progress is
logged: a search takes minutes for a layer of many thousand inputs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

from ..ops import call
from ..patch.announce import announce

_LOOK_SECONDS = 0.05
#: Time between two log lines of a search. Most searches end before the first.
TELL_SECONDS = 10.0


def channel_order(part: Tensor, rounds: int, what: str) -> Tensor:
    """Returns an order of the columns of ``part`` [rows, columns], a float CPU tensor, as int64 [columns];
    ``what`` names it in the log. Raises the operator's errors; on an interrupt the search ends first."""
    watch = torch.zeros(4, dtype=torch.int64, device="cpu")
    results: list[Tensor] = []
    raised: list[BaseException] = []

    def search() -> None:
        try:
            results.append(call("semi24_channel_order", part, rounds, watch))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=search, name="sparseloom channel order", daemon=True)
    thread.start()
    try:
        _wait(thread, lambda: _tell(what, watch))
    except BaseException:
        watch[0] = 1
        thread.join()  # it still reads the weight's memory
        raise
    if raised:
        raise raised[0]
    return results[0]


def _wait(thread: threading.Thread, tell: Callable[[], None]) -> None:
    last = time.monotonic()
    while thread.is_alive():
        thread.join(_LOOK_SECONDS)
        if time.monotonic() - last > TELL_SECONDS:
            last = time.monotonic()
            tell()


def _tell(name: str, watch: Tensor) -> None:
    _, finished, scored, groups = watch.tolist()
    announce(f"permute_channels_: {name}, round {finished + 1}, {100 * scored / max(1, groups):.0f} % of it")

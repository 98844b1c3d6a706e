"""Searches for the order of a weight's inputs in another thread, so that Ctrl-C ends it and its progress is
told: a search takes minutes for a layer of many thousand inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from ..ops import call

_LOOK_SECONDS = 0.05


def channel_order(part: Tensor, rounds: int, tell: Callable[[str], None]) -> Tensor:
    """Returns an order of the columns of ``part`` [rows, columns], a float CPU tensor, as int64 [columns];
    ``tell`` is called with how far it is. Raises the operator's errors; on an interrupt the search ends
    first."""
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
        while thread.is_alive():
            thread.join(_LOOK_SECONDS)
            _, finished, scored, groups = watch.tolist()
            tell(f"round {finished + 1}, {100 * scored / max(1, groups):.0f} % of it")
    except BaseException:
        watch[0] = 1
        thread.join()  # it still reads the weight's memory
        raise
    if raised:
        raise raised[0]
    return results[0]

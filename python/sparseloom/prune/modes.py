"""The modes in which a model computes: autocast as its own forward has it, and nothing compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

import torch

_KINDS = ("cpu", "cuda")
#: Of each kind of device: whether autocast is on, and its dtype.
Autocast: TypeAlias = tuple[tuple[str, bool, torch.dtype], ...]


def autocast_now() -> Autocast:
    """Returns the state of autocast."""
    return tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _KINDS)


@contextmanager
def autocasting(state: Autocast | None) -> Iterator[None]:
    """Runs the body in a state of autocast; None: off, as sums and solutions need it."""
    with ExitStack() as stack:
        for kind, enabled, dtype in state or [(kind, False, None) for kind in _KINDS]:
            if enabled or torch.is_autocast_enabled(kind):
                # its cache would keep weights as they were before they were pruned
                stack.enter_context(torch.autocast(kind, dtype, enabled, cache_enabled=False))
        yield


@contextmanager
def uncompiled() -> Iterator[None]:
    """Runs compiled modules eagerly: what was compiled before calls no hooks that were added since."""
    with torch.compiler.set_stance("force_eager"):
        yield

"""Announces the results of sparsify_, densify_, quantize_ and load(sparsify=True)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

_LOG = logging.getLogger("sparseloom")
_silent = False


def announce(result: object) -> None:
    """Logs the result at INFO. In a program that configured no logging the text goes to stderr, as Python
    itself does with warnings there, but only on the first rank. A handler or a level on the logger
    "sparseloom", or on one above it, decides otherwise."""
    if _silent:
        return
    if _LOG.hasHandlers() or _LOG.level > logging.INFO or _LOG.disabled:
        _LOG.info("%s", result)
    elif not (dist.is_available() and dist.is_initialized() and dist.get_rank()):
        sys.stderr.write(f"{result}\n")


@contextmanager
def unannounced() -> Iterator[None]:
    """Lets the calls in the body announce nothing: they are steps of a call that announces its own result."""
    global _silent
    before, _silent = _silent, True
    try:
        yield
    finally:
        _silent = before

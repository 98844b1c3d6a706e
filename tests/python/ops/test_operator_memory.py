"""Calls of operators leave nothing on the heap."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2]))

from campaigns.calls import calls

CALLS, ROUNDS = 300, 3


class Heap(ctypes.Structure):
    """struct mallinfo2 of glibc 2.33 and later."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "free", "fast", "maps", "mapped", "max", "fastest", "used", "rest", "top")
    ]


LIBC = ctypes.CDLL(None)
if hasattr(LIBC, "mallinfo2"):
    LIBC.mallinfo2.restype = Heap


def used() -> int:
    now = LIBC.mallinfo2()
    return int(now.used + now.mapped)


@pytest.mark.skipif(not hasattr(LIBC, "mallinfo2"), reason="this libc has no mallinfo2")
def test_no_call_of_an_operator_leaves_bytes() -> None:
    left = {}
    for name, arguments in calls().items():
        call = getattr(torch.ops.sparseloom, name)
        # torch before 2.14 frees no str that a stable operator returns (findings/).
        if any(str(result.type) == "str" for result in call.default._schema.returns):
            continue
        grown = []
        for _ in range(ROUNDS):
            before = used()
            for _ in range(CALLS):
                call(*arguments)
            grown.append((used() - before) / CALLS)
        if min(grown) >= 8:  # a str of each call left 48 bytes and more
            left[name] = min(grown)
    assert not left, f"bytes a call: {left}"

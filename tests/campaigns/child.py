"""Runs many small trials in a forked child, which may die, hang or run out of memory without harm."""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

#: CPU seconds that one trial may take, and seconds, after which it waits for something that does not come.
SECONDS, WAITED = 20, 600
#: Bytes that the child may have beyond the parent's.
MEMORY = 2 << 30


def address_space() -> int:
    """Returns the bytes of this process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def trials(
    count: int, one: Callable[[int], str], seconds: int = SECONDS, limited: bool = True
) -> list[tuple[int, str]]:
    """Runs one(0) .. one(count - 1), which return "" or what is wrong. Returns (number, text) of the wrong
    ones; one that ends the process is named by its signal, and the rest goes on in another child.
    ``limited``: whether its memory is."""
    wrong: list[tuple[int, str]] = []
    begin = 0
    while begin < count:
        with mmap.mmap(-1, 8) as shared:
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(read)
                _work(begin, count, one, seconds, limited, shared, write)
            os.close(write)
            with os.fdopen(read) as lines:
                wrong += [(at, text) for at, text in map(json.loads, lines)]
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            at = int.from_bytes(shared[:8], "little")
            if status == 0:
                break
            died = signal.Signals(-status).name if status < 0 else f"exit {status}"
            wrong.append((at, f"the process ended by {died}"))
            begin = at + 1
    return wrong


def _work(
    begin: int, count: int, one: Callable[[int], str], seconds: int, limited: bool,
    shared: mmap.mmap, pipe: int,
) -> None:  # fmt: skip
    """The child's part, which does not return."""
    status = 1
    try:
        used = address_space()
        if limited:
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for ends in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(ends, signal.SIG_DFL)
        for at in range(begin, count):
            shared[:8] = at.to_bytes(8, "little")
            signal.setitimer(signal.ITIMER_PROF, seconds)
            signal.alarm(WAITED)
            try:
                text = one(at)
            except BaseException as error:  # every kind of it is a finding
                text = f"{type(error).__name__}: {error}"
            if text:
                os.write(pipe, (json.dumps([at, text[:500]]) + "\n").encode())
        status = 0
    finally:
        os._exit(status)


def require_none(name: str, wrong: Sequence[tuple[int, str]]) -> None:
    """Raises AssertionError that names the first wrong trials."""
    if wrong:
        shown = "; ".join(f"trial {at}: {text}" for at, text in wrong[:5])
        raise AssertionError(f"{name}: {len(wrong)} wrong: {shown}")

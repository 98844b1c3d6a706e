"""Handles Ctrl-C and SIGTERM: they are noted and obeyed after the current step, so that what is saved is a
whole step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupted(BaseException):
    """Says that a signal asked the demo to end. It is a BaseException so that no `except Exception` swallows
    it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


class Interrupts:
    """Takes signals within `with Interrupts() as interrupts`.

    While `deferring`, the first signal only sets `pending`; a second one raises, and so does any signal while
    not `deferring`. Only the main thread can take signals; elsewhere (a test runner's worker) nothing is
    installed.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.pending: Interrupted | None = None
        self.deferring = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in self.SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        second = self.pending is not None
        self.pending = Interrupted(number)
        if second or not self.deferring:
            raise self.pending

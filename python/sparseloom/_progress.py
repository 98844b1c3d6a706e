"""Bar: says on a terminal how far a call is that takes longer than two seconds."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TypeVar

import torch.distributed as dist

Item = TypeVar("Item")
_LOG = logging.getLogger("sparseloom")
#: A call that ends before this many seconds shows nothing: most do, and a line that flashes says nothing.
_QUIET_SECONDS = 2.0
#: Time between two changes of the line, and between two entries of the log.
_LINE_SECONDS, _LOG_SECONDS = 0.1, 10.0
_CELLS, _WIDTH = 20, 100


class Bar:
    """A line on stderr, where that is a terminal, after two seconds of the call: a bar, the count, the name
    of what is being done and the time. Elsewhere it is silent, but for a line in the log "sparseloom" at INFO
    every ten seconds. A bar within another one shows nothing of its own, and ranks but the first nothing."""

    _open: Bar | None = None

    def __init__(self, op: str, total: int = 0) -> None:
        self.op, self.total, self.done, self.text = op, total, 0, ""
        self._start = self._line = self._log = time.monotonic()
        self._shown = False

    def __enter__(self) -> Bar:
        if Bar._open is None:
            Bar._open = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if Bar._open is self:
            Bar._open = None
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False

    def at(self, done: int, text: str) -> None:
        """Says that so many are done, and which one follows."""
        self.done, self.text = done, text
        self.tell()

    def over(self, items: Iterable[Item], name: Callable[[Item], str] = str) -> Iterator[Item]:
        """Yields the items, and says which one is being worked on."""
        every = list(items)
        self.total = len(every)
        for done, item in enumerate(every):
            self.at(done, name(item))
            yield item

    def tell(self, detail: str = "") -> None:
        """Shows the line if it is time; long steps call this from time to time, with how far they are."""
        now = time.monotonic()
        if Bar._open is not self or now - self._start < _QUIET_SECONDS or _is_other_rank():
            return
        words = f"{self.op}: {self.done} of {self.total}, {self.text}{detail and ', '}{detail}"
        if now - self._log >= _LOG_SECONDS:
            self._log = now
            _LOG.info("%s, %.0f s", words, now - self._start)
        if sys.stderr.isatty() and now - self._line >= _LINE_SECONDS:
            self._line, self._shown = now, True
            filled = _CELLS * self.done // max(1, self.total)
            line = f"[{'#' * filled}{'.' * (_CELLS - filled)}] {now - self._start:.0f} s  {words}"
            sys.stderr.write(f"\r\x1b[K{line[:_WIDTH]}")
            sys.stderr.flush()


def _is_other_rank() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_rank() > 0

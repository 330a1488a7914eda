"""How far a long reading or sending has come, on stderr: in place on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TextIO, TypeVar

_T = TypeVar("_T")
_EVERY_S = 0.5
_EVERY_S_IN_LOGS = 10.0


class Progress:
    """Says `verb` and a count; nothing at all for what ends within the first interval."""

    def __init__(self, verb: str, *, of: int | None = None, stream: TextIO | None = None) -> None:
        self._verb = verb
        self._of = f" of {of:,}" if of is not None else ""
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._next_s = time.monotonic() + (_EVERY_S if self._live else _EVERY_S_IN_LOGS)
        self._shown = False

    def note(self, count: int) -> None:
        """Say the count, if it is time to."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + (_EVERY_S if self._live else _EVERY_S_IN_LOGS)
        self._shown = True
        self._stream.write(f"\r{self._verb} {count:,}{self._of}" if self._live else f"{self._verb} {count:,}{self._of}\n")
        self._stream.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._shown and self._live:
            self._stream.write("\n")
            self._shown = False

    def over(self, items: Iterable[_T]) -> Iterator[_T]:
        """The items, counted as they pass."""
        try:
            for count, item in enumerate(items, start=1):
                self.note(count)
                yield item
        finally:
            self.end()

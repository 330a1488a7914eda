"""How far a gathering is, on stderr: one line that is written over on a terminal, one every ten seconds elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from headrace.gather import Sheet

SPAN_S = 30.0
QUIET_S = 5.0  # without an answer for so long, all the rest may well wait for something


class Pace:
    """Tells sent, answered, failed, the time left at the pace of the last half minute while answers come, and what the reading suffers from."""

    def __init__(self, stream: TextIO, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._over = stream.isatty()
        self._every_s = 0.5 if self._over else 10.0
        self._now_s = now_s
        self._said_at_s = now_s()
        self._seen: deque[tuple[float, int]] = deque()
        self._answered, self._answered_at_s = 0, now_s()
        self._open = False

    def __call__(self, sent: int, sheet: Sheet, trouble: str | None) -> None:
        now_s = self._now_s()
        if not self._seen:
            self._seen.append((now_s, len(sheet)))
        if len(sheet) != self._answered:
            self._answered, self._answered_at_s = len(sheet), now_s
        if now_s - self._said_at_s < self._every_s:
            return
        self._said_at_s = now_s
        self._seen.append((now_s, len(sheet)))
        while len(self._seen) > 2 and now_s - self._seen[0][0] > SPAN_S:
            self._seen.popleft()
        line = f"{sent} sent, {len(sheet)} of {sheet.total} answered, {len(sheet) - sheet.counts['completed']} failed, {self._left(sheet)}"
        line += f"; {trouble}" if trouble else ""
        self._stream.write(f"\r\x1b[K{line}" if self._over else f"{line}\n")
        self._stream.flush()
        self._open = self._over

    def end(self) -> None:
        """Leave the line it was writing over."""
        if self._open:
            self._stream.write("\n")
            self._open = False

    def _left(self, sheet: Sheet) -> str:
        (since_s, before), (now_s, answered) = self._seen[0], self._seen[-1]
        left = sheet.total - answered
        if answered and left and now_s - self._answered_at_s >= QUIET_S:
            return f"{left} {'waits' if left == 1 else 'wait'} for a retry, a pause or a slow call"
        if answered == before:
            return "time left unknown"
        left_s = left * (now_s - since_s) / (answered - before)
        return f"{left_s:.0f} s left" if left_s < 100 else f"{left_s / 60:.0f} min left"

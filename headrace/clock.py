"""A worker's now: its monotonic clock plus the offset to Redis TIME. Never backwards; the wall clock is read once, where Redis is away."""

from __future__ import annotations

import threading
import time

SLEW = 0.05


class Clock:
    """Milliseconds since the epoch that only grow. Thread-safe.

    `sync` gives it the server's time. A correction forward is taken at once; one backward is slewed: the clock
    runs 5 % slow until it has been paid back.
    """

    def __init__(self, *, monotonic_s: float | None = None, wall_ms: int | None = None) -> None:
        self._lock = threading.Lock()
        mono = time.monotonic() if monotonic_s is None else monotonic_s
        self._wall_ms = time.time_ns() // 1_000_000 if wall_ms is None else wall_ms
        self._offset_ms = self._wall_ms - mono * 1000.0
        self._target_ms = self._offset_ms
        self._slewed_at = mono
        self._last_ms = 0
        self._synced = False

    @property
    def synced(self) -> bool:
        """Whether a server's time was ever taken; before that it is the wall clock of the start."""
        return self._synced

    def sync(self, server_ms: float, *, monotonic_s: float | None = None) -> None:
        """Take a server's time, measured at `monotonic_s` (now, if not given)."""
        mono = time.monotonic() if monotonic_s is None else monotonic_s
        with self._lock:
            self._slew(mono)
            self._target_ms = server_ms - mono * 1000.0
            if self._last_ms == 0 or self._target_ms > self._offset_ms:
                self._offset_ms = self._target_ms
            self._synced = True

    def now_ms(self, *, monotonic_s: float | None = None) -> int:
        """Epoch milliseconds."""
        mono = time.monotonic() if monotonic_s is None else monotonic_s
        if self._target_ms < self._offset_ms:
            with self._lock:
                self._slew(mono)
        now = int(self._offset_ms + mono * 1000.0)
        self._last_ms = max(self._last_ms, now)
        return self._last_ms

    def _slew(self, mono: float) -> None:
        step = max(0.0, mono - self._slewed_at) * 1000.0 * SLEW
        self._offset_ms = max(self._target_ms, self._offset_ms - step)
        self._slewed_at = mono

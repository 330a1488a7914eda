"""What a worker is doing, every ten seconds in one line: outcomes by lane, kind and class since the last one."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import structlog

EVERY_S = 10.0


class Progress:
    """A hook. Speaks at the first settle after a quiet time, then at most every `every_s`; what was counted last is told at the stop."""

    def __init__(self, *, every_s: float = EVERY_S, log: Any = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._log = log if log is not None else structlog.get_logger()
        self._now_s = now_s
        self._lock = threading.Lock()  # each lane settles on a thread of its own
        self._counts: dict[str, Counter[str]] = {}
        self._said_at = now_s()

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        """Count what is settled; say it when it is time, or when the process stops."""
        if name == "settled":
            with self._lock:
                lane = self._counts.setdefault(fields["lane"], Counter())
                for (outcome, error_class), count in fields["counts"].items():
                    lane[f"{outcome}_{error_class}" if error_class else outcome] += count
        if (name == "settled" and self._now_s() - self._said_at >= self._every_s) or name == "stopped":
            self._say()

    def _say(self) -> None:
        with self._lock:
            counts, self._counts = self._counts, {}
            self._said_at = self._now_s()
        for lane, outcomes in sorted(counts.items()):
            self._log.info("settled", lane=lane, **dict(sorted(outcomes.items())))

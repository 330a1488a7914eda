"""Lines about single requests: which one is retried or dead, its trace, class and attempt. Few a second, whatever happens; the rest is a count.

Retries at debug, dead letters at info: the dead-letter lane says each of them as an error.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from headrace.bucket import Bucket

PER_S = 20.0
BURST = 50


class Requests:
    """A hook: reads the ends that a settle has noted. Every lane settles on a thread of its own."""

    def __init__(self, *, log: Any = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._log = log if log is not None else structlog.get_logger()
        self._now_s = now_s
        self._lock = threading.Lock()
        # a storm of retries must not use up what dead letters may say
        self._room = {level: Bucket(burst=BURST, per_s=PER_S) for level in ("debug", "info")}
        self._unsaid: Counter[str] = Counter()

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        """Say what there is room for."""
        if name != "settled" or not (tally := fields["tally"]).ends:
            return
        with self._lock:
            now = self._now_s()
            for end in tally.ends:
                self._say(fields["lane"], end, now)
            for outcome, count in tally.unnoted.items():
                self._unsaid[_level(outcome)] += count

    def _say(self, lane: str, end: Any, now: float) -> None:
        level = _level(end.outcome)
        if self._room[level].wait_s(now) > 0:
            self._unsaid[level] += 1
            return
        self._room[level].take(now)
        told = {
            "request_id": end.request_id, "trace_id": end.trace_id, "error_class": end.error_class, "attempt": end.attempt,
            "provider": end.provider, "latency_ms": end.latency_ms, "position": end.position, "unsaid": self._unsaid.pop(level, None),
        }  # fmt: skip
        say = getattr(self._log, level)
        say(f"request_{end.outcome}", lane=lane, **{name: value for name, value in told.items() if value is not None})


def _level(outcome: str) -> str:
    return "debug" if outcome == "retry" else "info"

"""Counts every event in memory: the demo's live table, the tests, and later the metrics read from it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any


class Counters:
    """A hook. `settled` events count once for each of their `counts`, by lane and outcome."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.events: Counter[str] = Counter()
        self.outcomes: Counter[tuple[str, str, str]] = Counter()

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        with self._lock:
            self.events[name] += 1
            if name == "settled":
                for (outcome, error_class), count in fields["counts"].items():
                    self.outcomes[fields["lane"], outcome, error_class] += count

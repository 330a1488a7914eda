"""A line every ten seconds says what was settled; nothing is said twice, and nothing is left unsaid at the stop."""

from __future__ import annotations

from collections import Counter
from typing import Any

from headrace.instrument.progress import Progress


class Log:
    """Keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})


def settled(lane: str, **outcomes: int) -> dict[str, Any]:
    return {"lane": lane, "counts": Counter({tuple(name.split("__")) if "__" in name else (name, ""): n for name, n in outcomes.items()})}


def test_it_speaks_every_ten_seconds_and_counts_in_between() -> None:
    """Three settles within ten seconds are one line, with the sum of each kind and class."""
    log, now = Log(), [0.0]
    progress = Progress(log=log, now_s=lambda: now[0])
    for at in (1.0, 5.0):
        now[0] = at
        progress("settled", settled("main", completed=10, retry__server_error=2))
    assert log.lines == []
    now[0] = 10.5
    progress("settled", settled("main", completed=1, dead__timeout=1))
    assert log.lines == [{"event": "settled", "lane": "main", "completed": 21, "dead_timeout": 1, "retry_server_error": 4}]


def test_the_rest_is_told_at_the_stop() -> None:
    """What was settled after the last line is told when the process stops, lane by lane, once."""
    log = Log()
    progress = Progress(log=log, now_s=lambda: 0.0)
    progress("settled", settled("retry", completed=1))
    progress("settled", settled("main", completed=2))
    progress("stopped", {})
    progress("stopped", {})
    assert [(line["lane"], line["completed"]) for line in log.lines] == [("main", 2), ("retry", 1)]

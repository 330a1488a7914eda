"""Progress is for who waits: in place on a terminal, rare elsewhere, and nothing for what is over at once."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from headrace.dlq import progress
from headrace.dlq.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give the time, to be set."""
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_short_work_says_nothing() -> None:
    """What ends within the interval leaves no trace."""
    stream = Terminal()
    assert list(Progress("read", stream=stream).over(range(1000))) == list(range(1000))
    assert stream.getvalue() == ""


def test_a_terminal_gets_one_line_in_place(now_s: list[float]) -> None:
    """On a terminal the count is rewritten in place, and the line is left at the end."""
    stream = Terminal()
    shown = Progress("sent", of=2000, stream=stream)
    for count, at in ((10, 0.1), (600, 0.6), (700, 0.7), (1500, 1.2)):
        now_s[0] = at
        shown.note(count)
    shown.end()
    assert stream.getvalue() == "\rsent 600 of 2,000\rsent 1,500 of 2,000\n"


def test_a_log_gets_a_line_now_and_then(now_s: list[float]) -> None:
    """Elsewhere whole lines come, at most one in ten seconds."""
    stream = io.StringIO()
    shown = Progress("read", stream=stream)
    for second in range(30):
        now_s[0] = float(second)
        shown.note(second)
    shown.end()
    assert stream.getvalue() == "read 10\nread 20\n"

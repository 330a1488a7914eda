"""The log: what an operator reads, a line per event."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import orjson
import pytest
import structlog

from headrace.instrument.log import LogHook, configure, summarised


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure(stream=stream, json=True)
    yield stream
    structlog.reset_defaults()


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in out.getvalue().splitlines()]


def test_partitions_are_summarised() -> None:
    """Runs of a topic's partitions are written as a range, in the order of their numbers, each topic once."""
    names = [*(f"main/{n}" for n in (10, 2, 0, 1, 3, 7)), "retry/0"]
    assert summarised(names) == "main: 0-3 7 10, retry: 0"
    assert summarised([]) == ""


def test_an_assignment_of_nothing_is_no_line(out: io.StringIO) -> None:
    """Assigned and revoked are told only where there is a partition, and then in one short field."""
    hook = LogHook()
    hook("assigned", {"group": "g", "partitions": []})
    hook("revoked", {"group": "g", "partitions": [], "drained": True})
    hook("assigned", {"group": "g", "partitions": ["main/0", "main/1"]})
    (line,) = lines(out)
    assert (line["event"], line["partitions"]) == ("assigned", "main: 0-1")


def test_a_pause_for_a_stop_is_no_warning(out: io.StringIO) -> None:
    """A lane that pauses because it stops says so as info; any other reason is a warning."""
    hook = LogHook()
    hook("lane_paused", {"group": "g", "reason": "stop"})
    hook("lane_paused", {"group": "g", "reason": "every target is shut"})
    assert [line["level"] for line in lines(out)] == ["info", "warning"]


def test_times_have_milliseconds(out: io.StringIO) -> None:
    """The time of a line is RFC 3339 in UTC with three digits of a second."""
    LogHook()("started", {})
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(lines(out)[0]["timestamp"]))

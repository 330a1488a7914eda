"""Where an end that lies behind is sought, and what counts as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from headrace.config import Settings
from headrace.envelope import Record
from headrace.results import Asked, LookBack, Told, lookback

HOUR = 3_600_000
NOW = 100 * HOUR
FINGERPRINT = b"f" * 24
Topic = dict[int, list[tuple[int, str, str]]]


class Log:
    """A topic in memory: by partition (appended ms, id, status), and the spans that were read."""

    def __init__(self, records: Topic) -> None:
        self.records = records
        self.read: list[dict[int, tuple[int, int]]] = []

    def span(self, _settings: Any, _topic: str, *, since_ms: int | None = None, partitions: frozenset[int] | None = None) -> Any:
        spans = {}
        for partition, records in self.records.items():
            if partitions is None or partition in partitions:
                first = next((n for n, (at, _, _) in enumerate(records) if at >= (since_ms or 0)), len(records))
                spans[partition] = (first, len(records))
        return spans

    def scan(self, _settings: Any, topic: str, *, within: dict[int, tuple[int, int]]) -> Iterator[Record]:
        self.read.append(within)
        for partition, (first, end) in within.items():
            for offset in range(first, end):
                at, request_id, status = self.records[partition][offset]
                headers = [("headrace_status", status.encode()), ("headrace_fingerprint", FINGERPRINT)]
                value = orjson.dumps({"request_id": request_id, "status": status, "of": "completed"})
                yield Record(topic, partition, offset, 0, request_id.encode(), value, headers, at)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    def look(records: Topic, asked: dict[bytes, Asked]) -> tuple[dict[str, tuple[str, int]], Log]:
        log = Log(records)
        monkeypatch.setattr(lookback, "span", log.span)
        monkeypatch.setattr(lookback, "scan", log.scan)
        ends: list[Told] = list(LookBack(Settings()).find(asked))
        assert len({end.key for end in ends}) == len(ends), "each id once"
        return {end.key.decode(): (end.status, end.appended_ms) for end in ends}, log

    return look


def test_a_minute_around_its_time_is_enough(found: Any) -> None:
    """What was marked right after its result is found without reading what came long before or after."""
    records = {0: [(n * HOUR // 10, f"x{n}", "completed") for n in range(1000)] + [(NOW, "a", "completed")], 1: []}
    ends, log = found(records, {b"x500": Asked("completed", 50 * HOUR + 5, 0, FINGERPRINT)})
    assert ends == {"x500": ("completed", 50 * HOUR)}
    assert [sum(end - first for first, end in span.values()) for span in log.read] == [1]


def test_it_widens_until_it_is_there(found: Any) -> None:
    """A mark that came late, a result in another partition, and one that is gone: each is looked for ever wider, and then not found."""
    records = {0: [(NOW - HOUR // 2, "half", "completed"), (NOW - 9 * HOUR, "nine", "completed")], 1: [(5, "other", "completed")]}
    records[0].sort()
    asked = {name: Asked("completed", NOW, 0, FINGERPRINT) for name in (b"half", b"nine", b"other", b"gone")}
    ends, log = found(records, asked)
    assert set(ends) == {"half", "nine", "other"}
    assert len(log.read) == 4


def test_of_failures_the_last_one_of_answers_the_only_one(found: Any) -> None:
    """A dead letter that was replayed and died again is told as it died last; a failure before an answer is no end of `completed`."""
    records = {0: [(NOW - 3000, "d", "failed"), (NOW - 2000, "c", "failed"), (NOW - 1000, "d", "failed"), (NOW - 500, "c", "completed")]}
    ends, _ = found(records, {b"d": Asked("dead", NOW, 0, FINGERPRINT), b"c": Asked("completed", NOW, 0, FINGERPRINT)})
    assert ends == {"d": ("failed", NOW - 1000), "c": ("completed", NOW - 500)}


def test_of_one_under_way_only_what_came_since(found: Any) -> None:
    """A failure of before its time says nothing, one since is its end; it is not looked for any wider."""
    records = {0: [(NOW - 5000, "old", "failed"), (NOW + 5000, "new", "failed"), (NOW + 90_000, "late", "completed")]}
    ends, log = found(records, {name: Asked("waiting", NOW, 0, FINGERPRINT) for name in (b"old", b"new", b"late")})
    assert ends == {"new": ("failed", NOW + 5000), "late": ("completed", NOW + 90_000)}
    assert len(log.read) == 1


def test_notices_and_other_contents_are_no_ends(found: Any) -> None:
    """A duplicate notice is passed over, and so is a result with another fingerprint."""
    records = {0: [(NOW, "n", "duplicate"), (NOW, "o", "completed")]}
    ends, _ = found(records, {b"n": Asked("completed", NOW, 0, FINGERPRINT), b"o": Asked("completed", NOW, 0, b"0" * 24)})
    assert ends == {}

"""What reading passed by is told apart: markers and aborted records are nothing, deleted and compacted ones are a loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.assignment import Assignment
from headrace.committed import Standing
from headrace.errors import KafkaUnavailable
from headrace.offsets import Map, Sequence, Tracker
from headrace.restorer import LOOK_EVERY_S, MARKERS, Gap, Restorer

A = ("main", 0)
LATER_S = 10 * LOOK_EVERY_S
NOW = [0.0]


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time goes on only where a test says so."""
    NOW[0] = 0.0
    monkeypatch.setattr("headrace.restorer.time", SimpleNamespace(monotonic=lambda: NOW[0]))


class Message:
    """A record, or with `end` the end of a partition."""

    def __init__(self, offset: int, *, end: bool = False) -> None:
        self._offset = offset
        self._end = end

    def offset(self) -> int:
        return self._offset

    def error(self) -> object:
        return self if self._end else None


class Inline:
    """A pool that does its work at once."""

    def submit(self, work: Any, *arguments: Any) -> Future[None]:
        future: Future[None] = Future()
        future.set_result(work(*arguments))
        return future


class Bench:
    """A restorer of one partition whose log starts where the test says."""

    def __init__(self, committed: int = 0, restored: Map | None = None) -> None:
        self.start = 0
        self.standing = Standing(committed, restored, 0, 1_000_000)
        self.failing = False
        self.looks = 0
        self.lost: list[int] = []
        self.assignment = Assignment()
        self.restorer = Restorer("g", 24_000, assignment=self.assignment, committed=self, tell=self._tell)  # type: ignore[arg-type]  # a fake
        self.restorer._pool = Inline()  # type: ignore[assignment]  # a fake
        self.restorer.restore(self.assignment.assigned([A], None))
        self.turn()

    def _tell(self, name: str, fields: Mapping[str, Any]) -> None:
        if name == "records_lost":
            self.lost.append(fields["records"])

    def read(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Standing]:
        self.looks += 1
        if self.failing:
            raise KafkaUnavailable("away")
        old = self.standing
        return {tp: Standing(old.committed, old.map, self.start, old.end) for tp in partitions}

    def turn(self) -> None:
        for restored in self.restorer.ready():
            self.assignment.restored(*restored)

    def passed(self, *messages: int | Message, at_s: float = 0.0) -> None:
        NOW[0] = at_s
        run = [m if isinstance(m, Message) else Message(m) for m in messages]
        self.restorer.passed(A, run, at_s)
        self.assignment.with_tracker(A, lambda tracker: self._take(tracker, run))
        self.turn()

    def _take(self, tracker: Tracker, run: list[Message]) -> None:
        for message in run:
            if message.error() is None and tracker.wanted(message.offset()):
                tracker.track((message.offset(),))


@pytest.mark.parametrize(
    ("gap", "start", "lost"),
    [
        (Gap(10, 12), 0, 0),
        (Gap(10, 12), 12, 2),
        (Gap(10, 12), 11, 1),
        (Gap(10, 12), 500, 0),
        (Gap(10, 10 + MARKERS + 1), 500, MARKERS + 1),
        (Gap(10, 1_000), 400, 390),
        (Gap(10, 1_000), 10, 0),
    ],
)
def test_the_logs_start_tells_what_a_gap_is(gap: Gap, start: int, lost: int) -> None:
    """Deleted is what lies below it; a gap as narrow as markers counts only where the log starts at its end, not where it starts much later."""
    assert gap.lost(start) == lost


def test_a_gap_anywhere_in_a_run_is_seen() -> None:
    """Records from before and behind a hole come in one batch."""
    bench = Bench()
    bench.start = 900
    bench.passed(0, 1, 2, 900, 901)
    assert bench.lost == [897]


def test_a_gap_before_the_first_record_is_seen() -> None:
    """Deleted between the committed offset's reading and the first fetch."""
    bench = Bench(committed=100)
    bench.start = 300
    bench.passed(300)
    assert bench.lost == [200]


def test_a_hole_up_to_the_end_is_seen() -> None:
    """Nothing is left but the end of the partition."""
    bench = Bench()
    bench.passed(0, 1)
    bench.start = 50
    bench.passed(Message(50, end=True))
    assert bench.lost == [48]


def test_without_gaps_nobody_asks() -> None:
    """A look is three requests."""
    bench = Bench()
    looks = bench.looks
    bench.passed(0, 1, 2, Message(3, end=True))
    bench.passed(3, 4)
    assert bench.looks == looks


def test_looks_are_rare_and_no_gap_is_forgotten() -> None:
    """Gaps between two looks wait for the next: markers all the time must not hide a loss."""
    bench = Bench()
    looks = bench.looks
    for offset in range(0, 100, 2):
        bench.passed(offset, at_s=1.0 + offset / 1000)
    assert bench.looks == looks + 1
    bench.start = 700
    bench.passed(700, at_s=2.0)
    assert bench.lost == []
    bench.passed(701, at_s=LATER_S)
    assert bench.lost == [601]


def test_a_look_that_fails_is_done_again() -> None:
    """The broker is away: the loss is told once it is back."""
    bench = Bench()
    bench.failing, bench.start = True, 900
    bench.passed(0, 900, at_s=1.0)
    bench.failing = False
    bench.passed(901, at_s=LATER_S)
    assert bench.lost == [899]


def test_what_the_map_announced_is_told_by_number() -> None:
    """Of offsets below the map's end only the unresolved are lost, deleted or compacted away; what it calls settled is no loss."""
    bench = Bench(committed=100, restored=Map(100, 150, 0b1 | 1 << 20 | 1 << 49, Sequence("s", 1)))
    bench.start = 140
    bench.passed(140, 149, at_s=1.0)
    bench.passed(150, at_s=LATER_S)
    assert bench.lost == [2]


def test_compacted_away_is_lost_though_the_log_starts_below() -> None:
    """A restored map is all that tells of such a record."""
    bench = Bench(committed=100, restored=Map(100, 103, 0b101, Sequence("s", 1)))
    bench.passed(102, at_s=1.0)
    bench.passed(200, at_s=LATER_S)
    assert bench.lost == [1]


def test_what_is_no_longer_ours_is_not_looked_into() -> None:
    """Its new owner does."""
    bench = Bench()
    bench.passed(0, 2, at_s=1.0)
    bench.start = 900
    bench.passed(900, at_s=2.0)
    bench.restorer.forget(A)
    looks = bench.looks
    bench.restorer.passed(A, [Message(5)], LATER_S)
    bench.restorer.passed(A, [Message(6)], 2 * LATER_S)
    assert bench.looks == looks
    assert bench.lost == []

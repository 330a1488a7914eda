"""What the watchdog is shown of a lane: why it waits, which threads must come round, and when Redis is away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headrace.assignment import Assignment
from headrace.flow import Flow
from headrace.instrument import silent
from headrace.monitor import REDIS_AWAY, RESTORING, Monitor
from headrace.offsets import Sequence, Tracker
from headrace.vitals import AtWork, Call, Reading
from headrace.worker_thread import WorkerThread

A, B = ("main", 0), ("main", 1)


class FakeThread(WorkerThread):
    def __init__(self, name: str) -> None:
        super().__init__(name, lambda: None, last_words=lambda _: None)

    @property
    def alive(self) -> bool:
        return True


class FakeSource:
    def __init__(self) -> None:
        self.thread: WorkerThread = FakeThread("source")
        self.holds: frozenset[str] = frozenset()
        self.joined = True
        self.broker_away = False
        self.readings: Mapping[tuple[str, int], Reading] = {A: Reading(12, 20)}


class FakeSettler:
    def __init__(self) -> None:
        self.thread: WorkerThread = FakeThread("settle")
        self.settled_at = 5.0
        self.waiting = 7


class Bench:
    def __init__(self, *, waits: bool = True) -> None:
        self.assignment = Assignment()
        self.flow = Flow(10, 1_000)
        self.source, self.settler = FakeSource(), FakeSettler()
        self.shut = self.closed = False
        self.monitor = Monitor(
            "main", assignment=self.assignment, flow=self.flow, source=self.source, settler=self.settler,
            shut=lambda: "every target is shut" if self.shut else None, closed=lambda: self.closed, waits=waits,
        )  # fmt: skip
        (self.epoch,) = self.assignment.assigned([A], None).values()


def test_a_partition_is_shown_from_its_assignment_on() -> None:
    """Before its map is there the lane has not joined; then with its offsets, its reading and its call."""
    bench = Bench()
    (before,) = bench.monitor.sample().partitions
    assert (before.heard, bench.monitor.sample().joined) == (False, False)
    bench.assignment.restored(A, bench.epoch, Tracker(10), 10)
    bench.assignment.track(A, [10, 11])
    bench.monitor.work = AtWork({A: Call(10, 1.0)}, busy=1)
    sample = bench.monitor.sample()
    (one,) = sample.partitions
    assert (one.topic, one.partition, one.standing.frontier, one.standing.in_flight, one.standing.span) == (*A, 10, 2, 2)
    assert (one.reading, one.call, one.lag) == (Reading(12, 20), Call(10, 1.0), 10)
    assert (sample.joined, sample.unsettled, sample.settled_at, sample.full) == (True, 7, 5.0, False)
    bench.flow.take(10, 1)
    assert bench.monitor.sample().full


def test_a_settle_is_seen_by_its_partition() -> None:
    """With the size of the map that was committed."""
    bench = Bench()
    bench.assignment.restored(A, bench.epoch, Tracker(10), 10)
    bench.assignment.track(A, [10, 11, 12])
    snapshot = bench.assignment.snapshot
    commits = bench.assignment.commits({A: [11]}, snapshot, Sequence("i", 1))
    assert bench.monitor.sample().partitions[0].standing.settled_at == 0.0
    bench.assignment.committed({A: [11]}, commits, snapshot)
    standing = bench.monitor.sample().partitions[0].standing
    assert standing.settled_at > 0
    assert standing.map_chars == len(commits[A].metadata)
    assert standing.frontier == 10


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"holds": frozenset({"stop", "a cap"})}, ("a cap", "stop")),
        ({"broker_away": True}, ("no broker can be reached",)),
        ({"shut": True}, ("every target is shut",)),
        ({"closed": True}, (RESTORING,)),
        ({}, ()),
    ],
)
def test_every_pause_has_its_reason(change: Mapping[str, Any], why: tuple[str, ...]) -> None:
    """As it is told."""
    bench = Bench()
    for name, value in change.items():
        setattr(bench if hasattr(bench, name) else bench.source, name, value)
    assert bench.monitor.sample().pauses == why
    assert bench.monitor.sample().store_away == bench.closed


@pytest.mark.parametrize("waits", [True, False])
def test_redis_away_is_heard_from_the_lanes_own_admission(waits: bool) -> None:
    """It passes on what it hears. Where the lane goes on without Redis, that is no pause."""
    bench = Bench(waits=waits)
    heard: list[str] = []
    tell = bench.monitor.hearing(lambda name, _: heard.append(name))
    tell("store_unavailable", {})
    assert bench.monitor.sample().pauses == ((REDIS_AWAY,) if waits else ())
    assert bench.monitor.sample().store_away == waits
    tell("settled", {})
    tell("store_back", {})
    assert bench.monitor.sample().pauses == ()
    assert heard == ["store_unavailable", "settled", "store_back"]
    bench.monitor.hearing(silent)("store_unavailable", {})
    assert bench.monitor.sample().store_away == waits


def test_the_settle_thread_may_wait_for_a_broker_that_is_away() -> None:
    """It retries as long as the outage lasts; the source's thread comes round all the same."""
    bench = Bench()
    assert [thread.name for thread in bench.monitor.threads()] == ["source", "settle"]
    bench.source.broker_away = True
    assert [thread.name for thread in bench.monitor.threads()] == ["source"]

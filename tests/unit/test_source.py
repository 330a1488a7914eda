"""Reading, over a consumer that does as told: what is delivered, paused, restored, and what a rebalance leaves behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace import source as module
from headrace.assignment import Assignment
from headrace.committed import Standing
from headrace.config import LimitSettings, Settings
from headrace.envelope import Record
from headrace.errors import KafkaUnavailable
from headrace.flow import Flow
from headrace.offsets import Map, Sequence
from headrace.source import AWAY_S, BATCH, FROZEN_S, Source

A, B = ("main", 0), ("main", 1)
WINDOW = 100
FRESH = Standing(-1, None, 0, 0)


class Message:
    """A message, or with an error the news of one."""

    def __init__(self, tp: tuple[str, int], offset: int, error: KafkaError | None = None) -> None:
        self._tp, self._offset, self._error = tp, offset, error

    def topic(self) -> str:
        return self._tp[0]

    def partition(self) -> int:
        return self._tp[1]

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error

    def key(self) -> bytes:
        return b"key"

    def value(self) -> bytes:
        return b"value"

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_800_000_000_000


def messages(tp: tuple[str, int], *offsets: int) -> list[Message]:
    return [Message(tp, offset) for offset in offsets]


def end(tp: tuple[str, int], offset: int) -> Message:
    return Message(tp, offset, KafkaError(KafkaError._PARTITION_EOF))


class FakeConsumer:
    """Hands out what is queued; a callable in the queue is a rebalance served by the poll."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.queue: deque[Message | Callable[[], None]] = deque()
        self.paused: set[tuple[str, int]] = set()
        self.pausing: KafkaException | None = None
        self.polls = 0
        self.closed = False

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self.topics, self.callbacks = topics, callbacks

    def consume(self, count: int, timeout: float) -> list[Message]:
        out: list[Message] = []
        while self.queue and len(out) < count:
            item = self.queue.popleft()
            if isinstance(item, Message):
                out.append(item)
            else:
                item()
        return out

    def consumer_group_metadata(self) -> str:
        self.polls += 1
        return f"metadata {self.polls}"

    def pause(self, partitions: list[TopicPartition]) -> None:
        if self.pausing is not None:
            raise self.pausing
        self.paused |= {(tp.topic, tp.partition) for tp in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.paused -= {(tp.topic, tp.partition) for tp in partitions}

    def close(self) -> None:
        self.closed = True


class Restorer:
    """Does what is submitted when told."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, work, args))
        return future

    def work(self) -> None:
        while self.waiting:
            future, work, args = self.waiting.popleft()
            try:
                future.set_result(work(*args))
            except Exception as error:  # noqa: BLE001  as an executor does
                future.set_exception(error)

    def shutdown(self, **_: Any) -> None: ...


class FakeCommitted:
    """Says where partitions stand."""

    def __init__(self) -> None:
        self.standings: dict[tuple[str, int], Standing] = {}
        self.failing: list[Exception] = []

    def read(self, partitions: Any) -> dict[tuple[str, int], Standing]:
        if self.failing:
            raise self.failing.pop(0)
        return {tp: self.standings.get(tp, FRESH) for tp in partitions}


class Bench:
    """A source whose turns are taken by hand, and what stands behind it."""

    def __init__(self) -> None:
        self.assignment, self.flow, self.committed, self.restorer = Assignment(), Flow(400, 1 << 20), FakeCommitted(), Restorer()
        self.delivered: list[Record] = []
        self.drained: list[tuple[float, bool]] = []
        self.changes = 0
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.consumers: list[FakeConsumer] = []
        self.source = Source(
            Settings(limits=LimitSettings(window=WINDOW)), "ns.main", ["main"], assignment=self.assignment, flow=self.flow,
            committed=self.committed, downstream=self,
            tell=lambda name, fields: self.told.append((name, dict(fields))),
        )  # type: ignore[arg-type]  # fmt: skip
        self.source._restorer._pool.shutdown()
        self.source._restorer._pool = self.restorer  # type: ignore[assignment]

    def make(self, config: dict[str, Any]) -> FakeConsumer:
        self.consumers.append(FakeConsumer(config))
        return self.consumers[-1]

    def deliver(self, records: list[Record]) -> None:
        self.delivered.extend(records)

    def ownership_changed(self) -> None:
        self.changes += 1

    def drain(self, timeout_s: float) -> bool:
        self.drained.append((timeout_s, self.assignment.epoch(A) is not None))
        return True

    @property
    def consumer(self) -> FakeConsumer:
        return self.consumers[-1]

    def rebalance(self, name: str, *tps: tuple[str, int]) -> None:
        self.consumer.callbacks[name](self.consumer, [TopicPartition(*tp) for tp in tps])

    def assign(self, *tps: tuple[str, int], restored: bool = True) -> None:
        self.rebalance("on_assign", *tps)
        if restored:
            self.restorer.work()
            self.turn()

    def turn(self, *items: Any) -> None:
        self.consumer.queue.extend(items)
        self.source._turn()

    def offsets(self, tp: tuple[str, int] = A) -> list[int]:
        return [r.offset for r in self.delivered if (r.topic, r.partition) == tp]

    def names(self) -> list[str]:
        return [name for name, _ in self.told]

    def settle(self, *offsets: int) -> None:
        self.assignment.with_tracker(A, lambda tracker: tracker.resolve(offsets))
        self.flow.give_back(len(offsets), 8 * len(offsets))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Give a source with its consumer open."""
    made = Bench()
    monkeypatch.setattr(module, "Consumer", made.make)
    monkeypatch.setattr(module, "SOFT_HOLD_S", 0)
    made.source._consumer = made.source._open()
    return made


def test_records_are_delivered_in_order_under_their_epoch(bench: Bench) -> None:
    """Each with what was read; the flow knows of them."""
    bench.assign(A, B)
    bench.turn(*messages(A, 0, 1), *messages(B, 0), *messages(A, 2))
    assert bench.offsets(A) == [0, 1, 2]
    assert bench.offsets(B) == [0]
    epoch = bench.assignment.epoch(A)
    assert bench.delivered[0] == Record(*A, 0, epoch or -1, b"key", b"value", (), 1_800_000_000_000)
    assert (bench.flow.records, bench.flow.bytes) == (4, 4 * 8)


def test_nothing_is_delivered_before_the_map_is_there(bench: Bench) -> None:
    """What was read meanwhile waits, and then comes in order."""
    bench.assign(A, restored=False)
    bench.turn(*messages(A, 0, 1))
    assert bench.delivered == []
    bench.restorer.work()
    bench.turn(*messages(A, 2))
    assert bench.offsets() == [0, 1, 2]
    assert bench.names().count("reading") == 1


def test_what_the_map_calls_resolved_is_not_delivered(bench: Bench) -> None:
    """A restart calls the model only for what was unfinished."""
    bench.committed.standings[A] = Standing(5, Map(5, 10, 0b00101, Sequence("s", 1)), 0, 20)
    bench.assign(A)
    bench.turn(*messages(A, 5, 6, 7, 8, 9, 10))
    assert bench.offsets() == [5, 7, 10]


def test_a_full_window_waits_for_its_head(bench: Bench) -> None:
    """No offset is dispatched whose map would not fit; once the head is settled the rest follows, none skipped."""
    bench.assign(A)
    bench.turn(*messages(A, *range(WINDOW + 50)))
    assert bench.offsets() == list(range(WINDOW))
    bench.settle(*range(1, WINDOW))
    bench.turn()
    assert len(bench.offsets()) == WINDOW
    bench.settle(0)
    bench.turn()
    assert bench.offsets() == list(range(WINDOW + 50))


@pytest.mark.parametrize("gap", [0, 1, 9, 500])
def test_the_end_of_a_partition_moves_the_frontier(bench: Bench, gap: int) -> None:
    """Markers behind the last record leave no lag."""
    bench.assign(A)
    bench.turn(*messages(A, 0), end(A, 1 + gap))
    bench.settle(0)
    assert bench.assignment.frontiers()[A] == (1 + gap, 0)
    commit = bench.assignment.commits({}, bench.assignment.snapshot, Sequence("s", 1))[A]
    assert commit.frontier == 1 + gap


def test_a_full_lane_pauses_everything_and_goes_on_polling(bench: Bench) -> None:
    """It resumes when the lane is half empty; nothing is skipped or repeated."""
    bench.flow.take(390, 0)
    bench.assign(A, B)
    bench.turn(*messages(A, *range(20)))
    assert bench.consumer.paused == {A, B}
    before = bench.consumer.polls
    bench.turn()
    assert bench.consumer.polls > before
    bench.flow.give_back(390, 0)
    bench.turn(*messages(A, 20))
    assert bench.consumer.paused == set()
    assert bench.offsets() == list(range(21))


def test_holds_pause_and_each_has_to_end(bench: Bench) -> None:
    """Two reasons to stand still are two; each is told once."""
    bench.assign(A)
    for _ in range(2):
        bench.source.hold("stop")
    bench.source.hold("other")
    bench.turn()
    assert bench.consumer.paused == {A}
    bench.source.unhold("other")
    bench.turn()
    assert bench.consumer.paused == {A}
    bench.source.unhold("stop")
    bench.turn()
    assert bench.consumer.paused == set()
    assert bench.names().count("lane_paused") == 2


def test_a_new_partition_of_a_held_lane_is_paused_too(bench: Bench) -> None:
    """An assignment comes unpaused; also the one that came back."""
    bench.assign(A)
    bench.source.hold("stop")
    bench.turn()
    bench.rebalance("on_revoke", A)
    bench.consumer.paused.clear()
    bench.assign(A, B)
    assert bench.consumer.paused == {A, B}


def test_a_partition_whose_window_is_full_is_paused_alone(bench: Bench) -> None:
    """Its neighbours go on; memory stays bounded."""
    bench.flow = bench.source._flow = Flow(10**6, 1 << 30)
    bench.assign(A, B)
    bench.turn(*messages(A, *range(WINDOW + BATCH // 2)))
    assert bench.consumer.paused == {A}
    bench.turn(*messages(B, 0))
    assert bench.offsets(B) == [0]
    bench.settle(*range(WINDOW))
    bench.turn()
    assert bench.consumer.paused == set()


def test_a_pause_that_failed_is_tried_again(bench: Bench) -> None:
    """The intended state is ours, not the client's."""
    bench.assign(A)
    bench.consumer.pausing = KafkaException(KafkaError(KafkaError._STATE))
    bench.source.hold("stop")
    bench.turn()
    assert "pause_failed" in bench.names()
    bench.consumer.pausing = None
    bench.turn()
    assert bench.consumer.paused == {A}


# --- rebalances ----------------------------------------------------------------------------------------------------------


def test_a_revocation_drains_before_it_lets_go(bench: Bench) -> None:
    """Dispatch has stopped, the partition is still ours while what is finished is settled; then it is gone, with its stash."""
    bench.assign(A, B)
    bench.turn(*messages(A, *range(WINDOW + 10)))
    epoch = bench.assignment.epoch(A)
    bench.rebalance("on_revoke", A)
    assert bench.drained == [(60.0, True)]
    assert A not in bench.source._stash
    assert bench.assignment.epoch(A) is None
    assert not bench.assignment.is_current(Record(*A, 0, epoch or -1, None, None, [], 0))
    bench.turn(*messages(A, 110), *messages(B, 0))
    assert bench.offsets() == list(range(WINDOW))
    assert bench.offsets(B) == [0]


def test_dispatch_stops_before_the_drain(bench: Bench) -> None:
    """What has not started must not start any more."""
    bench.assign(A)
    seen: list[bool] = []
    record = Record(*A, 0, bench.assignment.epoch(A) or -1, None, None, [], 0)
    bench.drain = lambda _: not seen.append(bench.assignment.is_current(record) or bench.changes == 0)  # type: ignore[method-assign]
    bench.rebalance("on_revoke", A)
    assert seen == [False]


def test_a_lost_partition_is_not_drained(bench: Bench) -> None:
    """Nothing of it can be committed any more."""
    bench.assign(A)
    bench.rebalance("on_lost", A)
    assert bench.drained == []
    assert bench.changes == 1
    assert bench.assignment.epoch(A) is None
    assert "partition_lost" in bench.names()


def test_a_partition_that_comes_back_starts_from_its_committed_offset(bench: Bench) -> None:
    """Under a new epoch, and with the map as it is now."""
    bench.assign(A)
    bench.turn(*messages(A, 0, 1))
    first = bench.assignment.epoch(A)
    bench.rebalance("on_revoke", A)
    bench.committed.standings[A] = Standing(1, None, 0, 2)
    bench.assign(A)
    bench.turn(*messages(A, 1))
    assert bench.offsets() == [0, 1, 1]
    assert bench.delivered[-1].epoch != first


def test_a_map_read_for_an_older_assignment_is_not_used(bench: Bench) -> None:
    """Revoked and assigned again while it was read: only the later reading counts."""
    bench.assign(A, restored=False)
    bench.committed.standings[A] = Standing(3, None, 0, 9)
    bench.restorer.work()
    bench.rebalance("on_revoke", A)
    bench.committed.standings[A] = Standing(7, None, 0, 9)
    bench.assign(A)
    assert bench.assignment.frontiers()[A] == (7, 0)


def test_records_of_one_poll_are_not_taken_into_the_next_assignment(bench: Bench) -> None:
    """A rebalance served between two reads of a turn: what was read before it belongs to the old assignment."""
    bench.assign(A)

    def again() -> None:
        bench.rebalance("on_revoke", A)
        bench.rebalance("on_assign", A)

    bench.turn(*messages(A, 0), again)
    bench.restorer.work()
    bench.turn(*messages(A, 0))
    epochs = [r.epoch for r in bench.delivered]
    assert bench.offsets() == [0, 0]
    assert epochs[0] < epochs[1]


def test_unreadable_offsets_are_read_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as the partition is ours; nothing is dispatched meanwhile."""
    monkeypatch.setattr(bench.source._restorer._stopping, "wait", lambda _: False)
    bench.committed.failing = [KafkaUnavailable("away")] * 3
    bench.assign(A)
    bench.turn(*messages(A, 0))
    assert bench.names().count("committed_unreadable") == 3
    assert bench.offsets() == [0]


def test_unreadable_offsets_of_what_went_are_left(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading ends with the assignment."""
    bench.assign(A, restored=False)
    monkeypatch.setattr(bench.source._restorer._stopping, "wait", lambda _: bench.assignment.gone([A], None))
    bench.committed.failing = [KafkaUnavailable("away")]
    bench.restorer.work()
    assert not bench.source._restorer._ready


def test_a_restorer_that_breaks_stops_the_process(bench: Bench) -> None:
    """A partition that is never restored would stand still for ever, and silently."""
    bench.assign(A, restored=False)
    bench.committed.failing = [RuntimeError("a bug")]
    bench.restorer.work()
    assert isinstance(bench.source.failure, RuntimeError)


# --- where a partition stands --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("standing", "frontier", "told"),
    [
        (Standing(-1, None, 0, 0), 0, None),
        (Standing(-1, None, 40, 50), 40, None),
        (Standing(45, None, 40, 50), 45, None),
        (Standing(50, None, 40, 50), 50, None),
        (Standing(30, None, 40, 50), 40, "deleted by retention"),
        (Standing(39, None, 40, 50), 40, "deleted by retention"),
        (Standing(60, None, 40, 50), 40, "beyond the log's end"),
        (Standing(0, None, 0, 0), 0, None),
    ],
)
def test_where_reading_begins(bench: Bench, standing: Standing, frontier: int, told: str | None) -> None:
    """At the committed offset; at the log's start where that is later, or where the log was made anew: what is lost is told, and committed past."""
    bench.committed.standings[A] = standing
    bench.assign(A)
    assert bench.assignment.frontiers()[A] == (frontier, 0)
    reasons = [fields["reason"] for name, fields in bench.told if name == "records_lost"]
    assert [told in reason for reason in reasons] == ([True] if told else [])
    assert {c.frontier for c in bench.assignment.commits({}, bench.assignment.snapshot, Sequence("s", 1)).values()} <= {frontier}


# --- errors --------------------------------------------------------------------------------------------------------------


def test_an_error_is_told_and_reading_goes_on(bench: Bench) -> None:
    """The client recovers by itself."""
    bench.assign(A)
    bench.turn(Message(A, -1, KafkaError(KafkaError._TRANSPORT)), *messages(A, 0))
    assert "source_error" in bench.names()
    assert bench.offsets() == [0]


def test_a_fatal_error_ends_the_source(bench: Bench) -> None:
    """With what to do."""
    with pytest.raises(KafkaUnavailable, match="start the worker again"):
        bench.turn(Message(A, -1, KafkaError(KafkaError._FATAL, "x", fatal=True)))


def test_a_broker_with_classic_groups_only_gets_one(bench: Bench) -> None:
    """The first consumer is closed, another subscribes."""
    assert bench.consumer.config["group.protocol"] == "consumer"
    bench.turn(Message(A, -1, KafkaError(KafkaError._UNSUPPORTED_FEATURE, "x", fatal=True)))
    assert bench.consumers[0].closed
    assert bench.consumer.config["group.protocol"] == "classic"
    assert bench.source.protocol == "classic"


def test_standing_still_is_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn long after the last one: the process was stopped, or the machine slept."""
    now = [module.time.monotonic()]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    bench.turn()
    assert not bench.source.frozen_within(60)
    now[0] += FROZEN_S + 1
    bench.turn()
    assert bench.source.frozen_within(60)
    now[0] += 61
    assert not bench.source.frozen_within(60)


def test_the_thread_ends_with_the_consumer_closed(bench: Bench) -> None:
    """On a stop, and when it fails: the group need not wait for the session to end."""
    bench.source.start()
    assert bench.source.stop(5)
    assert bench.consumer.closed
    assert bench.source.failure is None


def test_a_thread_that_fails_says_why(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process watches it."""
    monkeypatch.setattr(bench.source, "_open", lambda: bench.consumer)
    bench.consumer.queue.append(Message(A, -1, KafkaError(KafkaError._FATAL, "x", fatal=True)))
    bench.source.start()
    bench.source.thread.join(5)
    assert isinstance(bench.source.failure, KafkaUnavailable)
    assert "source_failed" in bench.names()
    assert bench.consumer.closed


def test_a_broker_nobody_can_reach_is_known_for_a_while(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client says so again and again while it lasts; other errors of it are not about that."""
    now = [module.time.monotonic()]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    bench.consumer.config["error_cb"](KafkaError(KafkaError._TRANSPORT))
    assert not bench.source.broker_away
    bench.consumer.config["error_cb"](KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert bench.source.broker_away
    now[0] += AWAY_S + 1
    assert not bench.source.broker_away


def test_what_is_read_is_measured(bench: Bench) -> None:
    """How far, what is held back, and whether the window has no room for it; a partition that goes is forgotten."""
    bench.assign(A, B)
    bench.turn(*messages(A, 0, 1, WINDOW, WINDOW + 1))
    bench.source._measure(0.0)
    assert bench.source.readings[A][:4] == (WINDOW + 2, -1, 2, True)
    assert bench.source.readings[A].oldest_ms == 1_800_000_000_000
    assert bench.source.readings[B][:4] == (-1, -1, 0, False)
    bench.rebalance("on_revoke", A)
    bench.source._measure(1.0)
    assert set(bench.source.readings) == {B}


def test_a_member_has_joined_with_its_first_assignment(bench: Bench) -> None:
    """Be it empty."""
    assert not bench.source.joined
    bench.rebalance("on_assign")
    assert bench.source.joined

"""The timing wheels on a real broker: every record reaches the retry topic once and in time, whatever happens to the process.

The wheels' second is scaled down (`unit_ms`), and with it every margin, so that the tests are short and stricter than life.
"""

from __future__ import annotations

import collections
import itertools
import random
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from headrace.clock import Clock
from headrace.config import KafkaSettings, Settings, TopicNames
from headrace.errors import Refused
from headrace.schedule import DUE_HEADER, margin_ms, partition_of, wheel_of, wheels_for
from headrace.wheels import Wheels

WHEELS = wheels_for(86_400)


@dataclass
class Told:
    """What the wheels said; waits for an event of a name."""

    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, name: str, fields: dict[str, object]) -> None:
        with self.changed:
            self.events.append((name, fields))
            self.changed.notify_all()

    def named(self, name: str) -> list[dict[str, object]]:
        return [fields for told, fields in self.events if told == name]

    def wait(self, name: str, timeout_s: float = 15) -> dict[str, object]:
        with self.changed:
            assert self.changed.wait_for(lambda: self.named(name), timeout_s), f"{name} was not told; {self.events[-5:]}"
            return self.named(name)[-1]


class Bench:
    """Topics of its own on the broker, wheels on demand, and a reader of what reaches the retry topic."""

    def __init__(self, bootstrap: str) -> None:
        self.name = f"wheels-{uuid.uuid4().hex[:8]}"
        self.bootstrap = bootstrap
        self.clock = Clock()
        self.retry, self.later = f"{self.name}-retry", f"{self.name}-later"
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = [
            NewTopic(self.later, WHEELS, 1, config={"message.timestamp.type": "LogAppendTime"}),
            NewTopic(self.retry, 3, 1),
        ]
        for made in self.admin.create_topics(topics).values():
            made.result()
        self.producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self.reader = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": self.name, "isolation.level": "read_committed", "fetch.wait.max.ms": 20}
        )
        self.reader.assign([TopicPartition(self.retry, partition, 0) for partition in range(3)])
        self.running: list[Wheels] = []

    def settings(self, instance: str | None) -> Settings:
        return Settings(
            namespace=self.name,
            instance=instance,
            kafka=KafkaSettings(bootstrap=self.bootstrap),
            topics=TopicNames(retry=self.retry, later=self.later),
        )

    def wheels(self, unit_ms: int, *, instance: str | None = "one", told: Told | None = None) -> tuple[Wheels, Told]:
        told = told or Told()
        wheels = Wheels(self.settings(instance), self.clock, tell=told, unit_ms=unit_ms)
        wheels.start()
        self.running.append(wheels)
        return wheels, told

    def append(self, key: bytes, due_ms: int, unit_ms: int, value: bytes | None = b"x" * 300) -> None:
        partition = partition_of(wheel_of(due_ms - self.clock.now_ms(), WHEELS, unit_ms))
        self.producer.produce(self.later, value, key, partition, headers=[(DUE_HEADER, b"%d" % due_ms)])
        self.producer.poll(0)

    def read(
        self, done: Callable[[list[Message]], bool], timeout_s: float, *, seen: Callable[[Message], None] = lambda m: None
    ) -> list[Message]:
        """What is in the retry topic, read until `done` or the time is over."""
        read: list[Message] = []
        deadline_ms = self.clock.now_ms() + timeout_s * 1000
        while not done(read) and self.clock.now_ms() < deadline_ms:
            for message in self.reader.consume(2_000, 0.02):
                if message.error() is None:
                    seen(message)
                    read.append(message)
        return read

    def read_all(self, keys: set[bytes], timeout_s: float) -> list[Message]:
        """Until every key is there, and then for half a second more, in which a doubled one would show."""
        missing = set(keys)
        read = self.read(lambda _: not missing, timeout_s, seen=lambda m: missing.discard(_key(m)))
        return read + self.read(lambda _: False, 0.5)

    def lag(self) -> int:
        """The group's lag over all wheels, by stable committed offsets and the ends of the partitions."""
        group = f"{self.name}.wheels"
        asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(self.later, p) for p in range(WHEELS)])]
        parts = self.admin.list_consumer_group_offsets(asked, require_stable=True)[group].result().topic_partitions
        return sum(self.reader.get_watermark_offsets(part)[1] - max(part.offset, 0) for part in parts)

    def close(self) -> None:
        for wheels in self.running:
            assert wheels.stop(15)
        self.producer.flush()
        self.reader.close()
        for gone in self.admin.delete_topics([self.retry, self.later]).values():
            gone.result()


def _key(message: Message) -> bytes:
    key = message.key()
    assert isinstance(key, bytes)
    return key


def _due(message: Message) -> int:
    return int(dict(message.headers() or [])[DUE_HEADER] or b"")


def _doubled(read: list[Message]) -> list[bytes]:
    return [key for key, times in collections.Counter(map(_key, read)).items() if times > 1]


@pytest.fixture
def bench(kafka: str) -> Iterator[Bench]:
    bench = Bench(kafka)
    yield bench
    bench.close()


def test_each_record_arrives_once_and_in_time(bench: Bench, record_testsuite_property: Callable[[str, object], None]) -> None:
    """20,000 records due over 5 to 40 units: none lost or doubled, none more than 4 units early or later than life's margin absorbs, and the lag ends at 0."""
    unit_ms = 250
    wheels, told = bench.wheels(unit_ms)
    told.wait("wheels_assigned")
    draw = random.Random(1)
    keys = {b"%d" % i for i in range(20_000)}
    for key in keys:
        bench.append(key, bench.clock.now_ms() + draw.randint(5 * unit_ms, 40 * unit_ms), unit_ms)
    early: list[int] = []
    missing = set(keys)

    def seen(message: Message) -> None:
        early.append(_due(message) - bench.clock.now_ms())
        missing.discard(_key(message))

    read = bench.read(lambda _: not missing, 25, seen=seen) + bench.read(lambda _: False, 0.5)
    early.sort()
    record_testsuite_property("earliness_ms", {"min": early[0], "p50": early[10_000], "p99": early[19_800], "max": early[-1]})
    assert not missing
    assert not _doubled(read)
    assert early[-1] <= 4 * unit_ms
    assert margin_ms(2, unit_ms) - early[0] <= margin_ms(2), "with the margin of life, 1 s, none would be late"
    assert bench.lag() == 0
    assert wheels.thread.alive
    assert wheels.failure is None


def test_a_record_passes_unchanged_and_garbage_goes_straight_back(bench: Bench) -> None:
    """Key, value and headers arrive byte for byte, null value and null key included; a due time nobody can read counts as now."""
    _, told = bench.wheels(1000)
    told.wait("wheels_assigned")
    headers: list[list[tuple[str, str | bytes | None]]] = [
        [],
        [(DUE_HEADER, b"\xff\xfe")],
        [(DUE_HEADER, b"9" * 4000), ("b", b"\x00\xff"), ("b", None), ("a", b"")],
        [(DUE_HEADER, None), (DUE_HEADER, b"-1")],
        [(DUE_HEADER, b"1"), ("traceparent", b"00-x")],
    ]
    sent = [(b"\xa2\x00", None), (None, b"\xff\xfe"), (b"k", b""), (b"k", b"{}"), (b"", b"[" * 5000)]
    for (key, value), lines in zip(sent, headers, strict=True):
        bench.producer.produce(bench.later, value, key, 14, headers=lines)
    bench.producer.flush()
    read = bench.read(lambda got: len(got) == 5, 3)
    expected = sorted(repr((key, value, lines or None)) for (key, value), lines in zip(sent, headers, strict=True))
    assert sorted(repr((m.key(), m.value(), m.headers() or None)) for m in read) == expected


def test_a_clock_that_differs_from_the_brokers_makes_nothing_late(bench: Bench) -> None:
    """With our clock 5 s behind the broker's, its append times would make each record 5 s late: the skew is measured, subtracted and told."""
    bench.clock = Clock(wall_ms=Clock().now_ms() - 5_000)
    _, told = bench.wheels(100)
    told.wait("wheels_assigned")
    keys = {b"%d" % i for i in range(100)}
    for i, key in enumerate(sorted(keys)):
        bench.append(key, bench.clock.now_ms() + 500 + i * 10, 100)
    early: list[int] = []
    read = bench.read(lambda got: len(got) == 100, 4, seen=lambda m: early.append(_due(m) - bench.clock.now_ms()))
    assert {_key(m) for m in read} == keys
    assert min(early) > -500
    skew_ms = told.wait("broker_clock_skew")["skew_ms"]
    assert isinstance(skew_ms, int)
    assert 4_500 <= skew_ms <= 5_100


CHILD = """
import sys
from headrace.clock import Clock
from headrace.config import Settings
from headrace.wheels import Wheels
wheels = Wheels(Settings.model_validate_json(sys.argv[1]), Clock(), unit_ms=100,
    tell=lambda name, fields: print(name, flush=True))
wheels.start()
wheels.thread.join()
"""


def test_a_killed_process_loses_and_doubles_nothing(bench: Bench) -> None:
    """Killed in the middle of its moves and followed by two others, of which one leaves again, each record still arrives once."""
    settings = bench.settings("one").model_dump_json(exclude={"redis", "providers"})
    keys = {b"%d" % i for i in range(6_000)}
    child = subprocess.Popen([sys.executable, "-c", CHILD, settings], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        told_by_child = (line.strip() for line in child.stdout)
        assert "wheels_assigned" in told_by_child
        draw = random.Random(2)
        for key in keys:
            bench.append(key, bench.clock.now_ms() + draw.randint(500, 4_000), 100)
        moves = itertools.islice((name for name in told_by_child if name == "wheels_moved"), 12)
        assert len(list(moves)) == 12
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    _, told = bench.wheels(100, instance="one")
    other, _ = bench.wheels(100, instance="two")
    told.wait("wheels_moved")
    assert other.stop(15)
    read = bench.read_all(keys, 20)
    assert {_key(m) for m in read} == keys
    assert not _doubled(read)


class TimedOut(Producer):
    """A producer whose first commit that carries records ends in a time-out: after it landed, or before it was sent."""

    landing = True
    carried = 0

    def produce(self, *args: Any, **kwargs: Any) -> None:
        type(self).carried += 1
        super().produce(*args, **kwargs)

    def commit_transaction(self, timeout: float = -1) -> None:
        lost = 0 < self.carried < 1_000
        if not lost or self.landing:
            super().commit_transaction(timeout)
        if lost:
            type(self).carried = 1_000
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "lost", False, True, False))


@pytest.mark.parametrize("landing", [True, False])
def test_an_ambiguous_commit_is_cleared_up(bench: Bench, monkeypatch: pytest.MonkeyPatch, landing: bool) -> None:
    """After a commit that timed out, the committed offsets say whether it landed; the records arrive once either way."""
    monkeypatch.setattr(TimedOut, "landing", landing)
    monkeypatch.setattr(TimedOut, "carried", 0)
    monkeypatch.setattr("headrace.wheels.mover.Producer", TimedOut)
    _, told = bench.wheels(100)
    told.wait("wheels_assigned")
    keys = {b"%d" % i for i in range(200)}
    for i, key in enumerate(sorted(keys)):
        bench.append(key, bench.clock.now_ms() + 500 + i * 5, 100)
    read = bench.read_all(keys, 10)
    assert told.wait("wheels_settle_failed") == {"reason": "_TIMED_OUT", "committing": True}
    assert {_key(m) for m in read} == keys
    assert not _doubled(read)


def test_a_refused_record_harms_only_itself(bench: Bench) -> None:
    """A record the retry topic refuses waits on a wheel while its neighbours go on, and arrives once the topic takes it."""
    _limit_retry(bench, 3_000)
    _, told = bench.wheels(50)
    told.wait("wheels_assigned")
    keys = {b"%d" % i for i in range(40)}
    due = bench.clock.now_ms() + 300
    for i, key in enumerate(sorted(keys)):
        bench.append(key, due, 50)
        if i == 20:
            bench.append(b"big", due, 50, random.Random(3).randbytes(9_000))
    read = bench.read_all(keys, 10)
    assert {_key(m) for m in read} == keys
    assert not _doubled(read)
    told.wait("wheels_record_refused")
    assert told.named("wheels_record_refused")[0]["times"] == 1
    _limit_retry(bench, 1_000_000)
    assert [_key(m) for m in bench.read_all({b"big"}, 15)] == [b"big"]


def _limit_retry(bench: Bench, limit: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(limit), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, bench.retry, incremental_configs=[entry])
    for changed in bench.admin.incremental_alter_configs([resource]).values():
        changed.result()


def test_two_processes_of_one_name_do_not_fight_for_ever(bench: Bench) -> None:
    """Fenced again soon after it took a new producer, one of the two stops with the remedy; the other moves everything, once."""
    first, told = bench.wheels(100, instance="same")
    told.wait("wheels_assigned")
    second, also = bench.wheels(100, instance="same")
    also.wait("wheels_assigned")
    keys: set[bytes] = set()
    read: list[Message] = []
    for burst in range(100):
        if first.failure or second.failure:
            break
        for partition in range(WHEELS):
            key = b"%d-%d" % (burst, partition)
            keys.add(key)
            bench.producer.produce(bench.later, b"x", key, partition)
        bench.producer.flush()
        read += bench.read(lambda _: False, 0.05)
    read += bench.read_all(keys - {_key(m) for m in read}, 15)
    failures = [wheels.failure for wheels in (first, second) if wheels.failure is not None]
    assert len(failures) == 1
    assert isinstance(failures[0], Refused)
    assert "HEADRACE_INSTANCE" in str(failures[0])
    assert {_key(m) for m in read} == keys
    assert not _doubled(read)


class Paused(Consumer):
    """A consumer that counts the partitions it pauses."""

    pauses = 0

    def pause(self, partitions: list[TopicPartition]) -> None:
        type(self).pauses += len(partitions)
        super().pause(partitions)


def test_fifty_pauses_skip_and_repeat_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bursts that arrive long before they are due pause wheels fifty times; each record arrives once (kafka-python#2011)."""
    monkeypatch.setattr(Paused, "pauses", 0)
    monkeypatch.setattr("headrace.wheels.loop.Consumer", Paused)
    unit_ms = 10
    _, told = bench.wheels(unit_ms)
    told.wait("wheels_assigned")
    read: list[Message] = []
    keys: set[bytes] = set()
    while Paused.pauses < 50:
        fresh = {b"%d-%d" % (len(keys), i) for i in range(50)}
        keys |= fresh
        for i, key in enumerate(fresh):
            bench.append(key, bench.clock.now_ms() + (5, 9, 17)[i % 3] * unit_ms, unit_ms)
        bench.producer.flush()
        read += bench.read(lambda got: len(got) == 50, 3)
    read += bench.read(lambda _: False, 0.5)
    assert {_key(m) for m in read} == keys
    assert not _doubled(read)

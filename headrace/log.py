"""Topics read outside a lane: `scan` reads one from a point in time to its end. Writing is `writer`'s, whose `Writer` is found here too.

What a record means is left to the callers. Nothing here waits for ever: no progress for `timeout_s` is KafkaUnavailable.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Literal

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from headrace.client_config import base_config
from headrace.config import Settings
from headrace.envelope import Record
from headrace.errors import KafkaUnavailable
from headrace.trail import headers_of
from headrace.writer import Writer

__all__ = ["End", "Span", "Writer", "end_offsets", "scan", "span"]

End = Literal["stable", "high"]
Span = dict[int, tuple[int, int]]  # (first, end) by partition
TIMEOUT_S = 30.0
RETRY_S = 10.0
_POLL_S = 0.25
_BATCH = 1_000
_HOPELESS = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.TOPIC_AUTHORIZATION_FAILED}
)
_PASSING = frozenset(  # the client calls these retriable in a request of its own, and not in the answer for a partition
    {
        KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.REPLICA_NOT_AVAILABLE, KafkaError.REQUEST_TIMED_OUT,
    }
)  # fmt: skip
_quiet = logging.getLogger("headrace.kafka.log")
_quiet.propagate = False
_quiet.addHandler(logging.NullHandler())


def scan(
    settings: Settings,
    topic: str,
    *,
    since_ms: int | None = None,
    to_end: bool = True,
    end: End = "stable",
    partitions: frozenset[int] | None = None,
    within: Span | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Iterator[Record]:
    """The committed records of a topic, from its start or from those stamped `since_ms` (epoch) on, in order within a partition.

    It ends at the offsets taken at its start: `stable` leaves out what an open transaction holds back, `high` waits for it.
    `within` is a span taken before, and stands for `since_ms`, `end` and `partitions`. With `to_end=False` it goes on
    with what comes, for as long as the caller asks. `epoch` is 0 in every record.
    Raises KafkaUnavailable where nothing moves for `timeout_s`, or the topic does not exist.
    """
    offsets = (
        within if within is not None else span(settings, topic, since_ms=since_ms, end=end, partitions=partitions, timeout_s=timeout_s)
    )
    reader = _Reader(settings, topic, offsets, timeout_s, endless=not to_end)
    try:
        yield from reader.records()
    finally:
        reader.close()


def span(
    settings: Settings,
    topic: str,
    *,
    since_ms: int | None = None,
    end: End = "stable",
    partitions: frozenset[int] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Span:
    """Where a `scan` with these arguments would begin and end, as of now. Raises KafkaUnavailable."""
    return _Offsets(settings, topic, timeout_s).span(since_ms, end, partitions)


def end_offsets(settings: Settings, topic: str, *, end: End = "stable", timeout_s: float = TIMEOUT_S) -> dict[int, int]:
    """The offset behind the last record of every partition."""
    return {partition: stop for partition, (_, stop) in span(settings, topic, end=end, timeout_s=timeout_s).items()}


class _Offsets:
    """Asks the broker where a scan begins and ends."""

    def __init__(self, settings: Settings, topic: str, timeout_s: float) -> None:
        self._settings = settings
        self._kafka = settings.kafka
        self._topic = topic
        self._timeout_s = timeout_s
        self._error: str | None = None
        self._admin = AdminClient(base_config(settings, "scan") | {"error_cb": self._remember, "logger": _quiet})

    def span(self, since_ms: int | None, end: End, partitions: frozenset[int] | None) -> Span:
        """(first, end) by partition."""
        wanted = [p for p in self._partitions() if partitions is None or p in partitions]
        level = IsolationLevel.READ_COMMITTED if end == "stable" else IsolationLevel.READ_UNCOMMITTED
        stops = self._ask(wanted, OffsetSpec.latest(), level)  # type: ignore[no-untyped-call]
        since = OffsetSpec.earliest() if since_ms is None else OffsetSpec.for_timestamp(max(0, since_ms))  # type: ignore[no-untyped-call]
        firsts = self._ask(wanted, since, level)
        return {p: (firsts[p] if firsts[p] >= 0 else stops[p], stops[p]) for p in wanted}

    def _partitions(self) -> list[int]:
        try:
            found = self._admin.list_topics(self._topic, timeout=min(self._timeout_s, 10.0)).topics[self._topic]
        except KafkaException as error:
            raise self._kafka.unavailable(self._reason() or error.args[0].str()) from None
        if found.error is not None:
            raise KafkaUnavailable(f"{self._topic}: {found.error.str()}; run `headrace topics diff`")
        return sorted(found.partitions)

    def _ask(self, partitions: list[int], spec: OffsetSpec, level: IsolationLevel) -> dict[int, int]:
        asked = {TopicPartition(self._topic, p): spec for p in partitions}
        until = time.monotonic() + min(self._timeout_s, RETRY_S)
        again = False
        while asked:
            try:
                if again:
                    self._admin.list_topics(self._topic, timeout=min(self._timeout_s, RETRY_S))
                return self._answered(asked, level)
            except KafkaException as error:
                reason = error.args[0]
                if not (reason.retriable() or reason.code() in _PASSING) or time.monotonic() > until:
                    raise self._kafka.unavailable(f"offsets of {self._topic}: {self._reason() or reason.str()}") from None
                time.sleep(_POLL_S)  # a topic just created has no leader for a moment, and the client is to ask who it is
                again = True
        return {}

    def _answered(self, asked: dict[TopicPartition, OffsetSpec], level: IsolationLevel) -> dict[int, int]:
        futures = self._admin.list_offsets(asked, isolation_level=level, request_timeout=min(self._timeout_s, 10.0))
        try:
            return {at.partition: int(future.result(self._timeout_s).offset) for at, future in futures.items()}
        except TimeoutError:
            raise self._kafka.unavailable(f"offsets of {self._topic}: {self._reason() or 'no answer in time'}") from None

    def _reason(self) -> str | None:
        """What the connection suffers from; the client tells it only when polled."""
        self._admin.poll(0)
        return self._error

    def _remember(self, error: KafkaError) -> None:
        self._error = error.str()


class _Reader:
    """One consumer without a group, over a span of offsets."""

    def __init__(self, settings: Settings, topic: str, span: Span, timeout_s: float, *, endless: bool) -> None:
        self._settings = settings
        self._kafka = settings.kafka
        self._topic = topic
        self._timeout_s = timeout_s
        self._endless = endless
        self._stops = {p: stop for p, (first, stop) in span.items() if endless or first < stop}
        self._firsts = {p: span[p][0] for p in self._stops}
        self._error: str | None = None
        self._consumer: Consumer | None = None

    def records(self) -> Iterator[Record]:
        if not self._stops:
            return
        consumer = self._open()
        moved_at = time.monotonic()
        while self._stops:
            batch = consumer.consume(1, _POLL_S)  # more would be waited for
            batch += consumer.consume(_BATCH, 0) if batch else []
            for message in batch:
                if not self._moves(message):
                    continue
                if (record := self._record(message)) is not None:
                    yield record
                moved_at = time.monotonic()
            if not self._endless and time.monotonic() - moved_at > self._timeout_s:
                raise self._kafka.unavailable(self._stuck())

    def close(self) -> None:
        """Also right for a scan that was left half way."""
        if self._consumer is not None:
            self._consumer.close()

    def _open(self) -> Consumer:
        own = {
            "group.id": f"{self._settings.namespace}.scan",  # the client demands one; nothing is ever committed or joined
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 10,
            "queued.max.messages.kbytes": 16_384,
            "error_cb": self._remember,
            "logger": _quiet,
        }
        self._consumer = Consumer(base_config(self._settings, "scan") | own)
        self._consumer.assign([TopicPartition(self._topic, p, first) for p, first in self._firsts.items()])
        return self._consumer

    def _moves(self, message: Message) -> bool:
        """Whether this is a record or an end of partition. An error that may pass is remembered; others are raised."""
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            return True
        if error.fatal() or error.code() in _HOPELESS:
            raise KafkaUnavailable(f"{self._topic}: reading failed: {error.str()}")
        self._error = error.str()
        return False

    def _record(self, message: Message) -> Record | None:
        """The record, if it lies within the span. One at or behind the span's end, and the end itself, finish their partition."""
        partition, offset, is_record = message.partition(), message.offset(), message.error() is None
        if partition is None or offset is None or partition not in self._stops:
            return None
        stop = self._stops[partition]
        if not self._endless:
            if offset >= (stop - 1 if is_record else stop):
                self._finish(partition)
            is_record = is_record and offset < stop
        return _to_record(message, partition, offset) if is_record else None

    def _finish(self, partition: int) -> None:
        del self._stops[partition]
        if self._stops and self._consumer is not None:
            self._consumer.pause([TopicPartition(self._topic, partition)])

    def _stuck(self) -> str:
        where = ", ".join(f"{p} (up to {stop})" for p, stop in sorted(self._stops.items())[:5])
        return f"no record of {self._topic} for {self._timeout_s:g} s in partitions {where}: {self._error or 'a transaction may be open there'}"

    def _remember(self, error: KafkaError) -> None:
        self._error = error.str()


def _to_record(message: Message, partition: int, offset: int) -> Record:
    headers = headers_of(message)
    return Record(message.topic() or "", partition, offset, 0, message.key(), message.value(), headers, message.timestamp()[1])

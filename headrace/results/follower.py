"""Follows `llm_results` from given offsets on: by assignment, without a group. Of others' results it looks at the key alone.

An outage, new partitions and a topic made anew are lived through; what is wrong meanwhile is in `trouble`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.client_config import base_config, unpolled
from headrace.config import Settings
from headrace.errors import KafkaUnavailable
from headrace.log import span
from headrace.results.told import Told, told
from headrace.topics.broker import missing_line
from headrace.trail import headers_of

BATCH = 2_000
LOOK_S = 10.0
AGAIN_S = 1.0
ASK_S, QUICK_S = 5.0, 1.0
_LOST = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET,
    }
)  # fmt: skip
_quiet = logging.getLogger("headrace.kafka.results")
_quiet.propagate = False
_quiet.addHandler(logging.NullHandler())


class Follower:
    """One consumer, used by one thread. `positions` is the next offset of each partition; None: the ends as of `open`.

    They hold for the topic of `topic_id` (None: whatever is there now). Another of the same name is read from its beginning.
    """

    def __init__(self, settings: Settings, positions: Mapping[int, int] | None = None, *, topic_id: str | None = None) -> None:
        self._settings = settings
        self._topic = settings.topics.results
        self.positions: dict[int, int] | None = None if positions is None else dict(positions)
        self.topic_id = topic_id
        self.trouble: str | None = None
        self.jumped = 0  # how often reading went on elsewhere than it had stopped: results may have been lost to it
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None
        self._look_at_s = 0.0
        self._open_at_s = 0.0
        self._lost = False

    def cluster(self) -> str | None:
        """The cluster's id, where the broker tells one. Raises KafkaUnavailable."""
        self._described(ASK_S)
        assert self._admin is not None, "it was just asked"
        try:
            found = self._admin.list_topics(self._topic, timeout=ASK_S)
        except KafkaException as error:
            raise self._settings.kafka.unavailable(error.args[0].str()) from None
        cluster: str | None = getattr(found, "cluster_id")  # noqa: B009  its type stubs say that there is none
        return cluster

    def open(self) -> None:
        """Begin. Raises KafkaUnavailable."""
        topic_id, _ = self._described(ASK_S)
        spans = span(self._settings, self._topic, timeout_s=ASK_S)
        if self.positions is None:
            self.positions = {partition: end for partition, (_, end) in spans.items()}
        known = self.positions
        if self.topic_id not in (None, topic_id):
            self.jumped += 1
            known.clear()
        self.topic_id = topic_id
        for partition, (first, end) in spans.items():
            at = known.get(partition, first)
            if not first <= at <= end:  # deleted by retention, or another topic of that name
                self.jumped += 1
                at = first
            known[partition] = at
        for partition in known.keys() - spans.keys():
            self.jumped += 1
            del known[partition]
        self._consumer = self._made()
        self._consumer.assign([TopicPartition(self._topic, partition, at) for partition, at in known.items()])
        self._look_at_s = time.monotonic() + LOOK_S
        self._lost = False

    def poll(self, wanted: Container[bytes], timeout_s: float) -> list[Told]:
        """The next records whose key is wanted, once something is there, `timeout_s` at most. Never raises for an outage."""
        consumer = self._ready(timeout_s)
        if consumer is None or self.positions is None:
            return []
        found: list[Told] = []
        failed = False
        positions = self.positions
        # waiting for many would wait for all of them
        batch = consumer.consume(1, timeout_s)
        if batch:
            batch += consumer.consume(BATCH, 0)
        for message in batch:
            key = message.key()
            if message.error() is not None:
                failed = True
                self._note(message.error())  # type: ignore[arg-type]  # it was asked a line above
                continue
            positions[message.partition()] = message.offset() + 1  # type: ignore[operator, index]  # a record has both
            if key in wanted and (record := _told(message, key)) is not None:  # type: ignore[arg-type]  # a stub's str
                found.append(record)
        if batch and not failed and not self._lost:
            self.trouble = None
        return found

    def close(self) -> None:
        """Also right for one that was never opened."""
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            consumer.close()

    def _ready(self, timeout_s: float) -> Consumer | None:
        """The consumer, opened again where it has lost its topic, and given the partitions that were added."""
        now_s = time.monotonic()
        if self._lost:
            self.close()
            self._lost, self._open_at_s = False, now_s + AGAIN_S
        if self._consumer is None:
            if now_s < self._open_at_s:
                time.sleep(min(timeout_s, self._open_at_s - now_s))
                return None
            try:
                self.open()
            except KafkaUnavailable as error:
                self.trouble, self._open_at_s = str(error), time.monotonic() + AGAIN_S
        elif now_s >= self._look_at_s:
            self._look()
        return self._consumer

    def _described(self, timeout_s: float) -> tuple[str, frozenset[int]]:
        """The broker's own name for the topic, which one made anew does not share, and its partitions. Raises KafkaUnavailable."""
        if self._admin is None:  # a client is false while its queue is empty
            self._admin = AdminClient(unpolled(base_config(self._settings, "results")) | {"metadata.recovery.strategy": "none"})
        asked = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=timeout_s)
        try:
            found = asked[self._topic].result(timeout_s + 1.0)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaUnavailable(missing_line([self._topic], self._settings.kafka.bootstrap)) from None
            raise self._settings.kafka.unavailable(f"{self._topic}: {self.trouble or error.args[0].str()}") from None
        except TimeoutError:
            raise self._settings.kafka.unavailable(f"{self._topic}: {self.trouble or 'no answer'}") from None
        return str(found.topic_id), frozenset(partition.id for partition in found.partitions)

    def _look(self) -> None:
        """Partitions that were added hold nothing that was read yet: they are read from their beginning."""
        self._look_at_s = time.monotonic() + LOOK_S
        assert self._consumer is not None, "it is open"
        assert self.positions is not None, "known since"
        try:
            topic_id, partitions = self._described(QUICK_S)
        except KafkaUnavailable as error:
            self.trouble = str(error)
            return
        self.trouble = None
        if topic_id != self.topic_id:
            self._lost = True
        elif new := sorted(partitions - self.positions.keys()):
            self.positions |= dict.fromkeys(new, 0)
            self._consumer.incremental_assign([TopicPartition(self._topic, partition, 0) for partition in new])

    def _note(self, error: KafkaError) -> None:
        self.trouble = error.str()
        self._lost = self._lost or error.fatal() or error.code() in _LOST

    def _made(self) -> Consumer:
        own = {
            "group.id": f"{self._settings.namespace}.results",  # the client demands one; nothing is ever committed or joined
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 10,
            "queued.max.messages.kbytes": 16_384,
            "metadata.recovery.strategy": "none",
            "error_cb": self._heard,
            "logger": _quiet,
        }
        return Consumer(base_config(self._settings, "results") | own)

    def _heard(self, error: KafkaError) -> None:
        """Of partitions that are gone the client tells here and not in what it reads."""
        self._note(error)


def _told(message: Message, key: bytes) -> Told | None:
    return told(key, headers_of(message), message.value(), message.partition() or 0, message.timestamp()[1])

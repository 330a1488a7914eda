"""Follows the dead letters and the results from their beginning, on a thread of its own and in no group, to know which letters are open.

First the dead letters that are there, then the results since the oldest of them, then both as they come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from headrace.client_config import base_config
from headrace.config import Settings
from headrace.dlq.letter import read_cause
from headrace.dlq.open import OpenLetters, Standing
from headrace.envelope import Record
from headrace.errors import HeadraceError, KafkaUnavailable
from headrace.instrument import Tell
from headrace.instrument.crash import words_of
from headrace.trail import headers_of
from headrace.worker_thread import WorkerThread

BATCH = 1_000
POLL_S = 0.5
LOOK_S = 30.0
AGAIN_S = 10.0
ASK_S = 10.0
TOLD_EVERY_S = 5.0
MARGIN_MS = 60_000  # results are looked for from a minute before the oldest letter: two brokers, two clocks
_TP = tuple[str, int]
_FATAL = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)


class Follower:
    """`start`, `stop`; `standing` is replaced as a whole, and may be read from any thread.

    What fails is told once and begun anew after a while: the lane does not depend on it. Values are read of dead letters
    only, for the request id.
    """

    def __init__(self, settings: Settings, *, tell: Tell, again_s: float = AGAIN_S) -> None:
        self._settings = settings
        self._dlq, self._results = settings.topics.dlq, settings.topics.results
        self._tell = tell
        self._again_s = again_s
        self.standing = Standing()
        self.thread = WorkerThread("dead-letters-open", self._work, last_words=self._ended)

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End; whether it did in time."""
        return self.thread.stop(timeout_s)

    def _ended(self, error: BaseException) -> None:
        self._tell("letters_unfollowed", {"error": words_of(error), "note": "open dead letters are no longer counted; restart the worker"})

    def _work(self) -> None:
        told = None
        while not self.thread.stopping.is_set():
            try:
                _Following(self._settings, self.thread.stopping, self._tell, self._publish).run()
            except (HeadraceError, KafkaException) as error:
                was_well, self.standing = self.standing.caught_up, Standing()
                if was_well or str(error) != told:
                    told = str(error)
                    self._tell("letters_unfollowed", {"error": words_of(error), "note": "open dead letters are counted anew in a while"})
            self.thread.stopping.wait(self._again_s)

    def _publish(self, standing: Standing) -> None:
        self.standing = standing


class _Following:
    """One consumer, from the beginning on."""

    def __init__(self, settings: Settings, stopping: threading.Event, tell: Tell, publish: Callable[[Standing], None]) -> None:
        self._dlq, self._results = settings.topics.dlq, settings.topics.results
        self._stopping = stopping
        self._tell = tell
        self._publish = publish
        self._letters = OpenLetters()
        self._oldest_ms: int | None = None
        self._known: dict[str, int] = {}  # by topic: how many partitions are read
        self._read, self._total = 0, 0
        self._missing: set[_TP] = set()  # not yet at their end
        self._told_at = time.monotonic()
        own = {
            "group.id": f"{settings.namespace}.open",  # the client demands one; nothing is ever committed or joined
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 500,
            "queued.max.messages.kbytes": 8_192,
            "metadata.recovery.strategy": "none",
        }
        self._consumer = Consumer(base_config(settings, "open") | own)

    def run(self) -> None:
        """Until stopped. Raises KafkaUnavailable, KafkaException."""
        try:
            self._begin(self._dlq, dict.fromkeys(range(self._partitions(self._dlq)), OFFSET_BEGINNING))
            self._catch_up(1, 2)
            self._begin(self._results, self._since(self._partitions(self._results)))
            self._catch_up(2, 2)
            if self._stopping.is_set():
                return
            self._publish(self._letters.standing(1.0, caught_up=True))
            self._tell("letters_counted", {"read": self._read, "open": len(self._letters)})
            looked_at = time.monotonic()
            while not self._stopping.is_set():
                self._consume()
                if time.monotonic() - looked_at > LOOK_S:
                    self._look()
                    looked_at = time.monotonic()
                self._publish(self._letters.standing(1.0, caught_up=True))
        finally:
            self._consumer.close()

    def _partitions(self, topic: str) -> int:
        found = self._consumer.list_topics(topic, timeout=ASK_S).topics[topic]
        if found.error is not None:
            raise KafkaUnavailable(f"{topic}: {found.error.str()}; run `headrace topics diff`")
        return len(found.partitions)

    def _since(self, partitions: int) -> Mapping[int, int]:
        """Where the results begin that can answer the letters there are; what is older than the oldest of them cannot."""
        since_ms = max(0, (self._oldest_ms if self._oldest_ms is not None else int(time.time() * 1000)) - MARGIN_MS)
        asked = [TopicPartition(self._results, partition, since_ms) for partition in range(partitions)]
        return {found.partition: found.offset for found in self._consumer.offsets_for_times(asked, timeout=ASK_S)}

    def _begin(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Read these partitions too. What fails here leaves them for the next look."""
        parts = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        for part in parts:
            first, end = self._consumer.get_watermark_offsets(part, timeout=ASK_S)
            at = part.offset if part.offset >= 0 else end if part.offset != OFFSET_BEGINNING else first
            self._total += max(0, end - at)
            self._missing.add((topic, part.partition))
        self._consumer.incremental_assign(parts)
        self._known[topic] = self._known.get(topic, 0) + len(offsets)

    def _catch_up(self, step: int, steps: int) -> None:
        while self._missing and not self._stopping.is_set():
            self._consume()
            share = self._read / self._total if self._total else 1.0
            progress = (step - 1 + min(1.0, share)) / steps
            self._publish(Standing(progress=min(progress, 0.99)))
            if time.monotonic() - self._told_at > TOLD_EVERY_S:
                self._told_at = time.monotonic()
                self._tell("letters_counting", {"read": self._read, "of": self._total, "open": len(self._letters)})

    def _consume(self) -> None:
        """Letters before results, so that what comes together is taken in its order."""
        answers = []
        batch = self._consumer.consume(1, POLL_S)
        batch += self._consumer.consume(BATCH, 0) if batch else []
        for message in batch:
            error = message.error()
            if error is not None:
                self._heard(error, (message.topic() or "", message.partition() or 0))
            elif message.topic() == self._dlq:
                self._letter(message)
            else:
                answers.append(message)
        for message in answers:
            self._answer(message)
        self._read += len(batch)

    def _heard(self, error: KafkaError, tp: _TP) -> None:
        """The end of a partition, or what ails it. What may pass passes: the client tries by itself."""
        if error.code() == KafkaError._PARTITION_EOF:
            self._missing.discard(tp)
        elif error.fatal() or error.code() in _FATAL:
            raise KafkaException(error)

    def _letter(self, message: Any) -> None:
        partition, offset, stamped_ms = message.partition(), message.offset(), message.timestamp()[1]
        record = Record(self._dlq, partition, offset, 0, message.key(), message.value(), headers_of(message), stamped_ms)
        cause = read_cause(record)
        if stamped_ms > 0:
            self._oldest_ms = min(stamped_ms, self._oldest_ms or stamped_ms)
        self._letters.died(
            partition,
            offset,
            origin=str(cause.origin),
            request_id=cause.request_id,
            error_class=cause.error_class,
            died_ms=cause.dead_at_ms,
        )

    def _answer(self, message: Any) -> None:
        headers = dict(headers_of(message))
        key = message.key()
        if headers.get("headrace_status") == b"completed" and key is not None:
            self._letters.answered(request_id=key, origin=headers.get("headrace_origin"))

    def _look(self) -> None:
        """What retention has taken, and partitions that were added."""
        try:
            for partition in range(self._known[self._dlq]):
                first, _ = self._consumer.get_watermark_offsets(TopicPartition(self._dlq, partition), timeout=ASK_S)
                self._letters.deleted_before(partition, first)
            for topic, known in list(self._known.items()):
                if (now := self._partitions(topic)) > known:
                    self._begin(topic, dict.fromkeys(range(known, now), OFFSET_BEGINNING))
        except (KafkaException, KafkaUnavailable) as error:
            self._tell("letters_unlooked", {"error": words_of(error)})

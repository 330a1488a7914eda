"""Reading: one thread owns the synchronous Consumer and alone touches it. Polls, pauses, resumes, answers rebalances.

It never waits on a model. Which records are wanted and have room is the tracker's answer; what happens to them is the lane's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.assignment import Assignment
from headrace.client_config import consumer_config, falls_back, protocol_of
from headrace.committed import Committed
from headrace.config import Settings
from headrace.dispatch import Downstream, no_room, take
from headrace.errors import KafkaUnavailable
from headrace.flow import Flow
from headrace.gauges import STATISTICS_MS, Gauges
from headrace.instrument import Tell
from headrace.instrument.crash import words_of
from headrace.restorer import Restorer
from headrace.vitals import Reading
from headrace.worker_thread import WorkerThread

BATCH = 500
POLL_S = 0.05
SOFT_HOLD_S = 0.25  # a full lane that empties soon is waited for: a pause throws away what was fetched, and costs half a second
REVOKE_SHARE = 0.2  # of max.poll.interval.ms: how long a revocation waits for what is finished to be settled
FROZEN_S = 5.0
AWAY_S = 30.0  # the client says again and again that no broker can be reached, at the latest after its longest backoff
SLOW_S = 20.0

_TP = tuple[str, int]


class Source:
    """A lane's reader."""

    def __init__(
        self,
        settings: Settings,
        group: str,
        topics: Sequence[str],
        *,
        assignment: Assignment,
        flow: Flow,
        committed: Committed,
        downstream: Downstream,
        tell: Tell,
        queue_kbytes: int = 16_384,
    ) -> None:
        self._settings = settings
        self._group = group
        self._topics = list(topics)
        self._assignment = assignment
        self._flow = flow
        self._downstream = downstream
        self._tell = tell
        self._queue_kbytes = queue_kbytes
        self._restorer = Restorer(group, settings.limits.window, assignment=assignment, committed=committed, tell=tell)
        self._stash: dict[_TP, deque[Any]] = {}  # of messages; their stubs allow None where a consumed one has none
        self._paused: set[_TP] = set()
        self._holds: frozenset[str] = frozenset()
        self._gauges = Gauges()
        self.thread = WorkerThread(f"{group}-source", self._work, last_words=self._failed, patience_s=self._drain_s() + SLOW_S)
        self._frozen_at = self._away_at = float("-inf")
        self._turned_at = time.monotonic()
        self.protocol = protocol_of(settings)
        self._reading = self._joined = False

    def start(self) -> None:
        """Start reading."""
        self.thread.start()

    def hold(self, reason: str) -> None:
        """Pause everything for `reason`, and go on polling. Thread-safe."""
        if reason not in self._holds:
            self._holds |= {reason}
            self._tell("lane_paused", {"group": self._group, "reason": reason})

    def unhold(self, reason: str) -> None:
        """End the pause for `reason`."""
        if reason in self._holds:
            self._holds -= {reason}
            self._tell("lane_resumed", {"group": self._group, "reason": reason})

    def stop(self, timeout_s: float) -> bool:
        """Leave the group and end the thread; whether it ended in time."""
        ended = self.thread.stop(timeout_s)
        self._restorer.stop()
        return ended

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread, or keeps a partition from being read."""
        return self.thread.failure or self._restorer.failure

    @property
    def holds(self) -> frozenset[str]:
        """The reasons why all of it is paused."""
        return self._holds

    @property
    def joined(self) -> bool:
        """Whether the group has given this member its share, be it nothing."""
        return self._joined or self._gauges.joined(self.protocol)

    @property
    def readings(self) -> Mapping[_TP, Reading]:
        """By owned partition how far reading has come, not older than a second or two. From any thread."""
        return self._gauges.readings

    def frozen_within(self, seconds: float) -> bool:
        """Whether this process stood still (SIGSTOP, a suspended machine) within the last `seconds`."""
        return time.monotonic() - self._frozen_at < seconds

    @property
    def broker_away(self) -> bool:
        """Whether no broker could be reached lately."""
        return time.monotonic() - self._away_at < AWAY_S

    def _work(self) -> None:
        self._consumer = self._open()
        try:
            while not self.thread.stopping.is_set():
                self._turn()
        finally:
            self._consumer.close()  # leaves the group: the others need not wait for the session to end

    def _failed(self, error: BaseException) -> None:
        self._tell("source_failed", {"group": self._group, "error": words_of(error)})

    def _drain_s(self) -> float:
        """How long a revocation may wait."""
        return self._settings.kafka.max_poll_interval_ms / 1000 * REVOKE_SHARE

    def _open(self) -> Consumer:
        config = consumer_config(self._settings, "source", self._group, protocol=self.protocol, queue_kbytes=self._queue_kbytes)
        consumer = Consumer(
            config | {"statistics.interval.ms": STATISTICS_MS, "stats_cb": self._gauges.statistics, "error_cb": self._heard_error}
        )
        consumer.subscribe(self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        self._tell("group_protocol", {"group": self._group, "protocol": self.protocol})
        return consumer

    def _turn(self) -> None:
        now = self.thread.turned()
        if now - self._turned_at > FROZEN_S:
            self._frozen_at = now
        self._turned_at = now
        if self._flow.full and not self._paused and not self._flow.wait_open(SOFT_HOLD_S):
            self._apply_pauses()
        if first := self._consumer.consume(1, POLL_S):
            self._sort(first)  # at once: the second call may serve a rebalance, and this one belongs to the old assignment
            self._sort(self._consumer.consume(BATCH - 1, 0))
        self._assignment.refreshed(self._consumer.consumer_group_metadata())
        self._restore_ready()
        for tp in [tp for tp, stash in self._stash.items() if stash]:
            if self._flow.full:  # what waits for its map comes all at once: no more than a batch above the lane's room
                break
            self._release(tp)
        self._apply_pauses()
        if self._gauges.due(now):
            self._measure(now)

    def _measure(self, now: float) -> None:
        full = {tp for tp, stash in self._stash.items() if stash and self._assignment.with_tracker(tp, partial(no_room, stash))}
        self._gauges.measure(now, self._stash, self._assignment.standings(), full)

    def _sort(self, messages: list[Any]) -> None:
        """Each run of one partition's messages goes behind what is already waiting of it."""
        runs: dict[_TP, list[Any]] = {}
        for message in messages:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                self._trouble(error)
                continue
            runs.setdefault((message.topic(), message.partition()), []).append(message)
        for tp, run in runs.items():
            if tp in self._stash:
                self._restorer.passed(tp, run, self._turned_at)
                self._gauges.came_to(tp, run[-1])
                self._stash[tp].extend(run)
                if not self._flow.full:
                    self._release(tp)

    def _release(self, tp: _TP) -> None:
        """Dispatch what waits of a partition, as far as its map is known and its window has room."""
        epoch = self._assignment.epoch(tp)
        stash = self._stash[tp]
        if epoch is None or not stash:
            return
        records = self._assignment.with_tracker(tp, lambda tracker: take(tracker, tp, stash, epoch))
        if records:
            self._flow.take(len(records), sum(len(r.value or b"") + len(r.key or b"") for r in records))
            self._gauges.took(tp, records)
            self._downstream.deliver(records)

    def _restore_ready(self) -> None:
        for tp, epoch, tracker, committed in self._restorer.ready():
            if self._assignment.restored(tp, epoch, tracker, committed) and not self._reading:
                self._reading = True
                self._tell("reading", {"group": self._group, "topics": self._topics})

    def _apply_pauses(self) -> None:
        """The intended state is held here and applied again after every assignment; a paused partition must not stay so by accident."""
        owned = set(self._stash)
        intended = owned if self._holds or self._flow.full else {tp for tp, stash in self._stash.items() if len(stash) >= BATCH // 2}
        pause, resume = intended - self._paused, (self._paused - intended) & owned
        try:
            if pause:
                self._consumer.pause([TopicPartition(*tp) for tp in pause])
            if resume:
                self._consumer.resume([TopicPartition(*tp) for tp in resume])
        except KafkaException as error:
            self._tell("pause_failed", {"group": self._group, "error": str(error)})
            return
        self._paused = set(intended)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        tps = [(p.topic, p.partition) for p in partitions]
        epochs = self._assignment.assigned(tps, consumer.consumer_group_metadata())
        self._stash.update({tp: deque() for tp in tps})
        self._paused -= set(tps)
        self._joined = True
        self._tell("assigned", {"group": self._group, "partitions": sorted(f"{t}/{p}" for t, p in tps)})
        if epochs:
            self._restorer.restore(epochs)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        tps = [(p.topic, p.partition) for p in partitions]
        self._assignment.leaving(tps, self._fresh(consumer))
        self._downstream.ownership_changed()
        drained = self._downstream.drain(self._drain_s())
        self._forget(tps, self._fresh(consumer))
        self._tell("revoked", {"group": self._group, "partitions": sorted(f"{t}/{p}" for t, p in tps), "drained": drained})

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        tps = [(p.topic, p.partition) for p in partitions]
        self._forget(tps, self._fresh(consumer))
        self._tell("partition_lost", {"group": self._group, "partitions": sorted(f"{t}/{p}" for t, p in tps)})

    def _forget(self, tps: list[_TP], metadata: Any) -> None:
        self._assignment.gone(tps, metadata)
        self._downstream.ownership_changed()
        for tp in tps:
            self._stash.pop(tp, None)
            self._restorer.forget(tp)
            self._gauges.forget(tp)
            self._paused.discard(tp)

    def _fresh(self, consumer: Consumer) -> Any:
        """Group metadata taken inside the callback: an older one would be refused by a classic group."""
        try:
            return consumer.consumer_group_metadata()
        except (KafkaException, RuntimeError):  # already closing: what is settled with the last one is decided by the broker
            return self._assignment.snapshot.metadata

    def _heard_error(self, error: KafkaError) -> None:
        """librdkafka's `error_cb`: of no partition. It logs them itself; only that nobody can be reached is of use here."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  a documented name, as those librdkafka begins with an underscore are
            self._away_at = time.monotonic()

    def _trouble(self, error: KafkaError) -> None:
        if falls_back(self._settings, self.protocol, error.code(), error.str()):
            self.protocol = "classic"
            self._consumer.close()
            self._consumer = self._open()
            return
        self._tell("source_error", {"group": self._group, "error": error.str()})
        if error.fatal() or error.code() == KafkaError._FATAL:  # a fatal error that comes as a message does not say so itself
            raise KafkaUnavailable(f"the consumer of group {self._group} failed for good: {error.str()}; start the worker again")

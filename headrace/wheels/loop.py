"""The loop of the timing wheels: read each wheel's partition in order, and move what is ready to a finer wheel or back to the retry topic.

One thread, its own consumer group. Which wheel and when is `schedule`'s arithmetic; the transactions are `mover`'s.
"""

from __future__ import annotations

import time
import uuid

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace.client_config import consumer_config, falls_back, protocol_of
from headrace.clock import Clock
from headrace.committed import Committed
from headrace.config import Settings
from headrace.errors import KafkaUnavailable
from headrace.schedule import UNIT_MS, Skew, due_of, wheels_for
from headrace.trail import headers_of
from headrace.vitals import LaneSample
from headrace.wheels.lines import Lines, Move, Place, Taken
from headrace.wheels.losses import Losses
from headrace.wheels.mover import Mover, Tell
from headrace.wheels.sample import sampled
from headrace.worker_thread import WorkerThread

MOVES = 3_000
READ = 2_000
SETTLE_MS = 50
SKEW_ALERT_MS = 500
SKEW_AGAIN_MS = 60_000
COMPLAIN_MS = 5_000
BACKOFF_MS, BACKOFF_MOST_MS = 50, 5_000
FRAMING = 256
AWAY_MS = 30_000
PATIENCE_S = 120.0  # a settle: each of its steps may take as long as its transaction lives


class Wheels:
    """Moves records along the wheels until stopped. Times are the given clock's; `unit_ms` is the wheels' second.

    `tell` hears `wheels_moved`, `wheels_settle_failed`, `wheels_stalled`,
    `wheels_assigned`, `wheels_record_refused`, `broker_clock_skew` and, should the thread die, `wheels_stopped`.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        tell: Tell = lambda name, fields: None,
        unit_ms: int = UNIT_MS,
    ) -> None:
        self._topic = settings.topics.later
        self._group = f"{settings.namespace}.wheels"
        self._lines: Lines[Message] = Lines(wheels_for(settings.limits.longest_delay_s), unit_ms)
        self._clock, self._tell = clock, tell
        self._tick_ms = max(unit_ms // 4, 1)
        self._incarnation = uuid.uuid4().hex
        self._skew = Skew()
        self._mover = Mover(settings, self._group, f"{self._group}.{settings.instance or self._incarnation}", clock, tell, self._skew)
        self._losses = Losses(Committed(settings, {self._topic: self._group}), self._topic, tell)
        self._settings = settings
        self._protocol = protocol_of(settings)
        self._doubt: tuple[str, list[Move[Message]], dict[int, Taken[Message]]] | None = None
        self._settles = self._failures = 0
        self._next_tick_ms = self._retry_at_ms = self._complained_ms = self._skew_told_ms = 0
        self._busy = False
        self._away_ms, self._settled_at = -AWAY_MS, time.monotonic()
        self._sample = LaneSample("wheels", ())
        self.thread = WorkerThread("wheels", self._work, last_words=self._died, patience_s=PATIENCE_S)

    def start(self) -> None:
        """Begin, on a thread of its own. Once only."""
        self.thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Let the settle under way end, leave the group; True when that was done within `timeout_s`."""
        return self.thread.stop(timeout_s)

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread, unless it was stopped."""
        return self.thread.failure

    def sample(self) -> LaneSample:
        """How the wheels stand, not older than a tick. From any thread."""
        return self._sample

    def _work(self) -> None:
        try:
            self._mover.open()
            while not self.thread.stopping.is_set():
                self._consume()
        except KafkaException as failure:
            name = failure.args[0].name()
            raise KafkaUnavailable(f"the wheels cannot go on: {name}; see the broker's log, then restart the retry worker") from failure
        finally:
            self._mover.close()

    def _consume(self) -> None:
        """Until stopped, or until the broker turns out to have classic groups only."""
        config = consumer_config(self._settings, "wheels", self._group, protocol=self._protocol, queue_kbytes=2_048)
        consumer = Consumer(config | {"fetch.message.max.bytes": 512 << 10, "error_cb": self._heard_error})
        self._tell("group_protocol", {"group": self._group, "protocol": self._protocol})
        try:
            consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._gone, on_lost=self._gone)
            while not self.thread.stopping.is_set():
                self.thread.turned()
                self._turn(consumer)
        except KafkaException as failure:
            if not falls_back(self._settings, self._protocol, failure.args[0].code(), failure.args[0].str()):
                raise
            self._protocol = "classic"
        finally:
            consumer.close()

    def _died(self, failure: BaseException) -> None:
        self._tell("wheels_stopped", {"reason": type(failure).__name__})

    def _turn(self, consumer: Consumer) -> None:
        self._read(consumer)
        now_ms = self._clock.now_ms()
        tick = now_ms >= self._next_tick_ms
        if tick:
            self._next_tick_ms = now_ms + self._tick_ms
            self._watch_skew(now_ms)
            away = now_ms - self._away_ms < AWAY_MS
            self._sample = sampled(self._lines.owned, self._topic, now_ms, settled_at=self._settled_at, away=away)
        self._flow(consumer, now_ms, tick=tick)
        if now_ms >= self._retry_at_ms and self._lines.owned:
            self._settle(consumer, now_ms, tick=tick)

    def _read(self, consumer: Consumer) -> None:
        for message in consumer.consume(READ, self._patience_s()):
            partition, offset, error = message.partition(), message.offset(), message.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                if partition not in self._lines.owned or offset is None:
                    continue
                if error is None:
                    self._hold((partition, offset), message)
                else:
                    self._lines.owned[partition].ended(offset)
            elif error.fatal() or error.code() in (KafkaError._FATAL, KafkaError._UNSUPPORTED_FEATURE):
                raise KafkaException(error)
            else:
                self._complain(error.name())

    def _patience_s(self) -> float:
        """How long to wait for records: until a head is ready or a settle may be tried again, at most half a tick."""
        now_ms = self._clock.now_ms()
        ready_ms = self._lines.next_ready_ms()
        wake_ms = now_ms if self._busy else now_ms + self._tick_ms if ready_ms is None else ready_ms
        return min(max(wake_ms, self._retry_at_ms, now_ms) - now_ms, self._tick_ms // 2) / 1000

    def _hold(self, place: Place, message: Message) -> None:
        now_ms = self._clock.now_ms()
        kind, stamped_ms = message.timestamp()
        if kind == TIMESTAMP_LOG_APPEND_TIME:
            self._skew.saw(stamped_ms, None, now_ms)
        # What was read was appended before: no clock and no hostile timestamp can hold a wheel longer than its span.
        append_ms = min(stamped_ms - self._skew.ms, now_ms)
        headers = headers_of(message)
        size = FRAMING + len(message.value() or b"") + len(message.key() or b"") + sum(len(n) + len(v or b"") for n, v in headers)
        self._lines.hold(place, append_ms, due_of(headers), size, message)

    def _flow(self, consumer: Consumer, now_ms: int, *, tick: bool) -> None:
        pause, resume = self._lines.flow(now_ms, self._tick_ms, tick=tick)
        for partitions, act in ((pause, consumer.pause), (resume, consumer.resume)):
            if partitions:
                act([TopicPartition(self._topic, partition) for partition in partitions])

    def _settle(self, consumer: Consumer, now_ms: int, *, tick: bool) -> None:
        """1. clear up the last one  2. choose  3. move, with the offsets, in one transaction  4. only then let go of what was held."""
        if self._doubt is not None and not self._resolved(*self._doubt):
            return
        moves = self._lines.choose(now_ms, MOVES)
        taken = self._lines.take(moves)
        if not moves and not (tick and taken):
            self._busy = False
            return
        if not self._losses.told() or not self._mover.open():
            self._back_off()
            return
        self._settles += 1
        sequence = f"{self._incarnation}:{self._settles}"
        offsets = [TopicPartition(self._topic, p, part.offset, sequence) for p, part in taken.items()]
        landed = self._mover.settle(moves, offsets, consumer.consumer_group_metadata())
        if landed:
            self._committed(moves, taken)
        elif landed is None:
            self._doubt = (sequence, moves, taken)
            self._back_off()
        else:
            self._aborted(moves)

    def _resolved(self, sequence: str, moves: list[Move[Message]], taken: dict[int, Taken[Message]]) -> bool:
        """Learn from the committed offsets whether an ambiguous settle landed. The new producer has ended its transaction."""
        ours = self._lines.still_owned(taken)
        if ours and not self._mover.open():
            self._back_off()
            return False
        try:
            partitions = [TopicPartition(self._topic, partition) for partition in ours]
            landed = bool(ours) and self._mover.landed(sequence, partitions)
        except KafkaException as failure:
            self._mover.error = failure.args[0]
            self._back_off()
            return False
        self._doubt = None
        if landed:
            self._committed(moves, ours)
        return True

    def _committed(self, moves: list[Move[Message]], taken: dict[int, Taken[Message]]) -> None:
        self._lines.committed(moves, taken, self._mover.landed_at)
        now_ms = self._clock.now_ms()
        alone = self._lines.refusals.counts and len(moves) == 1
        self._busy, self._failures = len(moves) == MOVES or bool(alone), 0
        self._retry_at_ms = now_ms if self._busy else now_ms + SETTLE_MS
        if moves:
            self._settled_at = time.monotonic()
            late_ms = max((now_ms - m.waiting.due_ms for m in moves if m.waiting.due_ms), default=0)
            back = sum(move.wheel is None for move in moves)
            self._tell("wheels_moved", {"to_retry": back, "to_later": len(moves) - back, "late_ms": max(late_ms, 0)})

    def _aborted(self, moves: list[Move[Message]]) -> None:
        refused = self._mover.refused
        if self._lines.refusals.note(refused, len(moves)):
            (partition, offset), times = refused[0], self._lines.refusals.counts[refused[0]]
            self._tell("wheels_record_refused", {"partition": partition, "offset": offset, "times": times})
        self._back_off()

    def _back_off(self) -> None:
        self._failures += 1
        self._busy = False
        self._retry_at_ms = self._clock.now_ms() + min(BACKOFF_MS << min(self._failures - 1, 10), BACKOFF_MOST_MS)
        if (self._failures >= 3 or self._doubt is not None) and self._mover.error is not None:
            self._complain(self._mover.error.name())

    def _heard_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  a documented name, as those librdkafka begins with an underscore are
            self._away_ms = self._clock.now_ms()
        self._complain(error.name())

    def _complain(self, reason: str) -> None:
        now_ms = self._clock.now_ms()
        if now_ms - self._complained_ms >= COMPLAIN_MS:
            self._complained_ms = now_ms
            self._tell("wheels_stalled", {"reason": reason, "failures": self._failures})

    def _watch_skew(self, now_ms: int) -> None:
        if abs(self._skew.ms) > SKEW_ALERT_MS and now_ms - self._skew_told_ms >= SKEW_AGAIN_MS:
            self._skew_told_ms = now_ms
            self._tell("broker_clock_skew", {"skew_ms": self._skew.ms})

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._lines.assign(part.partition for part in partitions)
        self._losses.assigned(part.partition for part in partitions)
        self._tell("wheels_assigned", {"wheels": len(self._lines.owned)})

    def _gone(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Revoked or lost: no settle is under way on this thread, so what is held is simply read again by the new owner."""
        self._lines.forget(part.partition for part in partitions)
        self._losses.forget(part.partition for part in partitions)

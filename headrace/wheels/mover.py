"""What a turn of the wheels writes: records moved on with their offsets, in one transaction, and what became of it.

Which records move and where to is left to `wheels`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer, TopicPartition

from headrace.client_config import producer_config
from headrace.clock import Clock
from headrace.committed import Committed
from headrace.config import Settings
from headrace.fencing import FORGOTTEN, Fencing, error_of
from headrace.schedule import Skew, partition_of
from headrace.trail import headers_of
from headrace.wheels.lines import Move, Place

Tell = Callable[[str, dict[str, object]], None]

CALL_S = 12.0
INIT_S = 6.0
ABORTS = 5  # in a row, and none for a refused record: what ails the producer may be its own
PARTITION_BY_KEY = -1
_REFUSALS = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)


def _partition(move: Move[Message]) -> int:
    return PARTITION_BY_KEY if move.wheel is None else partition_of(move.wheel)


class Mover:
    """The transactional producer: one settle at a time, thrown away and replaced whenever its state is in doubt."""

    def __init__(self, settings: Settings, group: str, transactional_id: str, clock: Clock, tell: Tell, skew: Skew) -> None:
        self._committed = Committed(settings, {settings.topics.later: group})
        # 512 KiB is under any sane topic limit. Every delivery is reported: where a record landed shows the broker's clock.
        self._config: dict[str, Any] = producer_config(settings, "wheels.move", transactional_id, batch_bytes=512 << 10) | {
            "linger.ms": 1,
            "delivery.report.only.error": False,
        }
        self._retry, self._later = settings.topics.retry, settings.topics.later
        self._fencing = Fencing(
            transactional_id, named=settings.instance is not None, timeout_s=settings.kafka.transaction_timeout_ms / 1000
        )
        self._clock, self._tell, self._skew = clock, tell, skew
        self._producer: Producer | None = None
        self._began = 0.0
        self._aborts = 0
        self.error: KafkaError | None = None
        self.refused: list[Place] = []
        self.landed_at: dict[Place, Place] = {}

    def open(self) -> bool:
        """Whether there is an initialised producer now; False: the broker did not answer, try again later."""
        if self._producer is not None:
            return True
        producer = Producer(self._config)
        try:
            producer.init_transactions(INIT_S)
        except KafkaException as failure:
            self.error = failure.args[0]
            return False
        self._producer = producer
        return True

    def settle(self, moves: list[Move[Message]], offsets: list[TopicPartition], group: object) -> bool | None:
        """One transaction. True: committed. False: aborted, nothing landed. None: it may have landed, and there is no producer now."""
        producer = self._producer
        if producer is None:
            raise RuntimeError("open() comes first")
        self.refused, self.landed_at, sent_ms = [], {}, self._clock.now_ms()
        committing, self._began = False, time.monotonic()
        try:
            producer.begin_transaction()
            for move in moves:
                message = move.waiting.item
                report = partial(self._reported, move, sent_ms)
                topic = self._retry if move.wheel is None else self._later
                producer.produce(
                    topic, message.value(), message.key(), _partition(move), on_delivery=report, headers=list(headers_of(message))
                )
            producer.send_offsets_to_transaction(offsets, group, CALL_S)
            committing = True
            producer.commit_transaction(CALL_S)
        except (KafkaException, SystemError) as failure:
            return self._failed(producer, error_of(failure), committing=committing)
        self._aborts = 0
        return True

    def _failed(self, producer: Producer, error: KafkaError, *, committing: bool) -> bool | None:
        self.error = error
        self._tell("wheels_settle_failed", {"reason": error.name(), "committing": committing})
        forgotten = error.code() in FORGOTTEN
        in_doubt = error.fatal() or (committing and forgotten)  # a commit may have landed before it was forgotten
        if not in_doubt and (error.txn_requires_abort() or (error.retriable() and not committing)):
            try:
                producer.abort_transaction(CALL_S)
            except (KafkaException, SystemError) as failure:
                error = error_of(failure)
            else:
                self._aborts += not self.refused
                if forgotten or self._aborts >= ABORTS:
                    self.close()
                return False
        self.close()
        self._fencing.noted(error, open_s=time.monotonic() - self._began)
        return None

    def _reported(self, move: Move[Message], sent_ms: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            if error.code() in _REFUSALS:
                self.refused.append(move.source)
            return
        kind, stamped_ms = message.timestamp()
        if kind == TIMESTAMP_LOG_APPEND_TIME:
            self._skew.saw(stamped_ms, sent_ms, self._clock.now_ms())
        offset = message.offset()
        if move.wheel is not None and offset is not None:
            self.landed_at[move.source] = (partition_of(move.wheel), offset)

    def landed(self, sequence: str, partitions: list[TopicPartition]) -> bool:
        """Whether the settle of this sequence is committed. The producer is a new one by now, so that nothing is pending.

        Raises KafkaException where the broker does not answer.
        """
        found = self._committed.offsets((part.topic, part.partition) for part in partitions)
        return any(part.metadata == sequence for part in found)

    def close(self) -> None:
        """Throw the producer away, with what is still queued in it."""
        self._aborts = 0
        if self._producer is not None:
            self._producer.purge()
            try:
                self._producer.flush(CALL_S)
            except (KafkaException, SystemError) as failure:  # the binding raises a fatal error once more, out of any flush
                self.error = error_of(failure)
            self._producer = None

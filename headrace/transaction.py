"""One transactional producer and its error triage: what a transaction ended as is a value, and an ambiguous producer is thrown away.

Order of looking at an error: fatal, then abortable, then retriable; what is none of these counts as fatal.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from headrace.errors import KafkaUnavailable
from headrace.fencing import FORGOTTEN, Fencing, error_of
from headrace.instrument import Tell
from headrace.outcome import Output
from headrace.refusals import Refusal

STEP_S = 8.0  # how long one call into the client may block
ABORTS = 5  # in a row, and none for a refused record: what ails the producer may be its own
_HOPELESS = frozenset(
    {KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION}
)

_REFUSALS = {
    KafkaError.MSG_SIZE_TOO_LARGE: "size",
    KafkaError.RECORD_LIST_TOO_LARGE: "size",
    KafkaError.INVALID_MSG_SIZE: "size",
    KafkaError.INVALID_RECORD: "record",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "topic",
    KafkaError._UNKNOWN_TOPIC: "topic",
    KafkaError._UNKNOWN_PARTITION: "topic",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.TOPIC_EXCEPTION: "topic",
    KafkaError.POLICY_VIOLATION: "topic",
}

Offsets = Callable[[], tuple[list[TopicPartition], Any] | None]


class State(enum.Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended, the error in words, and the outputs refused, by index. `shut`: a topic is refused, and which one was not said."""

    state: State
    error: str | None = None
    refused: dict[int, Refusal] = field(default_factory=dict)
    shut: bool = False


class Transactions:
    """Used by one thread. `frozen_within(s)` says whether this process stood still lately: then being fenced proves no rival."""

    def __init__(
        self, config: dict[str, Any], *, tell: Tell, frozen_within: Callable[[float], bool], stopping: threading.Event, named: bool = True
    ) -> None:
        self._config = config
        self._tell = tell
        self._stopping = stopping
        self._producer: Producer | None = None
        self._timeout_s = config["transaction.timeout.ms"] / 1000
        self._fencing = Fencing(self.id, named=named, timeout_s=self._timeout_s, frozen_within=frozen_within)
        self._refused: dict[int, Refusal] = {}
        self._began = 0.0
        self._aborts = 0

    @property
    def id(self) -> str:
        """The `transactional.id`."""
        return str(self._config["transactional.id"])

    def run(self, outputs: Sequence[Output], offsets: Offsets) -> Ended:
        """One transaction. `offsets()` is asked last: offsets and group metadata, or None to abort. Raises Refused, KafkaUnavailable.

        1. begin  2. produce  3. send the offsets  4. commit
        """
        producer = self._ready()
        self._refused = {}
        committing, self._began = False, time.monotonic()
        try:
            producer.begin_transaction()  # 1
            for index, output in enumerate(outputs):  # 2
                self._produce(producer, index, output)
            found = offsets()  # 3
            if found is None:
                return self._abort(None)
            if found[0]:
                self._patiently(lambda: producer.send_offsets_to_transaction(found[0], found[1], STEP_S))
            committing = True
            self._patiently(lambda: producer.commit_transaction(STEP_S))  # 4
        except (KafkaException, SystemError) as error:
            return self._triage(error_of(error), committing=committing)
        self._aborts = 0
        return Ended(State.COMMITTED)

    def open(self) -> None:
        """Initialise the producer now: aborts what an earlier process of this id left open."""
        self._ready()

    def close(self) -> None:
        """Throw the producer away; an open transaction is aborted by the broker's time-out or the next process of this id."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            producer.purge()
            producer.poll(0)
        except (KafkaException, SystemError) as error:  # a fatal one says so at every call; it is thrown away all the same
            self._tell("producer_purge_failed", {"transactional_id": self.id, "error": error_of(error).str()})

    def _ready(self) -> Producer:
        wait_s = 0.1
        while self._producer is None:
            producer = Producer(self._config)
            try:
                producer.init_transactions(STEP_S * 2)
            except KafkaException as error:
                found: KafkaError = error.args[0]
                self._fencing.noted(found)
                if found.code() in _HOPELESS:
                    raise KafkaUnavailable(
                        f"transactional.id {self.id} was refused: {found.str()}; check the ACLs and credentials"
                    ) from error
                self._tell("kafka_unavailable", {"transactional_id": self.id, "error": found.str()})
                if self._stopping.wait(wait_s):
                    raise KafkaUnavailable(f"no transactional producer before the stop: {found.str()}") from error
                wait_s = min(wait_s * 2, 2.0)
                continue
            self._producer = producer
        return self._producer

    def _produce(self, producer: Producer, index: int, output: Output) -> None:
        while True:
            try:
                producer.produce(
                    output.topic,
                    output.value,
                    output.key,
                    output.partition,
                    partial(self._delivered, index),
                    headers=list(output.headers),
                )
                return
            except BufferError:
                producer.poll(0.05)
            except KafkaException as error:
                self._refuse(index, error.args[0])
                raise

    def _delivered(self, index: int, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._refuse(index, error)

    def _refuse(self, index: int, error: KafkaError) -> None:
        """What was purged with the rest, or came out of sequence after an abort, is no refusal: it is simply done again."""
        kind = _REFUSALS.get(error.code())
        if kind is not None:
            self._refused.setdefault(index, Refusal(cast(Literal["size", "record", "topic"], kind), error.str()))

    def _patiently(self, step: Callable[[], None]) -> None:
        """A retriable time-out is resumed by calling again, for as long as the transaction can live."""
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                return step()
            except (KafkaException, SystemError) as error:
                found = error_of(error)
                if found.fatal() or found.txn_requires_abort() or not found.retriable() or time.monotonic() > until:
                    raise

    def _triage(self, error: KafkaError, *, committing: bool) -> Ended:
        if error.fatal():
            self._replace(error)
            self._fencing.noted(error, open_s=time.monotonic() - self._began)
            return Ended(State.AMBIGUOUS if committing else State.ABORTED, error.str(), self._refused)
        forgotten = error.code() in FORGOTTEN
        if not committing or (error.txn_requires_abort() and not forgotten):  # a commit may have landed before it was forgotten
            ended = self._abort(error)
            self._aborts += not ended.refused
            if forgotten or self._aborts >= ABORTS:
                self._replace(error)
            return ended
        self._replace(error)
        return Ended(State.AMBIGUOUS, error.str(), self._refused)

    def _abort(self, cause: KafkaError | None) -> Ended:
        producer = self._producer
        assert producer is not None, "only an open transaction is aborted"
        try:
            self._patiently(lambda: producer.abort_transaction(STEP_S))
        except (KafkaException, SystemError) as error:
            self._replace(error_of(error))
        # Partitions are added to the transaction before they are written: where that is denied, no record is refused by itself.
        shut = cause is not None and not self._refused and _REFUSALS.get(cause.code()) == "topic"
        return Ended(State.ABORTED, cause.str() if cause else None, self._refused, shut)

    def _replace(self, error: KafkaError) -> None:
        if self._producer is None:
            return
        self._aborts = 0
        self._tell("producer_replaced", {"transactional_id": self.id, "error": error.str(), "code": error.code()})
        self.close()

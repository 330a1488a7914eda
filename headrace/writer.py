"""Appends records outside a lane: idempotent, or in transactions of its own. What is written, and why, is left to its callers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.client_config import idempotent_config
from headrace.config import Settings
from headrace.errors import HeadraceError, KafkaUnavailable, Refused
from headrace.fencing import FENCED
from headrace.outcome import Output

TIMEOUT_S = 30.0
_SLICE_S = 0.2
_FAILURES_KEPT = 1_000
_quiet = logging.getLogger("headrace.kafka.writer")
_quiet.propagate = False
_quiet.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A record the broker did not take: the caller's `tag` for it, and the broker's reason."""

    tag: object
    topic: str
    reason: str


class DeliveryFailed(HeadraceError):
    """Some records were not taken; `failures` holds the first thousand. The others were."""

    def __init__(self, failures: list[Undelivered]) -> None:
        self.failures = failures
        super().__init__(f"{len(failures)} records were not taken by {failures[0].topic}: {failures[0].reason}")


class InDoubt(KafkaUnavailable):
    """The end of a transaction is not known: it may have been committed. Look before it is repeated."""


class Writer:
    """A producer to be used as a context: `with Writer(settings) as writer: writer.send(output)`.

    Leaving the context waits for the broker and raises DeliveryFailed for what it refused. With a `transactional_id`
    every `send` belongs inside `with writer.transaction():`. No progress for `timeout_s` raises KafkaUnavailable.
    `on_taken` is told the tag of each record the broker has taken.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        transactional_id: str | None = None,
        timeout_s: float = TIMEOUT_S,
        on_taken: Callable[[object], None] | None = None,
    ) -> None:
        self._settings = settings
        self._on_taken = on_taken
        self._transactional_id = transactional_id
        self._timeout_s = timeout_s
        self._producer: Producer | None = None
        self._error: str | None = None
        self._fatal: KafkaError | None = None
        self.delivered = 0
        self.failed = 0
        self.failures: list[Undelivered] = []

    def __enter__(self) -> Self:
        try:
            self._producer = Producer(self._config())
            if self._transactional_id is not None:
                self._producer.init_transactions(self._timeout_s)
        except KafkaException as error:
            self.close()
            raise self._explained(error.args[0]) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def send(self, output: Output, *, tag: object = None) -> None:
        """Hands a record to the client. It is safe when `flush` returns, or the transaction is committed."""
        producer = self._open()
        moved_at, before = time.monotonic(), self.delivered + self.failed
        while True:
            try:
                producer.produce(
                    output.topic,
                    value=output.value,
                    key=output.key,
                    headers=list(output.headers),
                    partition=output.partition,
                    on_delivery=lambda error, message: self._report(error, message, tag),
                )
            except BufferError:
                producer.poll(_SLICE_S)
            except KafkaException as error:
                self._fail(tag, output.topic, error.args[0])
                return self._stop_if_fatal()
            else:
                producer.poll(0)
                return self._stop_if_fatal()
            self._stop_if_fatal()
            if self.delivered + self.failed != before:
                moved_at, before = time.monotonic(), self.delivered + self.failed
            elif time.monotonic() - moved_at > self._timeout_s:
                raise self._settings.kafka.unavailable(f"took no record for {self._timeout_s:g} s: {self._error or 'no answer'}")

    def flush(self) -> None:
        """Waits until every record is answered for. Raises DeliveryFailed for those that were not taken, once."""
        producer = self._open()
        moved_at, left = time.monotonic(), len(producer)
        while len(producer):
            self._wait(producer)
            if len(producer) != left:
                moved_at, left = time.monotonic(), len(producer)
            elif time.monotonic() - moved_at > self._timeout_s:
                raise self._settings.kafka.unavailable(
                    f"{left} records were not answered for within {self._timeout_s:g} s: {self._error or 'no answer'}"
                )
        if self.failures:
            failures, self.failures = self.failures, []
            raise DeliveryFailed(failures)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Self]:
        """What is sent inside appears at once when the block ends, or, when it raises, never.

        Raises DeliveryFailed or KafkaUnavailable after an abort, Refused when another holds the transactional id,
        InDoubt when the commit's answer is lost.
        """
        producer = self._open()
        try:
            producer.begin_transaction()
        except KafkaException as error:
            raise self._explained(error.args[0]) from None
        try:
            yield self
            self.flush()
        except BaseException:
            self._abort(producer)
            raise
        self._commit(producer)

    def close(self) -> None:
        """Drops what was not sent."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            producer.purge()
            with contextlib.suppress(KafkaException):  # a dead producer; what killed it was raised where it was used
                producer.flush(_SLICE_S)

    def _wait(self, producer: Producer) -> None:
        """A slice of waiting. The client raises here what ended it, such as a fence."""
        try:
            producer.flush(_SLICE_S)
        except KafkaException as error:
            self._fatal = error.args[0]
        self._stop_if_fatal()

    def _commit(self, producer: Producer) -> None:
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                return producer.commit_transaction(max(1.0, until - time.monotonic()))
            except KafkaException as error:
                code: KafkaError = error.args[0]
                if code.txn_requires_abort():
                    self._abort(producer)
                    raise self._explained(code) from None
                if not code.retriable() or code.fatal():
                    raise self._explained(code) from None
                if time.monotonic() > until:
                    raise InDoubt(
                        f"Kafka at {self._settings.kafka.bootstrap}: the commit was not answered ({code.str()}); it may have been done"
                    ) from None

    def _abort(self, producer: Producer) -> None:
        """The broker does it by itself after `transaction.timeout.ms` where this cannot."""
        try:
            producer.purge()
            producer.abort_transaction(min(self._timeout_s, 10.0))
        except KafkaException as error:
            self._error = error.args[0].str()
        self.failures = []

    def _report(self, error: KafkaError | None, message: Message, tag: object) -> None:
        if error is None:
            self.delivered += 1
            if self._on_taken is not None:
                self._on_taken(tag)
        else:
            self._fail(tag, message.topic() or "", error)

    def _fail(self, tag: object, topic: str, error: KafkaError) -> None:
        self.failed += 1
        if len(self.failures) < _FAILURES_KEPT:
            self.failures.append(Undelivered(tag, topic, error.str()))
        if error.fatal():
            self._fatal = error

    def _stop_if_fatal(self) -> None:
        """Raised here and not in the delivery report, which also runs while the producer is being closed."""
        if self._fatal is not None:
            raise self._explained(self._fatal)

    def _explained(self, error: KafkaError) -> HeadraceError:
        if error.code() in FENCED:
            return Refused(f"another process writes as {self._transactional_id}; let it end, or stop it, then repeat")
        return self._settings.kafka.unavailable(self._error or error.str())

    def _remember(self, error: KafkaError) -> None:
        self._error = error.str()

    def _open(self) -> Producer:
        if self._producer is None:
            raise RuntimeError("a Writer is used as `with Writer(…) as writer:`")
        return self._producer

    def _config(self) -> dict[str, Any]:
        config = idempotent_config(self._settings, "writer", linger_ms=5, timeout_s=self._timeout_s)
        config |= {"error_cb": self._remember, "logger": _quiet}
        if self._transactional_id is not None:
            config |= {"transactional.id": self._transactional_id, "transaction.timeout.ms": self._settings.kafka.transaction_timeout_ms}
            config["delivery.timeout.ms"] = min(config["delivery.timeout.ms"], config["transaction.timeout.ms"])
        return config

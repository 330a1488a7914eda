"""The client's producer: idempotent, each record awaited until the broker has it. A thread of its own takes the delivery reports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.client_config import idempotent_config
from headrace.config import Settings
from headrace.errors import ClientClosed, HeadraceError, RequestRefused
from headrace.instrument.crash import words_of
from headrace.worker_thread import WorkerThread

_POLL_S = 0.5
_quiet = logging.getLogger("headrace.kafka.client")
_quiet.propagate = False
_quiet.addHandler(logging.NullHandler())
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001  documented names
_Report = tuple["asyncio.Future[None]", KafkaError | None]


class Sender:
    """Belongs to the loop it was made in. `timeout_s`: how long the broker may take for a record, its outages included."""

    def __init__(self, settings: Settings, *, timeout_s: float) -> None:
        self._settings = settings
        self._topic = settings.topics.main
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()
        self._reports: deque[_Report] = deque()
        self._ended = False
        self._trouble: str | None = None
        self._producer = self._made()
        self._thread = WorkerThread("headrace-client-sender", self._listen, last_words=self._died)
        self._thread.start()

    async def send(self, key: bytes, value: bytes, delivered: asyncio.Future[None]) -> None:
        """Hands a record to Kafka's client, waiting for room in it; `delivered` ends when the broker has it. Raises HeadraceError."""
        while not self._taken(key, value, delivered):
            self._room.clear()
            await self._room.wait()

    def _taken(self, key: bytes, value: bytes, delivered: asyncio.Future[None]) -> bool:
        if self._thread.failure is not None:
            raise HeadraceError(f"the client's sender has ended: {words_of(self._thread.failure)}; open a new client")
        if self._ended:
            raise ClientClosed("the client was closed before the request was sent")
        try:
            self._producer.produce(self._topic, value=value, key=key, on_delivery=partial(self._report, delivered))
        except BufferError:
            return False
        except KafkaException as error:
            if not error.args[0].fatal():
                raise self.error(error.args[0]) from None
            dead, self._producer = self._producer, self._made()
            self._drop(dead)
            return self._taken(key, value, delivered)
        return True

    def error(self, error: KafkaError) -> HeadraceError:
        """What a refusal means to who has sent."""
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return RequestRefused(f"the request is too large for {self._topic}; shorten it, or raise max.message.bytes")
        if error.code() in _PURGED:
            return HeadraceError(f"the client ended before {self._topic} was known to have the request; to submit it again is harmless")
        why = self._trouble if error.code() == KafkaError._MSG_TIMED_OUT and self._trouble else error.str()
        return self._settings.kafka.unavailable(f"{self._topic} did not take a request within {self._timeout_s:g} s: {why}")

    async def close(self, timeout_s: float) -> None:
        """Waits for what was handed over, and ends."""
        with contextlib.suppress(KafkaException):  # as in `_drop`
            await asyncio.to_thread(self._producer.flush, timeout_s)
        await asyncio.to_thread(self._thread.stop, _POLL_S + 5.0)
        self._end()

    def _end(self) -> None:
        """What is left is answered for, and nothing is taken any more: nobody would hear of it."""
        self._ended = True
        self._drop(self._producer)

    def _drop(self, producer: Producer) -> None:
        """What it still holds has failed, and is told so."""
        producer.purge()
        with contextlib.suppress(KafkaException):  # a producer that is dead: what killed it was raised where it was used
            producer.flush(0.1)
        self._resolve()

    def _report(self, delivered: asyncio.Future[None], error: KafkaError | None, _message: Message) -> None:
        """On the thread that polls, `flush`'s or ours."""
        self._reports.append((delivered, error))

    def _listen(self) -> None:
        while not self._thread.stopping.is_set():
            self._thread.turned()
            self._producer.poll(_POLL_S)
            self._pass_on()
        self._pass_on()

    def _pass_on(self) -> None:
        if self._reports:
            with contextlib.suppress(RuntimeError):  # the loop was closed without the client: nobody waits any longer
                self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        while self._reports:
            delivered, error = self._reports.popleft()
            if delivered.done():
                continue
            if error is None:
                delivered.set_result(None)
            else:
                delivered.set_exception(self.error(error))
                delivered.exception()  # seen: whoever awaits it is told all the same, and nobody need
        self._room.set()

    def _died(self, _error: BaseException) -> None:
        """Nobody hears of deliveries any longer: what waits for one ends now, and `send` tells why."""
        self._loop.call_soon_threadsafe(self._end)

    def _heard(self, error: KafkaError) -> None:
        self._trouble = error.str()

    def _made(self) -> Producer:
        config = idempotent_config(self._settings, "client", linger_ms=1, timeout_s=self._timeout_s) | {
            "queue.buffering.max.messages": 20_000,
            "queue.buffering.max.kbytes": 65_536,
            "error_cb": self._heard,
            "logger": _quiet,
        }
        try:
            return Producer(config)
        except KafkaException as error:
            raise self._settings.kafka.unavailable(error.args[0].str()) from None

"""The load's producer: hands over, and tells of each record when the broker has answered for it. Never waits longer than it is told to."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.client_config import idempotent_config
from headrace.config import Settings
from headrace.loadgen.mix import Planned

_quiet = logging.getLogger("headrace.kafka.load")
_quiet.propagate = False
_quiet.addHandler(logging.NullHandler())
Heard = Callable[[float, str | None], None]


class Sender:
    """`heard` is told (due, None or the reason) of each record the broker has taken or not. One thread.

    It is connected when it is there, so that the first records are not late for that. Raises KafkaUnavailable.
    """

    def __init__(self, settings: Settings, heard: Heard) -> None:
        self._topic = settings.topics.main
        self._heard = heard
        self.trouble: str | None = None
        config = idempotent_config(settings, "load", linger_ms=2, timeout_s=120.0) | {
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 18,
            "error_cb": self._troubled,
            "logger": _quiet,
        }
        try:
            self._producer = Producer(config)
            self._producer.list_topics(self._topic, timeout=10.0)
        except KafkaException as error:
            raise settings.kafka.unavailable(self._why(error.args[0])) from None

    def offer(self, planned: Planned, due_s: float) -> bool:
        """Hand it over; False where Kafka's client is full, and may be asked again."""
        try:
            self._producer.produce(self._topic, planned.value, planned.key, on_delivery=partial(self._report, due_s))
        except BufferError:
            return False
        except KafkaException as error:
            self._heard(due_s, error.args[0].str())
        return True

    def wait(self, for_s: float) -> None:
        """Hear what the broker says, for that long."""
        until_s = time.monotonic() + for_s
        self._producer.poll(0)
        while (left_s := until_s - time.monotonic()) > 0:
            self._producer.poll(left_s)

    def drain(self, for_s: float) -> int:
        """Hear the broker out, for that long at most; how many it has not answered for."""
        return self._producer.flush(for_s)

    def close(self) -> None:
        """Drop what is left."""
        self._producer.purge()
        self._producer.flush(1.0)

    def _report(self, due_s: float, error: KafkaError | None, _message: Message) -> None:
        self._heard(due_s, None if error is None else error.str())

    def _why(self, error: KafkaError) -> str:
        return self.trouble or error.str()

    def _troubled(self, error: KafkaError) -> None:
        self.trouble = error.str()

"""What being fenced proves. Once, the coordinator timed a transaction out; again soon, another process has the same name."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException

from headrace.errors import Refused

AGAIN_S = 60.0
FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


def error_of(failure: KafkaException | SystemError) -> KafkaError:
    """The error behind it: the binding calls a delivery callback with a fatal error already raised, which Python makes a SystemError."""
    cause = failure.__cause__ if isinstance(failure, SystemError) else failure
    if not isinstance(cause, KafkaException):
        raise failure
    error: KafkaError = cause.args[0]
    return error


class Fencing:
    """Counts how often one `transactional.id` was fenced. Only a `named` one, from HEADRACE_INSTANCE, can have a rival.

    `frozen_within(s)` says whether this process stood still lately: then being fenced twice proves nothing either.
    """

    def __init__(self, transactional_id: str, *, named: bool, frozen_within: Callable[[float], bool] = lambda _s: False) -> None:
        self._id = transactional_id
        self._named = named
        self._frozen_within = frozen_within
        self._at_s = float("-inf")

    def noted(self, error: KafkaError) -> None:
        """An error that ended a producer. Raises Refused where it shows a rival."""
        if error.code() not in FENCED:
            return
        now_s = time.monotonic()
        again = now_s - self._at_s < AGAIN_S
        self._at_s = now_s
        if again and self._named and not self._frozen_within(AGAIN_S):
            raise Refused(f"another process runs as {self._id}; give each process its own HEADRACE_INSTANCE, or leave it unset")

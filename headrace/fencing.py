"""What being fenced, or forgotten, proves. Fenced once, the coordinator timed a transaction out; again soon, another process has the same name."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException

from headrace.errors import Refused

AGAIN_S = 60.0
# The coordinator has dropped an idle transactional id (7 days by default), or a partition's leader its producer. Aborting and
# beginning again brings the same error for ever: only a new producer has a new id.
FORGOTTEN = frozenset({KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.UNKNOWN_PRODUCER_ID})
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

    A transaction open for `timeout_s` may have been ended by the coordinator, and after a freeze, of which `frozen_within(s)`
    knows, any may: then being fenced twice proves nothing either.
    """

    def __init__(
        self, transactional_id: str, *, named: bool, timeout_s: float, frozen_within: Callable[[float], bool] = lambda _s: False
    ) -> None:
        self._id = transactional_id
        self._named = named
        self._timeout_s = timeout_s
        self._frozen_within = frozen_within
        self._at_s = float("-inf")

    def noted(self, error: KafkaError, *, open_s: float = 0.0) -> None:
        """An error that ended a producer, whose transaction was open for `open_s`. Raises Refused where it shows a rival."""
        if error.code() not in FENCED or open_s >= self._timeout_s:
            return
        now_s = time.monotonic()
        again = now_s - self._at_s < AGAIN_S
        self._at_s = now_s
        if again and self._named and not self._frozen_within(AGAIN_S):
            raise Refused(f"another process runs as {self._id}; give each process its own HEADRACE_INSTANCE, or leave it unset")

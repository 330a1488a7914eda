"""Headrace's own exceptions, the closed set of error classes, and the exit codes of the command line.

HeadraceError
├── ConfigError          the configuration cannot work; nothing was started          (exit 2)
├── Refused              what was asked would break a promise, or another holds it   (exit 5)
├── Stopped              the process stopped by itself, and says why                 (exit 6)
├── StackError           the local stack cannot run here                             (exit 1)
├── KafkaUnavailable     the broker cannot be reached or refused us                  (exit 1)
├── StoreUnavailable     Redis cannot be reached; what waits, waits
├── StoreLost            Redis answers, with another epoch: it may have lost data
├── NotHeld              a handler's claim is another's by now, or was never taken
├── CallFailed           a call to the model failed; carries a Failure
├── RequestRefused       a client's request that no lane would take; never sent    (also a ValueError)
├── ClientClosed         the client was closed, or never opened
├── ResultError          a client's request has no answer; carries its request_id
│   ├── ResultFailed     it is a dead letter; carries class, code and message
│   ├── ResultConflict   its request_id is known with another content
│   ├── ResultGone       it was answered before, and the answer is no longer in llm_results
│   └── ResultTimeout    no answer yet; it is still on its way                       (also a TimeoutError)
└── Verdict              a handler decides by itself how a request ends
    ├── Retry            a failure that may pass: spends an attempt
    ├── Delay            not now: spends no attempt
    └── Dead             a failure that will not pass
        └── OnceUnknown  nobody knows whether a step of it happened
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass
from datetime import datetime


class Exit(enum.IntEnum):
    """Exit codes of `headrace` and of the workers."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    NOTHING = 3
    PARTIAL = 4
    REFUSED = 5
    STOPPED = 6
    BROKEN_PROMISE = 7
    INTERRUPTED = 130


class ErrorClass(enum.StrEnum):
    """Why a request failed. A closed set: also the metric label and the header `headrace_error_class`."""

    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    CONNECTION = "connection"
    TIMEOUT = "timeout"
    INVALID_RESPONSE = "invalid_response"
    INTERNAL = "internal"
    QUOTA_EXHAUSTED = "quota_exhausted"
    AUTH = "auth"
    NOT_FOUND = "not_found"
    CONTEXT_LENGTH = "context_length"
    CONTENT_POLICY = "content_policy"
    INVALID_REQUEST = "invalid_request"
    TOO_LARGE = "too_large"
    EXPIRED = "expired"
    UNDECODABLE = "undecodable"
    ID_CONFLICT = "id_conflict"
    CANCELLED = "cancelled"
    RATE_RULE = "rate_rule"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed, as a value. `message` is already masked (see `redact`) and at most 1 KiB.

    `retry_after_ms` is what the provider asked for, `status_code` its HTTP status; `called` says whether the
    provider was really called, and so whether an attempt can have been spent. `should_retry` is the provider's
    own hint (`x-should-retry`).
    """

    error_class: ErrorClass
    message: str
    code: str | None = None
    status_code: int | None = None
    retry_after_ms: int | None = None
    called: bool = False
    should_retry: bool | None = None
    provider: str | None = None
    model: str | None = None


class HeadraceError(Exception):
    """Root of everything Headrace raises on purpose. The message says what is wrong and what to do."""

    exit_code: Exit = Exit.ERROR


class ConfigError(HeadraceError):
    """The configuration cannot work. `faults` holds one line per field, each with its remedy."""

    exit_code = Exit.USAGE

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))


class Refused(HeadraceError):
    """What was asked would break a promise, or somebody else holds what it needs."""

    exit_code = Exit.REFUSED


class Stopped(HeadraceError):
    """The process stopped by itself; the message says why."""

    exit_code = Exit.STOPPED


class StackError(HeadraceError):
    """The local stack cannot run here; the message names the remedy."""


class KafkaUnavailable(HeadraceError):
    """The broker cannot be reached, or refused us; the message names the address and the remedy."""


class StoreUnavailable(HeadraceError):
    """Redis cannot be reached, or cannot take writes. Nothing is decided; what waits, waits."""


class StoreLost(HeadraceError):
    """Redis answers with another epoch than the one this worker knows: its data may be lost."""


class NotHeld(HeadraceError):
    """The claim under which a handler runs is not its own: another has taken over, or it went on without Redis. It waits, then runs again."""


class CallFailed(HeadraceError):
    """A call to the model failed; `failure` says how. Raised by `ctx.llm`, and good to let through."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class RequestRefused(HeadraceError, ValueError):
    """A client's request that no lane would take, or whose id is in use with another content: it was not sent. The message names the field."""


class ClientClosed(HeadraceError):
    """The client was closed while something waited, or was used outside its `with` block."""


class ResultError(HeadraceError):
    """A request has no answer for its client. `request_id` is whose."""

    def __init__(self, request_id: str, message: str) -> None:
        super().__init__(message)
        self.request_id = request_id


class ResultFailed(ResultError):
    """The request is a dead letter. `error_class` and `code` say why; `message` is the provider's, masked. A replay may still answer it."""

    def __init__(self, request_id: str, error_class: str, message: str, *, code: str | None = None) -> None:
        super().__init__(request_id, f"{request_id}: {error_class}: {message}")
        self.error_class = error_class
        self.code = code
        self.message = message


class ResultConflict(ResultError):
    """The request_id is known with another content; a changed request needs an id of its own."""


class ResultGone(ResultError):
    """The request was answered before, and the answer is no longer in llm_results. Sent under a new id, it costs a new call."""


class ResultTimeout(ResultError, TimeoutError):
    """No answer within the time given. The request is still on its way: asking again for its result is right, sending it anew harmless."""


class Verdict(HeadraceError):
    """A handler's own decision about a request. Anything else it raises is `internal`."""


class Retry(Verdict):
    """Try again: spends an attempt. `after` is in seconds; without it the policy's backoff applies."""

    def __init__(self, message: str = "the handler asked for a retry", *, after: float | None = None) -> None:
        super().__init__(message)
        if after is not None and not 0 <= after < math.inf:
            raise ValueError("Retry(after=…) needs a number of seconds, 0 or more")
        self.after = after


class Delay(Verdict):
    """Not now, by no fault of the request: spends no attempt. `until` is an aware datetime."""

    def __init__(self, message: str = "the handler asked for a delay", *, until: datetime) -> None:
        super().__init__(message)
        if until.tzinfo is None:
            raise ValueError("Delay(until=…) needs an aware datetime; add a time zone, e.g. datetime.now(UTC)")
        self.until = until


class Dead(Verdict):
    """Give up: the request goes to the dead letters with this message. `code` tells them apart: 1–64 of `A-Z a-z 0-9 . _ -`."""

    def __init__(self, message: str = "the handler gave the request up", *, code: str = "handler_dead") -> None:
        super().__init__(message)
        if not _CODE.fullmatch(code):
            raise ValueError("Dead(code=…) needs 1 to 64 of A-Z a-z 0-9 . _ -")
        self.code = code


class OnceUnknown(Dead):
    """A step under `ctx.once` was begun and never reported back: it may have happened. Let through, it ends the request."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="once_unknown")


_CODE = re.compile(r"[A-Za-z0-9._-]{1,64}")

"""Headrace's own exceptions, the closed set of error classes, and the exit codes of the command line.

HeadraceError
├── ConfigError          the configuration cannot work; nothing was started          (exit 2)
├── Refused              what was asked would break a promise, or another holds it   (exit 5)
├── Stopped              the process stopped by itself, and says why                 (exit 6)
├── StackError           the local stack cannot run here                             (exit 1)
├── KafkaUnavailable     the broker cannot be reached or refused us                  (exit 1)
├── StoreUnavailable     Redis cannot be reached; what waits, waits
├── StoreLost            Redis answers, with another epoch: it may have lost data
├── CallFailed           a call to the model failed; carries a Failure
└── Verdict              a handler decides by itself how a request ends
    ├── Retry            a failure that may pass: spends an attempt
    ├── Delay            not now: spends no attempt
    └── Dead             a failure that will not pass
"""

from __future__ import annotations

import enum
import math
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


class CallFailed(HeadraceError):
    """A call to the model failed; `failure` says how. Raised by `ctx.llm`, and good to let through."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


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
    """Give up: the request goes to the dead letters with this message."""

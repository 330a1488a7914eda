"""The pipeline's own headers, read into a Trail and written back. They are untrusted: each is parsed and bounded, and what does not parse is ignored."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import orjson

from headrace.envelope import Attempt, Header, Position, Record, Trail
from headrace.errors import ErrorClass, Failure
from headrace.redact import MESSAGE_BYTES, clip

PREFIX = "headrace_"
ORIGIN_HEADER = "headrace_origin"
TRACEPARENT = "traceparent"
UNREADABLE = "headrace_headers_unreadable"  # stands for a producer's headers that the client could not read, all of them
UNREADABLE_HEADERS: Sequence[Header] = ((UNREADABLE, b"1"),)
LAST_ATTEMPTS = 16
ATTEMPTS_BYTES = 2048
COUNT_MAX = 1_000_000
TIME_MAX_MS = 253_402_300_799_000  # the end of the year 9999
MODEL_CHARS = 64
_SHORT = 512
_UNPLAIN = re.compile(r"[^ !#-\[\]-~]")


# Through methodcaller, because a plain call, once the interpreter has specialised it, returns the broken list and raises somewhere later.
_read_headers = operator.methodcaller("headers")


def headers_of(message: Any) -> Sequence[Header]:
    """A consumed message's headers. Names that are no UTF-8 cannot be read through the client; one flag stands for all of them."""
    try:
        return _read_headers(message) or ()
    except UnicodeDecodeError:
        return UNREADABLE_HEADERS
    except SystemError as error:  # confluent-kafka 2.16 returns a list with the exception set
        if not isinstance(error.__cause__, UnicodeDecodeError):
            raise
        return UNREADABLE_HEADERS


def own_headers(headers: Iterable[Header]) -> dict[str, str]:
    """Our headers by name without the prefix, as text; of repeated ones the last, of unreadable ones none."""
    own: dict[str, str] = {}
    for name, value in headers:
        if (name.startswith(PREFIX) or name == TRACEPARENT) and value is not None and len(value) <= ATTEMPTS_BYTES:
            try:
                own[name.removeprefix(PREFIX)] = value.decode()
            except UnicodeDecodeError:
                continue
    return own


def foreign_headers(headers: Iterable[Header]) -> list[Header]:
    """The producer's headers, untouched and in order, or the one that stands for them."""
    return [h for h in headers if not h[0].startswith(PREFIX) or h[0] == UNREADABLE]


def read_trail(record: Record, *, trusted: bool) -> Trail:
    """The trail in a record's headers; without any, a fresh one.

    `trusted` is the retry lane, where origin and hop are taken as they are. Elsewhere they count only beside a
    replay id, which admission then checks against the registered ones.
    """
    if not record.headers:
        return Trail(record.position)
    own = own_headers(record.headers)
    if not own:
        return Trail(record.position)
    replay_id = _short(own.get("replay_id"), 64)
    origin = _origin(own) if trusted or replay_id else None
    return Trail(
        origin=origin or record.position,
        hop=_count(own, "hop") if origin else 0,
        retry_count=_count(own, "retry_count"),
        next_retry_at_ms=_number(own, "next_retry_at", TIME_MAX_MS),
        deadline_at_ms=_number(own, "deadline_at", TIME_MAX_MS),
        first_failed_at_ms=_number(own, "first_failed_at", TIME_MAX_MS),
        elapsed_ms=_number(own, "elapsed_ms", TIME_MAX_MS) or 0,
        attempts=_attempts(own.get("attempts")),
        replay_id=replay_id,
        replay_count=_count(own, "replay_count"),
        failure=_failure(own),
        traceparent=_short(own.get(TRACEPARENT), 64),
    )


def write_trail(headers: Sequence[Header], fields: dict[str, str | int | None]) -> list[tuple[str, bytes | None]]:
    """The producer's headers as they were, then ours: replaced, never appended. A field that is None is left out."""
    out = foreign_headers(headers)
    out += [(PREFIX + name, str(value).encode("utf-8", "replace")) for name, value in fields.items() if value is not None]
    return out


def trail_fields(trail: Trail) -> dict[str, str | int | None]:
    """A trail as header fields: what `read_trail` reads back."""
    failure = trail.failure
    return {
        "origin": str(trail.origin),
        "hop": trail.hop,
        "retry_count": trail.retry_count,
        "next_retry_at": trail.next_retry_at_ms,
        "deadline_at": trail.deadline_at_ms,
        "first_failed_at": trail.first_failed_at_ms,
        "elapsed_ms": trail.elapsed_ms or None,
        "attempts": dump_attempts(trail.attempts),
        "replay_id": trail.replay_id,
        "replay_count": trail.replay_count or None,
        **failure_fields(failure),
    }


def failure_fields(failure: Failure | None) -> dict[str, str | int | None]:
    """The header fields of a failure; its message was masked where it was made, and is clipped here."""
    if failure is None:
        return {}
    return {
        "error_class": failure.error_class.value,
        "error_code": clip(failure.code, 128) if failure.code else None,
        "error_message": clip(failure.message, MESSAGE_BYTES),
        "provider": failure.provider,
        "model": clip(failure.model, 128) if failure.model else None,
    }


def dump_attempts(attempts: Sequence[Attempt]) -> str | None:
    """The last 16 attempts as JSON of at most 2 KiB, oldest first; None without any. What left a link of its chain is kept before the others."""
    if not attempts:
        return None
    kept = list(attempts)
    while len(kept) > LAST_ATTEMPTS:
        _forget_one(kept)
    while len(text := orjson.dumps([row_of(attempt) for attempt in kept])) > ATTEMPTS_BYTES:
        _forget_one(kept)
    return text.decode()


def row_of(attempt: Attempt) -> dict[str, Any]:
    """An attempt as headers, results and displays show it."""
    row = {"class": attempt.error_class, "latency_ms": attempt.latency_ms, "provider": attempt.provider}
    if attempt.model:
        row["model"] = attempt.model
    if attempt.left:
        row["left"] = True
    return row


@lru_cache(64)  # names come from callers: few are remembered
def plain_model(model: str) -> str:
    """A model's name as attempts have it: 64 characters of plain ASCII at most, so that the names of a whole chain always fit."""
    return _UNPLAIN.sub("?", model[:MODEL_CHARS])


def _forget_one(kept: list[Attempt]) -> None:
    del kept[next((at for at, attempt in enumerate(kept) if not attempt.left), 0)]


def _attempts(text: str | None) -> tuple[Attempt, ...]:
    if not text:
        return ()
    try:
        rows: Any = orjson.loads(text)
        return tuple(_attempt(row) for row in rows[-LAST_ATTEMPTS:])
    except (orjson.JSONDecodeError, AttributeError, TypeError, KeyError, ValueError):
        return ()


def _attempt(row: dict[str, Any]) -> Attempt:
    return Attempt(
        _class_name(row.get("class")),
        _latency(row),
        _text(row.get("provider"), 64),
        _text(row.get("model"), MODEL_CHARS),
        row.get("left") is True,
    )


def _latency(row: dict[str, Any]) -> int:
    return min(max(int(row.get("latency_ms", 0)), 0), TIME_MAX_MS)


def _text(value: object, limit: int) -> str:
    return value[:limit] if isinstance(value, str) else ""  # str() of lists a thousand deep would raise RecursionError


def _class_name(value: object) -> str | None:
    return ErrorClass(value).value if isinstance(value, str) else None


def _failure(own: dict[str, str]) -> Failure | None:
    try:
        error_class = ErrorClass(own.get("error_class", ""))
    except ValueError:
        return None
    return Failure(
        error_class=error_class,
        message=own.get("error_message", "")[:MESSAGE_BYTES],
        code=_short(own.get("error_code"), 128),
        provider=_short(own.get("provider"), 64),
        model=_short(own.get("model"), 128),
    )


def _origin(own: dict[str, str]) -> Position | None:
    try:
        return Position.parse(own["origin"])
    except (KeyError, ValueError):
        return None


def _count(own: dict[str, str], name: str) -> int:
    return _number(own, name, COUNT_MAX) or 0


def _number(own: dict[str, str], name: str, most: int) -> int | None:
    text = own.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        return None
    return min(int(text), most)


def _short(text: str | None, limit: int) -> str | None:
    return text[: min(limit, _SHORT)] if text else None

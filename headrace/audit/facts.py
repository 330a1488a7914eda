"""What an audit knows of each record, as values: hashes instead of bytes, so that millions can be judged."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from headrace.decode import decode_main, decode_retry
from headrace.envelope import Header, Job, Position, Record
from headrace.trail import foreign_headers, own_headers, read_trail

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_STATUSES = frozenset({"completed", "degraded", "failed", "duplicate"})
_WITHOUT_LETTER = "rate_rule"


class Source(NamedTuple):
    """A record that somebody sent. `origin` differs from `position` in a replay. `due_ms` is 0 where none is asked for.

    `content` hashes key, value and the producer's headers; `fingerprint` is the request's (0: none),
    `spent` counts the calls it says were made before.
    """

    position: Position
    origin: Position
    request_id: str | None
    fingerprint: int
    content: int
    at_ms: int
    hop: int = 0
    spent: int = 0
    due_ms: int = 0


class HandedOn(NamedTuple):
    """A record that Headrace wrote to retry or later. `spent` counts calls so far.

    `replayed` names the sending that it is, where it is a dead letter sent to retry, or that record moved by a wheel.
    """

    position: Position
    origin: Position
    content: int
    at_ms: int
    hop: int
    spent: int
    due_ms: int
    replayed: str | None = None


class Letter(NamedTuple):
    """A dead letter; `content` is None where it is flagged as cut."""

    position: Position
    origin: Position
    content: int | None
    at_ms: int


class Notice(NamedTuple):
    """A result or notice. `with_letter`: a dead letter must be there too. `fault` says why it cannot be Headrace's."""

    position: Position
    origin: Position | None
    request_id: str | None
    status: str
    fingerprint: int | None
    spent: int
    at_ms: int
    with_letter: bool = False
    fault: str | None = None


class Call(NamedTuple):
    """One call as the model saw it. `attempt` is what the client said, `wall_ms` epoch time on arrival."""

    request_id: str | None
    attempt: int | None
    wall_ms: int
    status: int | None = None


def source(record: Record, *, trusted: bool) -> Source:
    """A record of main or, `trusted`, of retry."""
    job: Job = decode_retry(record) if trusted else decode_main(record)
    trail = job.trail
    return Source(
        record.position,
        trail.origin,
        job.request_id,
        int(job.fingerprint or "0", 16) & _MASK,
        content_of(record),
        record.timestamp_ms,
        trail.hop,
        trail.retry_count,
        trail.next_retry_at_ms or 0,
    )


def is_handed_on(record: Record) -> bool:
    """Whether a record of retry names another as its origin: then Headrace wrote it."""
    return read_trail(record, trusted=True).origin != record.position


def handed_on(record: Record) -> HandedOn:
    """A record of retry or later that Headrace wrote. What a hand-written one says in its JSON stays there when it is moved to a wheel."""
    told = any(name == "headrace_retry_count" for name, _ in record.headers)
    trail = read_trail(record, trusted=True) if told else decode_retry(record).trail
    content, due_ms = content_of(record), trail.next_retry_at_ms or 0
    sent_at = own_headers(record.headers).get("replayed_at")
    replayed = f"{trail.replay_id} {sent_at}" if sent_at else None
    return HandedOn(record.position, trail.origin, content, record.timestamp_ms, trail.hop, trail.retry_count, due_ms, replayed)


def letter(record: Record) -> Letter:
    """A record of the dead-letter topic. One without a readable origin is its own."""
    cut = any(name == "headrace_cut" for name, _ in record.headers)
    return Letter(record.position, read_trail(record, trusted=True).origin, None if cut else content_of(record), record.timestamp_ms)


def notice(record: Record) -> Notice:
    """A record of the results. Never raises: anyone may have written it."""
    own = own_headers(record.headers)
    value = _object(record.value)
    request_id, status = value.get("request_id"), value.get("status")
    fault = None
    if not value:
        fault = "is no JSON object"
    elif status not in _STATUSES or own.get("status") != status:
        fault = "has no status, or another than its header says"
    elif request_id is not None and not (isinstance(request_id, str) and _ID.fullmatch(request_id)):
        request_id, fault = None, "has an id that no request can have"
    origin = _position(own.get("origin"))
    if fault is None and origin is None:
        fault = "names no origin"
    if fault is None and record.key != (request_id or str(origin)).encode("utf-8", "replace"):
        fault = "has a key that is not its id"
    attempts = value.get("attempts")
    count = attempts.get("count") if isinstance(attempts, dict) else 0
    return Notice(
        record.position,
        origin,
        request_id if isinstance(request_id, str) and _ID.fullmatch(request_id) else None,
        status if isinstance(status, str) and status in _STATUSES else "unknown",
        _fingerprint(own.get("fingerprint")),
        count if isinstance(count, int) and 0 <= count < 1 << 31 else 0,
        record.timestamp_ms,
        _with_letter(value),
        fault,
    )


def content_of(record: Record) -> int:
    """A hash of what must never change: key, value, the producer's headers in order. 64 bits, never 0."""
    hashed = hashlib.blake2b(digest_size=8)
    _add(hashed, record.key)
    _add(hashed, record.value)
    headers: Iterable[Header] = foreign_headers(record.headers) if record.headers else ()
    for name, value in headers:
        _add(hashed, name.encode("utf-8", "surrogatepass"))
        _add(hashed, value)
    return int.from_bytes(hashed.digest(), "little") or 1


_MASK = (1 << 64) - 1


def _add(hashed: Any, part: bytes | None) -> None:
    hashed.update(b"-" if part is None else b"%d:" % len(part))
    hashed.update(part or b"")


def _object(value: bytes | None) -> dict[str, Any]:
    try:
        parsed = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _with_letter(value: dict[str, Any]) -> bool:
    """Which notices come with a dead letter: all that tell of a death, but not what a rate rule drops."""
    status, error = value.get("status"), value.get("error")
    if status == "duplicate":
        return value.get("of") == "conflict"
    return status == "degraded" or (status == "failed" and not (isinstance(error, dict) and error.get("class") == _WITHOUT_LETTER))


def _position(text: str | None) -> Position | None:
    try:
        return Position.parse(text) if text else None
    except ValueError:
        return None


def _fingerprint(text: str | None) -> int | None:
    try:
        return int(text, 16) & _MASK if text and len(text) <= 64 else None
    except ValueError:
        return None

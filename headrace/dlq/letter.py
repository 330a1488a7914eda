"""A dead letter as its desk reads it: hostile bytes and headers turned into bounded facts. What to do with it is for others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from headrace.decode import READABLE_BYTES
from headrace.envelope import Position, Record, Trail
from headrace.errors import ErrorClass
from headrace.redact import mask
from headrace.trail import TIME_MAX_MS, own_headers, read_trail

UNKNOWN = "unknown"

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_CLASSES = frozenset(ErrorClass)
_DIGITS = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter. Times are epoch milliseconds; texts are bounded and masked; None means it could not be read.

    `error_class` is one of the closed set, else `unknown`. `record` keeps key, value and headers as they were, unless
    `cut` says what had to be left out because it fitted no topic.
    """

    record: Record
    trail: Trail
    dead_at_ms: int
    error_class: str
    code: str | None
    message: str | None
    provider: str | None
    model: str | None
    request_id: str | None
    agent_id: str | None
    channel: str | None
    cut: str | None = None

    @property
    def position(self) -> Position:
        """Where the dead letter itself stands."""
        return self.record.position

    @property
    def origin(self) -> Position:
        """Where its request first stood; its own position, when nothing readable says so."""
        return self.trail.origin

    @property
    def first_failed_at_ms(self) -> int | None:
        return self.trail.first_failed_at_ms

    @property
    def replay_count(self) -> int:
        return self.trail.replay_count


def read_letter(record: Record) -> Letter:
    """The letter in a record of the dead-letter topic. Never raises, whatever the bytes are."""
    trail = _named(read_trail(record, trusted=True), record)
    said = own_headers(record.headers)
    request = _request(record.value)
    body = request.get("body")
    model = said.get("model") or (body.get("model") if isinstance(body, dict) else None)
    error_class = said.get("error_class", "")
    readable = bool(request)
    return Letter(
        record=record,
        trail=trail,
        dead_at_ms=_epoch_ms(said.get("dead_at")) or max(0, min(record.timestamp_ms, TIME_MAX_MS)),
        error_class=error_class if error_class in _CLASSES else UNKNOWN,
        code=_text(said.get("error_code"), 64),
        message=_text(said.get("error_message"), 1024),
        provider=_text(said.get("provider"), 128),
        model=_name(model),
        request_id=_request_id(request),
        agent_id=_label(request.get("agent_id"), readable=readable),
        channel=_label(request.get("channel"), readable=readable),
        cut=_text(said.get("cut"), 128),
    )


def _request(value: bytes | None) -> dict[str, Any]:
    """The request as far as it is a JSON object; orjson refuses what is nested deeper than 1,024."""
    if not value or len(value) > READABLE_BYTES:
        return {}
    try:
        parsed = orjson.loads(value)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _request_id(request: dict[str, Any]) -> str | None:
    for name in ("request_id", "custom_id"):
        found = request.get(name)
        if isinstance(found, str) and _ID.fullmatch(found):
            return found
    return None


def _label(value: object, *, readable: bool) -> str | None:
    if value is None:
        return "default" if readable else None
    return value if isinstance(value, str) and 0 < len(value) <= 256 else None


def _text(value: object, limit: int) -> str | None:
    return mask(value, limit=limit) if isinstance(value, str) and value else None


def _name(value: object) -> str | None:
    """A model's name: many are longer than what `mask` takes for a token."""
    return value[:128] if isinstance(value, str) and value else None


def _epoch_ms(text: str | None) -> int | None:
    if text is None or not _DIGITS.fullmatch(text):
        return None
    value = int(text)
    return value if 0 < value <= TIME_MAX_MS else None


def _named(trail: Trail, record: Record) -> Trail:
    """The trail, unless its origin names what can be no topic."""
    return trail if _TOPIC.fullmatch(trail.origin.topic) else Trail(origin=record.position)


class Cause(NamedTuple):
    """The little that is needed to know whether a letter is still open."""

    origin: Position
    request_id: str | None
    error_class: str
    dead_at_ms: int


def read_cause(record: Record) -> Cause:
    """As `read_letter`, a fifth of its work. Never raises."""
    said = own_headers(record.headers)
    error_class = said.get("error_class", "")
    return Cause(
        origin=_origin(said.get("origin")) or record.position,
        request_id=_request_id(_request(record.value)),
        error_class=error_class if error_class in _CLASSES else UNKNOWN,
        dead_at_ms=_epoch_ms(said.get("dead_at")) or max(0, min(record.timestamp_ms, TIME_MAX_MS)),
    )


def _origin(text: str | None) -> Position | None:
    try:
        found = Position.parse(text or "")
    except ValueError:
        return None
    return found if _TOPIC.fullmatch(found.topic) else None

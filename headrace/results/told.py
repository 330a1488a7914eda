"""A record of `llm_results` as its headers tell it, and what it means to whoever waits for that id. Pure.

An id's end is the first record that answers or fails it. A `duplicate` notice is no end: it says since when the id was known, so that the
end can be sought by time; only `of: conflict` ends its own record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import orjson

from headrace.decode import parse_time_ms
from headrace.envelope import Header

STATUS, FINGERPRINT = "headrace_status", "headrace_fingerprint"
FINAL = frozenset({"completed", "degraded", "failed"})
Of = Literal["completed", "waiting", "dead"]
_OF: dict[str, Of] = {"completed": "completed", "waiting": "waiting", "dead": "dead"}


class Told(NamedTuple):
    """One result or notice: its key (the request id), what its headers say, its bytes, and where and when (epoch ms) it was appended."""

    key: bytes
    status: str
    fingerprint: bytes
    value: bytes
    partition: int
    appended_ms: int


class Asked(NamedTuple):
    """An end to be sought: what a notice repeats, since when (epoch ms), the partition that told so, and the request's fingerprint ("" : any)."""

    of: Of
    since_ms: int
    partition: int
    fingerprint: bytes = b""


def told(key: bytes, headers: Iterable[Header], value: bytes | None, partition: int, appended_ms: int) -> Told | None:
    """What a record tells; None where it is not one of ours."""
    status = fingerprint = b""
    for name, text in headers:
        if name == STATUS:
            status = text or b""
        elif name == FINGERPRINT:
            fingerprint = text or b""
    if not status or not value:
        return None
    return Told(key, status.decode("ascii", "replace"), fingerprint, value, partition, appended_ms)


def meaning(record: Told, fingerprint: bytes) -> Told | Asked | None:
    """The end itself, an end to be sought, or None: it says nothing of a request with this fingerprint (hexadecimal; b"": any)."""
    if fingerprint and record.fingerprint and record.fingerprint != fingerprint:
        return None
    if record.status in FINAL:
        return record if document(record) is not None else None
    if record.status != "duplicate" or (notice := document(record)) is None:
        return None
    repeats = notice.get("of")
    if repeats == "conflict":
        return record
    of = _OF.get(repeats) if isinstance(repeats, str) else None
    return None if of is None else Asked(of, _since_ms(notice.get("since")), record.partition, fingerprint)


def document(record: Told) -> dict[str, Any] | None:
    """The record's JSON, if it is an object that says the same id and status as key and header do: anybody may have written it."""
    try:
        value = orjson.loads(record.value)
        own = isinstance(value, dict) and (value.get("request_id"), value.get("status")) == (record.key.decode(), record.status)
    except ValueError:  # no JSON, or a key that is no text
        return None
    return value if own else None


def line_of(record: Told) -> bytes:
    """The record's JSON on one line. A provider's line breaks stand in it untouched; inside a JSON string there can be none."""
    return record.value.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


def _since_ms(text: object) -> int:
    """0 where the notice does not say: then everything is looked through."""
    try:
        return (parse_time_ms(text, "since") or 0) if isinstance(text, str) else 0
    except ValueError:
        return 0

"""A caller's request as the bytes to be sent, judged by the lane's own decoder. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from headrace.envelope import Request
from headrace.errors import RequestRefused
from headrace.produce import Line, judge


class Ready(NamedTuple):
    """A request that a lane will take: its id, the fingerprint of its content, and the record's value."""

    request_id: str
    fingerprint: bytes
    value: bytes


def ready(request: Request | Mapping[str, Any] | bytes, topic: str, max_bytes: int) -> Ready:
    """The request, judged. Raises RequestRefused with the field and the remedy; never with its content."""
    value = _bytes(request)
    request_id, fingerprint, reason = judge(Line(0, value, len(value)), topic, max_bytes)
    if reason is not None:
        raise RequestRefused(f"{request_id}: {reason}" if request_id else reason)
    assert request_id is not None, "it was judged good"
    return Ready(request_id, (fingerprint or "").encode(), value)


def _bytes(request: Request | Mapping[str, Any] | bytes) -> bytes:
    if isinstance(request, bytes):
        return request
    try:
        fields = request.model_dump(mode="json", exclude_unset=True) if isinstance(request, Request) else dict(request)
        return orjson.dumps(fields)
    except (TypeError, ValueError) as error:
        raise RequestRefused(f"the request cannot be written as JSON: {error}") from None

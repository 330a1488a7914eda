"""What a reply's headers ask of the next call: when, whether at all, and by which id the provider knows this one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from headrace.redact import clip

Headers = Mapping[str, str]

_LONGEST_HINT = 64
_ID_BYTES = 200


def retry_after_ms(headers: Headers, now_ms: int) -> int | None:
    """How long the provider asks us to wait, in ms, rounded up; None if it asks nothing that can be understood.

    `retry-after-ms` goes before `retry-after` (seconds or an HTTP date). What lies in the past is 0. A date is
    measured from the reply's own `Date`, so a skewed clock cannot shorten it, else from `now_ms`.
    """
    exact = _number(headers.get("retry-after-ms"))
    if exact is not None and exact >= 0:
        return math.ceil(exact)
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None:
        return max(0, math.ceil(seconds * 1000))
    until = _date_ms(text)
    if until is None:
        return None
    replied = _date_ms(headers.get("date"))
    return max(0, until - (now_ms if replied is None else replied))


def should_retry(headers: Headers) -> bool | None:
    """The provider's own opinion (`x-should-retry`), if it has one."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


def request_id(headers: Headers) -> str | None:
    """The provider's id of this call (`x-request-id`, `request-id`), at most 200 bytes of clean text."""
    text = headers.get("x-request-id") or headers.get("request-id")
    return clip(text, _ID_BYTES) if text else None


def _number(text: str | None) -> float | None:
    if text is None or len(text) > _LONGEST_HINT or "_" in text:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number * 1000) else None


def _date_ms(text: str | None) -> int | None:
    if text is None or len(text) > _LONGEST_HINT:
        return None
    try:
        moment = parsedate_to_datetime(text)
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return int(aware.timestamp() * 1000) if aware > datetime.min.replace(tzinfo=UTC) else None
    except (ValueError, TypeError, IndexError, OverflowError):
        return None

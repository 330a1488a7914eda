"""Masking of what must not leave a record: providers echo prompts and keys in their error messages."""

from __future__ import annotations

import re

MESSAGE_BYTES = 1024

_QUOTED = re.compile(r"(\"|“)(?:[^\"”\\]|\\.)*(?:\"|”|$)|(?<!\w)(['`‘])(?:[^'`’\\]|\\.)*(?:['`’]|$)", re.DOTALL)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+\S+")
_KEY = re.compile(r"(?i)\b(?:sk|pk|rk|key|api[-_]?key|token|secret|password)[-_=:][^\s,;&]+")
_URL_SECRET = re.compile(r"://[^/\s@]+@")
_LONG = re.compile(r"[^\s,;]{33,}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def mask(message: str, *, limit: int = MESSAGE_BYTES) -> str:
    """The message with quoted text, credentials, long tokens and control characters masked, in at most `limit` bytes of UTF-8."""
    text = message[: limit * 8].replace("\n", " ")
    text = _CONTROL.sub("?", text)
    text = _URL_SECRET.sub("://…@", text)
    text = _BEARER.sub(r"\1 …", text)
    text = _QUOTED.sub("'…'", text)
    text = _KEY.sub("…", text)
    text = _LONG.sub("…", text)
    return clip(text, limit)


def clip(text: str, limit: int) -> str:
    """The longest start of `text` that takes at most `limit` bytes of UTF-8; lone surrogates become `?`."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    return raw[: limit - 3].decode("utf-8", "ignore") + "…"

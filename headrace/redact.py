"""Masking of what must not leave a record: providers echo prompts and keys in their error messages."""

from __future__ import annotations

import re

MESSAGE_BYTES = 1024

# Possessive repeats throughout: an unclosed quote masks to the end, and no input can make a match start over.
_DOUBLE = re.compile(r'["“«](?:[^"”»\\]|\\(?:.|$))*+(?:["”»]|$)', re.DOTALL)
_SINGLE = re.compile(r"(?<!\w)['`‘](?:[^'`’\\]|\\(?:.|$)|['`’](?=\w))*+(?:['`’]|$)", re.DOTALL)  # an apostrophe in a word closes nothing
_BEARER = re.compile(r"(?i)\b(bearer|basic)[\s:]++\S+")
_KEY = re.compile(r"(?i)(?<![a-z0-9])(?:sk|pk|rk|gsk|xai|hf)[-_][^\s,;&]+")
_NAMED = re.compile(r"(?i)((?:key|token|secret|passw(?:or)?d|authorization|credentials?)(?![a-z])[^:=]{0,16}[:=]\s*+)[^\s,;&]+")
_URL_SECRET = re.compile(r"://\S{1,256}@")
_LONG = re.compile(r"[^\s,;]{33,}|\b(?=\w*\d)(?=\w*[A-Za-z])\w{20,}")
_SPACE = re.compile(r"[\t\n\r\x0b\x0c\u2028\u2029]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


def mask(message: str, *, limit: int = MESSAGE_BYTES) -> str:
    """The message with quoted text, credentials, long tokens and control characters masked, in at most `limit` bytes of UTF-8."""
    text = _SPACE.sub(" ", message[: limit * 8])
    text = _CONTROL.sub("?", text)
    text = _URL_SECRET.sub("://…@", text)
    text = _BEARER.sub(r"\1 …", text)
    text = _DOUBLE.sub("'…'", text)
    text = _SINGLE.sub("'…'", text)
    text = _NAMED.sub(r"\1…", text)
    text = _KEY.sub("…", text)
    text = _LONG.sub("…", text)
    return clip(text, limit)


def clip(text: str, limit: int) -> str:
    """The longest start of `text` that takes at most `limit` bytes of UTF-8 (3 or more); lone surrogates become `?`."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    return raw[: limit - 3].decode("utf-8", "ignore") + "…"

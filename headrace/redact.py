"""Masking of what must not leave a record: providers echo prompts and keys in their error messages."""

from __future__ import annotations

import re
from collections.abc import Iterator

MESSAGE_BYTES = 1024
OTHER = "other"
NONE = "none"

# Possessive repeats throughout: an unclosed quote masks to the end, and no input can make a match start over.
_DOUBLE = re.compile(r'["“«](?:[^"”»\\]|\\(?:.|$))*+(?:["”»]|$)', re.DOTALL)
_SINGLE = re.compile(r"(?<!\w)['`‘](?:[^'`’\\]|\\(?:.|$)|['`’](?=\w))*+(?:['`’]|$)", re.DOTALL)  # an apostrophe in a word closes nothing
_BEARER = re.compile(r"(?i)\b(bearer|basic)[\s:]++\S+")
_KEY = re.compile(r"(?i)(?<![a-z0-9])(?:sk|pk|rk|gsk|xai|hf)[-_][^\s,;&]+")
_NAMED = re.compile(r"(?i)((?:key|token|secret|passw(?:or)?d|authorization|credentials?)(?![a-z])[^:=]{0,16}[:=]\s*+)[^\s,;&]+")
_URL_SECRET = re.compile(r"://\S{1,256}@")
_LONG = re.compile(r"[^\s,;]{33,}|\b(?=\w*\d)(?=\w*[A-Za-z])\w{20,}")
_SPACE = re.compile(r"[\t\n\r\x0b\x0c\u2028\u2029]")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@+-]{0,95}")
_SECRET = re.compile(r"(?i)(?:^|[^a-z])(?:sk|pk|rk|key|token|secret|password|bearer)[-_=:]|[A-Za-z0-9+_]{40,}")
_WORD = re.compile(r"\w+")
_ECHO_CHARS, _ECHO_CHARS_WITH_DIGIT = 12, 6  # shorter runs of words stand in any two texts
_ECHO_SEARCHED = 64 << 20  # characters: a search of more would hold up the loop
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


def mask(message: str, *, limit: int = MESSAGE_BYTES) -> str:
    """The message with quoted text, credentials, long tokens and control characters masked, in at most `limit` bytes of UTF-8."""
    text = _legible(message[: limit * 8])
    text = _URL_SECRET.sub("://…@", text)
    text = _BEARER.sub(r"\1 …", text)
    text = _DOUBLE.sub("'…'", text)
    text = _SINGLE.sub("'…'", text)
    text = _NAMED.sub(r"\1…", text)
    text = _KEY.sub("…", text)
    text = _LONG.sub("…", text)
    return clip(text, limit)


def without_echo(message: str, sent: object) -> str:
    """A masked message without what it repeats of the text in `sent`, a JSON value: runs of whole words, 12 characters or more, become `…`.

    Providers quote prompts without quotation marks too. With a digit in it a run of 6 characters is one.
    """
    text = _legible("\n".join(_strings(sent)))
    known = set(_WORD.findall(text))
    words = list(_WORD.finditer(message))
    last = len(words) - 1
    candidates = [word[0] in known or at == last for at, word in enumerate(words)]  # the last may be cut
    searches = _ECHO_SEARCHED // (len(text) + 1) + 1
    runs: list[tuple[int, int]] = []
    at = 0
    while at <= last:
        end = at
        while end <= last and candidates[end] and (searches <= 0 or message[words[at].start() : words[end].end()] in text):
            end += 1
            searches -= 1
        if end > at and _is_echo(message[words[at].start() : words[end - 1].end()]):
            runs.append((words[at].start(), words[end - 1].end()))
        at = max(end, at + 1)
    for begin, stop in reversed(runs):
        message = f"{message[:begin]}…{message[stop:]}"
    return message


def _is_echo(run: str) -> bool:
    return len(run) >= (_ECHO_CHARS_WITH_DIGIT if any(map(str.isdigit, run)) else _ECHO_CHARS)


def _strings(value: object) -> Iterator[str]:
    """Every text in a JSON value; names of members are no text."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _legible(text: str) -> str:
    return _CONTROL.sub("?", _SPACE.sub(" ", text))


def visible(text: str) -> str:
    """The text as a terminal may be given it: what would move its cursor, or is no character, becomes `?`. Line ends and tabs stay."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def clip(text: str, limit: int) -> str:
    """The longest start of `text` that takes at most `limit` bytes of UTF-8 (3 or more); lone surrogates become `?`."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    return raw[: limit - 3].decode("utf-8", "ignore") + "…"


def plain(name: str | None) -> str:
    """A label fit to be told: `none` without a name, `other` for one with odd characters or the look of a secret."""
    if not name:
        return NONE
    return name if _PLAIN.fullmatch(name) and not _SECRET.search(name) else OTHER

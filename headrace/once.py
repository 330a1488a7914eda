"""What is kept of a handler's steps that run at most once, and who may begin one: pure decisions, as `claims` are.

The Lua scripts beside `store` decide the same; one contract test holds both to this. Running a step is `effects`' work.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import orjson

MOST_KEYS = 256  # of one request
KEY_CHARS = 256
VALUE_BYTES = 256 << 10  # of JSON
_PLAIN = re.compile(r"[A-Za-z0-9._:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class Kept:
    """What is held for a step. `nonce` is the run that began it; `again`: it was begun before. Without a `value` its end is not known."""

    nonce: str
    since_ms: int
    again: bool = False
    value: bytes | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """It may run. `again`: an earlier run never reported back."""

    again: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """It has run; this is its value, as JSON."""

    value: bytes


@dataclass(frozen=True, slots=True)
class Unknown:
    """It was begun at `since_ms`, and whether it happened nobody knows. None: it was written by another version."""

    since_ms: int | None


@dataclass(frozen=True, slots=True)
class Full:
    """The request has MOST_KEYS steps already."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The claim is not held by whoever asks."""


Begun = Run | Known | Unknown | Full | Lost


def begin(kept: Kept | None, nonce: str, now_ms: int, *, steps: int, again: bool) -> tuple[Begun, Kept | None]:
    """What a claim's holder gets that wants to run a step, and what is to be kept instead (None: what is there stays).

    `steps` counts those of the request; `again` says that an unknown one may run once more. Asking twice with one nonce
    gives one answer: a reply may be lost.
    """
    if kept is None:
        return (Full(), None) if steps >= MOST_KEYS else (Run(), Kept(nonce, now_ms))
    if kept.value is not None:
        return Known(kept.value), None
    if kept.nonce == nonce:
        return Run(kept.again), None
    return (Run(again=True), Kept(nonce, now_ms, again=True)) if again else (Unknown(kept.since_ms), None)


def end(kept: Kept | None, nonce: str, value: bytes | None, now_ms: int, *, held: bool) -> tuple[bool, Kept | None]:
    """The end of a run: whether it was that run's to tell, and what is kept then. Without a value it did not happen.

    A run that was overtaken tells nothing. One whose beginning Redis has lost may tell, if its claim is `held`.
    """
    if (kept is None and not held) or (kept is not None and kept.nonce != nonce):
        return False, kept
    return True, None if value is None else Kept(nonce, now_ms, value=value)


def field_of(key: object) -> str:
    """The name a step is kept under. Raises ValueError for a key nobody can use, with the remedy."""
    if not isinstance(key, str) or not 1 <= len(key) <= KEY_CHARS:
        raise ValueError(f"ctx.once: the key must be a text of 1 to {KEY_CHARS} characters; hash what is longer")
    return key if _PLAIN.fullmatch(key) else "=" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def dump(value: Any) -> bytes:
    """A step's value as it is kept. Raises ValueError, with the remedy, for what is no JSON or too long."""
    try:
        text = orjson.dumps(value)
    except TypeError as error:
        raise ValueError(f"its value is no JSON ({error}); return plain dictionaries, lists, texts and numbers") from None
    if len(text) > VALUE_BYTES:
        raise ValueError(f"its value takes {len(text)} bytes of JSON, of at most {VALUE_BYTES}; keep it elsewhere, and return where")
    return text

"""What is shut, and until when: the values that pauses are told, shared and shown as."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Shuttable(Protocol):
    """What is called: a provider, a model of it, and the key it is called with (by its id)."""

    @property
    def provider(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def key_id(self) -> str: ...


class Held(Protocol):
    """What operators hold back, beside what failures have shut. A `model` of None is all of the provider."""

    @property
    def active(self) -> bool: ...
    def holds(self, provider: str, model: str | None, now_ms: int) -> bool: ...
    def back_ms(self, provider: str, model: str, now_ms: int) -> int | None: ...


class Scope(NamedTuple):
    """How much is shut: one model of a key, or, with `model` None, everything this key opens."""

    provider: str
    key_id: str
    model: str | None


class Pause(NamedTuple):
    """A scope that is shut until `until_ms` (epoch ms); `length_ms` doubles with every failed reopening.

    `error_class` and `code` are of the failure that shut it; empty where an older version wrote it.
    """

    scope: Scope
    until_ms: int
    length_ms: int
    error_class: str = ""
    code: str = ""

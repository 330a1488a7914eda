"""The steps of handlers without a Redis: the rules of `once` in a dict. The contract test is the real one's."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Protocol

from headrace import once
from headrace.claims import Claim, Held
from headrace.once import Begun, Kept, Lost, field_of

Shelf = MutableMapping[str, tuple[dict[str, Kept], int]]  # by request id: its steps, and when they are forgotten


class _Opened(Protocol):
    """The store beside it: its server's time once admission is open, what it holds, where steps are kept."""

    def admitted_ms(self) -> int: ...
    def held(self, request_id: str) -> Held | None: ...


class MemorySteps:
    """As `steps.Steps`, over a MemoryStore. `shelf` gives where its server keeps them."""

    def __init__(self, store: _Opened, shelf: Callable[[], Shelf], life_ms: int) -> None:
        self._store = store
        self._shelf = shelf
        self._life_ms = life_ms

    def of(self, request_id: str) -> dict[str, Kept]:
        """What is kept of a request's steps now."""
        steps, ends_ms = self._shelf().get(request_id, ({}, 0))
        return dict(steps) if ends_ms > self._store.admitted_ms() else {}

    async def begin(self, claim: Claim, key: str, nonce: str, *, again: bool) -> Begun:
        """Whether the holder of `claim` may run a step."""
        now, steps = self._store.admitted_ms(), self.of(claim.request_id)
        if not self._holds(claim):
            return Lost()
        answer, new = once.begin(steps.get(field_of(key)), nonce, now, steps=len(steps), again=again)
        if new is not None:
            self._keep(claim.request_id, steps | {field_of(key): new}, now)
        return answer

    async def end(self, claim: Claim, key: str, nonce: str, value: bytes | None) -> bool:
        """Keep a step's value."""
        now, steps = self._store.admitted_ms(), self.of(claim.request_id)
        told, new = once.end(steps.pop(field_of(key), None), nonce, value, now, held=self._holds(claim))
        if told:
            self._keep(claim.request_id, steps | ({} if new is None else {field_of(key): new}), now)
        return told

    def _holds(self, claim: Claim) -> bool:
        held = self._store.held(claim.request_id)
        return held is not None and held.state == "claimed" and held.belongs_to(claim)

    def _keep(self, request_id: str, steps: dict[str, Kept], now_ms: int) -> None:
        self._shelf()[request_id] = (steps, now_ms + self._life_ms)

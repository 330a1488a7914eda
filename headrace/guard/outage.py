"""While Redis is away, or what it lost is being restored: claims that wait for it or go on without it, and one word to the operator at each end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import tenacity

from headrace.claims import Answer, Claim
from headrace.errors import StoreLost, StoreUnavailable
from headrace.guard.marks import Tell
from headrace.store import ClaimStore


def until_taken() -> tenacity.AsyncRetrying:
    """Tries for as long as Redis is away, or is being restored."""
    wait = tenacity.wait_random_exponential(0.1, max=1.0)
    return tenacity.AsyncRetrying(retry=tenacity.retry_if_exception_type((StoreUnavailable, StoreLost)), wait=wait)


class Gate(Protocol):
    """Whether claims may be granted: not while marks that Redis lost are restored."""

    @property
    def is_open(self) -> bool: ...

    async def until_open(self) -> None: ...

    def suspect(self, error: StoreLost) -> None: ...


class Outage:
    """Whether Redis is `away`, and what `on_outage` makes of it."""

    def __init__(self, tell: Tell, on_outage: Literal["pause", "continue"], gate: Gate) -> None:
        self._tell = tell
        self._on_outage = on_outage
        self._gate = gate
        self.away = False

    @property
    def goes_on(self) -> bool:
        """Whether records go on without claims now."""
        return self.away and self._on_outage == "continue"

    def begin(self, error: StoreUnavailable) -> None:
        """It cannot be reached, or takes no writes: told once."""
        if not self.away:
            self.away = True
            self._tell("store_unavailable", {"error": str(error), "on_outage": self._on_outage})

    def end(self) -> None:
        """It takes writes again: told once."""
        if self.away:
            self.away = False
            self._tell("store_back", {})

    async def claim(self, store: ClaimStore, claims: Sequence[Claim]) -> list[Answer] | None:
        """The answers, however long they take; None: we go on without."""
        if self.goes_on:
            return None
        async for attempt in until_taken():
            with attempt:
                await self._gate.until_open()
                try:
                    answers = await store.claim(claims)
                except StoreUnavailable as error:
                    self.begin(error)
                    if self._on_outage == "continue":
                        return None
                    raise
                except StoreLost as error:
                    self._gate.suspect(error)
                    raise
                self.end()
                return answers
        raise AssertionError("tenacity returns or raises")

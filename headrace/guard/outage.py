"""While Redis is away: claims that wait for it or go on without it, and one word to the operator at each end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import tenacity

from headrace.claims import Answer, Claim
from headrace.errors import StoreUnavailable
from headrace.guard.marks import Tell
from headrace.store import ClaimStore


class Outage:
    """Whether Redis is `away`, and what `on_outage` makes of it."""

    def __init__(self, tell: Tell, on_outage: Literal["pause", "continue"]) -> None:
        self._tell = tell
        self._on_outage = on_outage
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
        """The answers, however long they take; None: we go on without. Raises StoreLost."""
        if self.goes_on:
            return None
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(StoreUnavailable), wait=tenacity.wait_random_exponential(0.1, max=1.0)
        ):
            with attempt:
                try:
                    answers = await store.claim(claims)
                except StoreUnavailable as error:
                    self.begin(error)
                    if self._on_outage == "continue":
                        return None
                    raise
                self.end()
                return answers
        raise AssertionError("tenacity returns or raises")

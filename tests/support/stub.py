"""The stub LLM as tests wait for it: not for ever. What the workers had to say is in the error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from headrace.local.stub import StubLLM
from tests.support.worker import accounts

WAIT_S = 60.0


class PatientStub(StubLLM):
    """Fails a wait after WAIT_S, with what it saw and what became of the workers."""

    @property
    def in_flight(self) -> int:
        """Calls under way."""
        return self._ledger.in_flight

    async def wait_calls(self, n: int) -> None:
        """As the stub's. Raises AssertionError after WAIT_S."""
        await self._within(super().wait_calls(n), f"{n} calls")

    async def wait_in_flight(self, n: int) -> None:
        """As the stub's. Raises AssertionError after WAIT_S."""
        await self._within(super().wait_in_flight(n), f"{n} calls in flight")

    async def _within(self, wait: Awaitable[None], what: str) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                await wait
        except TimeoutError:
            seen = f"{self.total_calls} calls, {self.in_flight} in flight"
            raise AssertionError(f"not {what} within {WAIT_S:g} s but {seen}; {accounts()}") from None

"""Admission without claims, for the dead-letter lane: any record at all goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headrace.admission import Admission, Go
from headrace.envelope import Job
from headrace.outcome import Outcome, Settlement


class Everybody:
    """Claims nothing, marks nothing, hands nothing over: a dead letter told about twice harms nobody."""

    async def admit(self, jobs: Sequence[Job]) -> list[Admission]:
        """All of them."""
        return [Go(job, None) for job in jobs]

    async def run(self, emit: Callable[[list[Admission]], None]) -> None:
        """Nothing waits here."""
        await asyncio.Event().wait()

    def concluded(self, go: Go, outcome: Outcome) -> Settlement | None:
        """It is settled."""
        return Settlement(go.job, outcome, go.token)

    def release(self, jobs: Sequence[Job]) -> None:
        """Nothing was claimed."""

    async def close(self) -> None:
        """Nothing is left to write."""

    async def settled(self, settlements: Sequence[Settlement]) -> None:
        """Nothing to mark."""

    async def hand_over(self, settlements: Sequence[Settlement]) -> None:
        """Their new owner reads them again."""

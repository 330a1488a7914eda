"""What admission says of a job: go on under a claim, take an answer that is already there, or end here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.envelope import Job
from headrace.outcome import Outcome, Settlement


@dataclass(frozen=True, slots=True)
class Go:
    """May be called, under the claim `token`, if it holds one."""

    job: Job
    token: str | None


@dataclass(frozen=True, slots=True)
class Ready:
    """Another worker handed its outcome over: settle it, without a call."""

    job: Job
    token: str | None
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Ends:
    """Ends at admission: a duplicate, a conflict, a copy that waits for another."""

    job: Job
    outcome: Outcome
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """Its partition went away while it waited here: nothing is settled, its new owner reads it again."""

    job: Job


Admission = Go | Ready | Ends | Gone


class Everybody:
    """The dead-letter lane's admission: no claims, everybody goes on."""

    async def admit(self, jobs: Sequence[Job]) -> list[Admission]:
        """All of them."""
        return [Go(job, None) for job in jobs]

    async def run(self, emit: Callable[[list[Admission]], None]) -> None:
        """Nothing waits here."""
        await asyncio.Event().wait()

    def release(self, jobs: Iterable[Job]) -> None:
        """Nothing was claimed."""

    async def settled(self, settlements: Sequence[Settlement]) -> None:
        """Nothing to mark."""

    async def hand_over(self, settlements: Sequence[Settlement]) -> None:
        """Nobody takes over: the new owner reads them again."""

"""Records whose request id another claim holds: the same position's earlier owner, or another record of which it is a copy.

Decides from answers and committed offsets; asking for them is the guard's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.claims import Answer, Claim, Copy, Token, Unreadable, Wait
from headrace.envelope import Job, Position
from headrace.outcome import Deferred, Duplicate, Outcome

LOOK_EVERY_MS = 1_000
Place = tuple[str, int, int, int]


def place_of(job: Job) -> Place:
    """A record under one assignment: the same position may be here twice, when its partition left and came back."""
    return job.record[:4]


def claim_of(job: Job, incarnation: str, *, strict: bool) -> Claim:
    """The claim a record brings, in the name of this process and of its assignment."""
    trail, record = job.trail, job.record
    token = Token(incarnation, record.epoch)
    return Claim(job.request_id or "", record.position, trail.origin, trail.hop, token, job.fingerprint or "", trail.replay_id, strict)


class Committed(Protocol):
    """Reads stable committed offsets and maps, rarely and in batches."""

    async def resolved(self, positions: Sequence[Position]) -> list[bool | None]:
        """For each position: resolved, unresolved, or None: below the log start and unresolved. May raise KafkaUnavailable."""
        ...


@dataclass(slots=True)
class Waiter:
    """A record that waits. `copy` is the claim in its way (None: an earlier owner of its own position).

    `outcome`: it was called already, and lost its claim with Redis' data; if the claim comes back to it, that is settled.
    """

    job: Job
    claim: Claim
    since_ms: int
    copy: Copy | None = None
    settled: Copy | None = None
    look_at_ms: int = 0
    outcome: Outcome | None = None

    def same(self, seen: Copy | None) -> bool:
        """Whether the claim in its way is still the one that was `seen`."""
        return seen is not None and self.copy is not None and (seen.position, seen.token) == (self.copy.position, self.copy.token)


class Waiters:
    """Those who wait, in order of arrival."""

    def __init__(self, copy_wait_s: float) -> None:
        self._copy_wait_ms = round(copy_wait_s * 1000)
        self._all: dict[Place, Waiter] = {}

    def __len__(self) -> int:
        return len(self._all)

    def all(self) -> list[Waiter]:
        """A snapshot, since answers change the set."""
        return list(self._all.values())

    def take_all(self) -> list[Job]:
        """Nobody waits any longer; who did."""
        jobs = [waiter.job for waiter in self._all.values()]
        self._all.clear()
        return jobs

    def __contains__(self, waiter: Waiter) -> bool:
        return self._all.get(place_of(waiter.job)) is waiter

    def put(self, job: Job, claim: Claim, answer: Answer, now_ms: int, outcome: Outcome | None = None) -> None:
        """Let a record wait."""
        self._all[place_of(job)] = Waiter(job, claim, now_ms, answer if isinstance(answer, Copy) else None, outcome=outcome)

    def take(self, job: Job) -> bool:
        """It waits no longer; whether it did."""
        return self._all.pop(place_of(job), None) is not None

    def still(self, waiter: Waiter, answer: Wait | Copy | Unreadable, now_ms: int) -> Outcome | None:
        """How a record ends that was told once more to wait; None: it goes on waiting."""
        waiter.copy = answer if isinstance(answer, Copy) else None
        if isinstance(answer, Wait):
            return None
        if waiter.copy is not None and waiter.same(waiter.settled):
            # settled, and its mark was lost or still comes: what it was, the committed offset does not say
            return Duplicate("waiting", waiter.copy.since_ms, now_ms)
        if waiter.outcome is None and now_ms - waiter.since_ms >= self._copy_wait_ms:
            return Deferred(now_ms + self._copy_wait_ms, "another record holds this request id and is not settled yet", copy=True)
        return None

    def to_look(self, now_ms: int) -> list[Waiter]:
        """Copies whose holder's committed offset should be looked at now."""
        due = [w for w in self._all.values() if w.copy is not None and w.look_at_ms <= now_ms and not w.same(w.settled)]
        for waiter in due:
            waiter.look_at_ms = now_ms + LOOK_EVERY_MS
        return due

    @staticmethod
    def looked(waiters: Sequence[Waiter], seen: Sequence[Copy], resolved: Sequence[bool | None]) -> list[tuple[str, Copy]]:
        """Note what the committed offsets say of the claims that were `seen`; returns the void ones, by request id."""
        void = []
        for waiter, copy, is_resolved in zip(waiters, seen, resolved, strict=True):
            if is_resolved:
                waiter.settled = copy
            elif is_resolved is None:
                void.append((waiter.claim.request_id, copy))
        return void

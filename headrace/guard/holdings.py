"""The claims this process holds, and when each was last known to be alive. It renews them, or lets them lapse."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.claims import Claim
from headrace.guard.marks import Tell
from headrace.guard.waiters import Place
from headrace.store import ClaimStore

RENEW_MS = 5_000


@dataclass(slots=True)
class _Holding:
    claim: Claim
    renewed_ms: int


class Holdings:
    """Claims by their record's place. Each is renewed every 5 s, a third of its liveness."""

    def __init__(self, store: ClaimStore, tell: Tell) -> None:
        self._store = store
        self._tell = tell
        self._all: dict[Place, _Holding] = {}
        self._released: list[Claim] = []

    def __len__(self) -> int:
        return len(self._all)

    def put(self, place: Place, claim: Claim, now_ms: int) -> None:
        """A claim was granted."""
        self._all[place] = _Holding(claim, now_ms)

    def take(self, place: Place) -> Claim | None:
        """It is settled or handed over: the claim, if it is still held."""
        held = self._all.pop(place, None)
        return held.claim if held is not None else None

    def release(self, place: Place) -> None:
        """Its record was not begun, or was interrupted: the claim stays, and lapses at the next `let_lapse`."""
        held = self._all.pop(place, None)
        if held is not None:
            self._released.append(held.claim)

    async def let_lapse(self) -> None:
        """Let what was released lapse at once: whoever owns the partition next need not wait for it. Raises StoreUnavailable or StoreLost."""
        if released := list(self._released):
            await self._store.lapse(released)
            del self._released[: len(released)]

    async def renew(self, now_ms: int) -> None:
        """Keep alive what is due; a claim that is another's by now is told and dropped. Raises StoreUnavailable or StoreLost."""
        due = [(place, held) for place, held in self._all.items() if now_ms - held.renewed_ms >= RENEW_MS]
        flags = await self._store.renew([held.claim for _, held in due]) if due else []
        for (place, held), ours in zip(due, flags, strict=True):
            held.renewed_ms = now_ms
            if not ours and self._all.get(place) is held:
                del self._all[place]
                self._tell("claim_lost", {"topic": held.claim.position.topic, "partition": held.claim.position.partition})

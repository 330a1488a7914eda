"""The claims this process holds, and when each was last known to be alive. It renews them, or lets them lapse."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.claims import Answer, Claim, Granted
from headrace.guard.marks import Tell
from headrace.guard.waiters import Place
from headrace.store import ClaimStore

RENEW_MS = 5_000


@dataclass(slots=True)
class _Holding:
    claim: Claim
    renewed_ms: int
    lost_to: Answer | None = None


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

    def lost_to(self, place: Place) -> Answer | None:
        """Who has its request id instead, after Redis lost its data and another was first to claim it again."""
        held = self._all.get(place)
        return held.lost_to if held is not None else None

    async def reassert(self, now_ms: int) -> tuple[int, int]:
        """Claim everything again; how many were kept, and lost. Raises StoreUnavailable or StoreLost."""
        all_held = list(self._all.values())
        answers = await self._store.reassert([held.claim for held in all_held]) if all_held else []
        for held, answer in zip(all_held, answers, strict=True):
            held.renewed_ms = now_ms
            held.lost_to = None if isinstance(answer, Granted) else answer
        lost = sum(held.lost_to is not None for held in all_held)
        return len(all_held) - lost, lost

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
        due = [(p, held) for p, held in self._all.items() if now_ms - held.renewed_ms >= RENEW_MS and held.lost_to is None]
        flags = await self._store.renew([held.claim for _, held in due]) if due else []
        for (place, held), ours in zip(due, flags, strict=True):
            held.renewed_ms = now_ms
            if not ours and self._all.get(place) is held:
                del self._all[place]
                self._tell("claim_lost", {"topic": held.claim.position.topic, "partition": held.claim.position.partition})

"""Admission by claim: who may handle a request id, who waits, who ends. Permits, calls and settling are others' work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from headrace.admission import Admission, Ends, Go, Gone, Ready, ended
from headrace.claims import Answered, Claim, Conflict, Copy, Granted, Taken, UnknownReplay, Unreadable, Wait
from headrace.clock import Clock
from headrace.envelope import Job, Record
from headrace.errors import KafkaUnavailable, StoreLost, StoreUnavailable
from headrace.guard.handover import UnreadableOutcome, load_outcome
from headrace.guard.holdings import Holdings
from headrace.guard.marks import Marks, Tell
from headrace.guard.outage import Gate, Outage, until_taken
from headrace.guard.waiters import Committed, Waiters, claim_of, place_of
from headrace.outcome import Outcome, Settlement
from headrace.store import ClaimStore

__all__ = ["Admission", "Committed", "Ends", "Go", "Gone", "Guard", "Ready"]

Emit = Callable[[list[Admission]], None]
TICK_S = 0.2
SYNC_MS = 5_000


class Guard:
    """The claims of one lane in this process. One event loop; `run` must be running.

    Every claim it grants stays alive until `settled`, `hand_over` or `release` is told of its record. When Redis may
    have lost data, `gate` is told, nothing is granted until it opens, and `reassert` claims again what is held.
    `current` says whether a record's assignment still stands; `strict_replays` is for main, whose records anyone may write.
    """

    def __init__(
        self,
        store: ClaimStore,
        committed: Committed,
        clock: Clock,
        *,
        incarnation: str,
        current: Callable[[Record], bool],
        gate: Gate,
        tell: Tell = lambda _name, _fields: None,
        on_outage: Literal["pause", "continue"] = "pause",
        strict_replays: bool = True,
        copy_wait_s: float = 5.0,
    ) -> None:
        self._store = store
        self._committed = committed
        self._clock = clock
        self._incarnation = incarnation
        self._current = current
        self._tell = tell
        self._strict = strict_replays
        self._held = Holdings(store, tell)
        self._waiters = Waiters(copy_wait_s)
        self._marks = Marks(store, tell)
        self._gate = gate
        self._outage = Outage(tell, on_outage, gate)
        self._synced_ms = 0

    @property
    def holding(self) -> int:
        """Claims held and kept alive."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """Records that wait for another claim of their request id."""
        return len(self._waiters)

    async def admit(self, jobs: Sequence[Job]) -> list[Admission]:
        """Claim a batch in one script call. Those that must wait are kept, and come through `run`'s emit.

        Redis away: waits for it, or goes on without claims, as `on_outage` says.
        """
        claims = [claim_of(job, self._incarnation, strict=self._strict) for job in jobs if job.request_id is not None]
        answers = await self._outage.claim(self._store, claims) if claims else []
        if answers is None:
            self._tell("unclaimed", {"count": len(claims)})
            return [Go(job, None) for job in jobs]
        admissions: list[Admission] = []
        pairs = iter(zip(claims, answers, strict=True))
        for job in jobs:
            if job.request_id is None:
                admissions.append(Go(job, None))
                continue
            claim, answer = next(pairs)
            if isinstance(answer, (Wait, Copy, Unreadable)):
                self._wait(job, claim, answer)
            else:
                admissions.append(self._judge(job, claim, answer))
        return admissions

    async def run(self, emit: Emit) -> None:
        """Tick until cancelled: waiters, renewals, marks that wait, the clock."""
        # apart, since a broker slow to tell its offsets must not let our claims lapse
        loops = [asyncio.create_task(self._every_tick(step, emit)) for step in (self._keep, self._attend)]
        try:
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for loop in done:
                loop.result()
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    async def tick(self, emit: Emit) -> None:
        """Do once what is due now. An unreachable Redis or Kafka is told, and all of it is tried again next time."""
        await self._keep(emit)
        await self._attend(emit)

    @staticmethod
    async def _every_tick(step: Callable[[Emit], Awaitable[None]], emit: Emit) -> None:
        while True:
            await step(emit)
            await asyncio.sleep(TICK_S)

    async def _keep(self, emit: Emit) -> None:
        """Keep the clock in step and claims alive, and write the marks that wait."""
        try:
            await self._sync()
            await self._held.renew(self._clock.now_ms())
            await self._held.let_lapse()
            await self._marks.flush()
        except StoreUnavailable as error:
            self._outage.begin(error)
            if self._outage.goes_on and (jobs := self._waiters.take_all()):
                self._tell("unclaimed", {"count": len(jobs)})
                emit([Go(job, None) for job in jobs])
        except StoreLost as error:
            self._gate.suspect(error)

    async def _attend(self, emit: Emit) -> None:
        """Ask again for those who wait."""
        if self._outage.away or not self._gate.is_open:
            return
        try:
            await self._ask_again(emit)
            await self._look()
        except StoreUnavailable as error:
            self._outage.begin(error)
        except StoreLost as error:
            self._gate.suspect(error)
        except KafkaUnavailable as error:
            self._tell("committed_unavailable", {"error": str(error)})

    async def close(self) -> None:
        """Write what is still to be written: hand-overs, marks, lapses. Tries until Redis takes it; the caller bounds the wait.

        What is never written, time or the offsets make good: a mark by the committed offset, a hand-over by another call.
        """
        async for attempt in until_taken():
            with attempt:
                try:
                    await self._marks.flush()
                    await self._held.let_lapse()
                except StoreLost as error:
                    self._gate.suspect(error)  # what is queued is claimed again under the new epoch, then written
                    raise

    async def reassert(self) -> None:
        """After Redis may have lost data: claim again what is held or queued. Raises StoreUnavailable or StoreLost."""
        now_ms = self._clock.now_ms()
        kept, lost = await self._held.reassert(now_ms)
        await self._marks.reassert(now_ms)  # last: what is settled meanwhile moves from the former to the latter
        self._tell("claims_reasserted", {"kept": kept, "lost": lost, "queued": len(self._marks)})

    def concluded(self, go: Go, outcome: Outcome) -> Settlement | None:
        """What is to be settled now; None for one whose claim another has since Redis lost its data: it waits, as a copy does."""
        place = place_of(go.job)
        answer = self._held.lost_to(place)
        if answer is None:
            return Settlement(go.job, outcome, go.token)
        claim = self._held.take(place)
        assert claim is not None, "it is held"
        self._waiters.put(go.job, claim, answer, self._clock.now_ms(), outcome)
        return None

    async def settled(self, settlements: Sequence[Settlement]) -> None:
        """Mark what a settle has committed. What Redis cannot take now is queued, in order."""
        for settlement in settlements:
            if (claim := self._ended(settlement)) is not None:
                self._marks.settled(claim, settlement)
        await self._flush()

    async def hand_over(self, settlements: Sequence[Settlement]) -> None:
        """Leave outcomes whose partitions are gone for the new owners. Only once they are known not to be committed."""
        for settlement in settlements:
            if (claim := self._ended(settlement)) is not None:
                self._marks.orphaned(claim, settlement)
        await self._flush()

    def release(self, jobs: Sequence[Job]) -> None:
        """Dropped before their start, or interrupted: their claims lapse, they are never removed."""
        for job in jobs:
            self._held.release(place_of(job))
            self._waiters.take(job)

    def _wait(self, job: Job, claim: Claim, answer: Wait | Copy | Unreadable) -> None:
        if isinstance(answer, Unreadable):
            self._tell("claim_unreadable", {"topic": claim.position.topic, "partition": claim.position.partition})
        self._waiters.put(job, claim, answer, self._clock.now_ms())

    def _ended(self, settlement: Settlement) -> Claim | None:
        """Stop keeping a record's claim alive; the claim, if it has one."""
        claim = self._held.take(place_of(settlement.job))
        if settlement.token is None:
            return None
        return claim or claim_of(settlement.job, self._incarnation, strict=self._strict)

    def _judge(
        self, job: Job, claim: Claim, answer: Granted | Answered | Taken | Conflict | UnknownReplay, outcome: Outcome | None = None
    ) -> Admission:
        """`outcome`: what it ended with before it lost its claim."""
        now_ms = self._clock.now_ms()
        match answer:
            case Granted():
                if answer.taken_over:
                    self._tell("claim_taken_over", {"topic": claim.position.topic, "partition": claim.position.partition})
                go = self._go(job, claim, now_ms)
                return go if outcome is None else Ready(job, str(claim.token), outcome)
            case Answered():
                go = self._go(job, claim, now_ms)
                try:
                    return Ready(job, str(claim.token), load_outcome(answer.payload))
                except UnreadableOutcome as error:
                    self._tell("answer_unreadable", {"error": str(error)})
                    return go
            case Taken() | Conflict() | UnknownReplay():
                return ended(job, answer, now_ms)

    def _go(self, job: Job, claim: Claim, now_ms: int) -> Go:
        self._held.put(place_of(job), claim, now_ms)
        return Go(job, str(claim.token))

    async def _ask_again(self, emit: Emit) -> None:
        """Claim again for those who wait; what is decided is emitted."""
        gone = [waiter.job for waiter in self._waiters.all() if not self._current(waiter.job.record)]
        if gone:
            for job in gone:
                self._waiters.take(job)
            self._tell("waiters_dropped", {"count": len(gone)})
            emit([Gone(job) for job in gone])
        waiters = self._waiters.all()
        answers = await self._store.claim([waiter.claim for waiter in waiters]) if waiters else []
        admissions: list[Admission] = []
        now_ms = self._clock.now_ms()
        for waiter, answer in zip(waiters, answers, strict=True):
            if waiter not in self._waiters:
                continue  # released meanwhile; a claim granted to it lapses
            if isinstance(answer, (Wait, Copy, Unreadable)):
                outcome = self._waiters.still(waiter, answer, now_ms)
                admission: Admission | None = None if outcome is None else Ends(waiter.job, outcome)
            else:
                admission = self._judge(waiter.job, waiter.claim, answer, waiter.outcome)
            if admission is not None:
                self._waiters.take(waiter.job)
                admissions.append(admission)
        if admissions:
            emit(admissions)

    async def _look(self) -> None:
        """Look whether the holders that copies wait for are settled; claims of records that are gone are voided."""
        due = self._waiters.to_look(self._clock.now_ms())
        seen = [waiter.copy for waiter in due if waiter.copy is not None]
        if not seen:
            return
        positions = list(dict.fromkeys(copy.position for copy in seen))
        resolved = dict(zip(positions, await self._committed.resolved(positions), strict=True))
        void = self._waiters.looked(due, seen, [resolved[copy.position] for copy in seen])
        if void and (count := (await self._store.void(void)).count(True)):
            self._tell("claims_voided", {"count": count})

    async def _sync(self) -> None:
        if self._outage.away:
            await self._store.probe()
            self._outage.end()
        if self._clock.now_ms() - self._synced_ms >= SYNC_MS:
            self._clock.sync(await self._store.time_ms())
            self._synced_ms = self._clock.now_ms()

    async def _flush(self) -> None:
        if self._outage.away:
            return  # `tick` finds out when it is back; a settle does not wait for that
        try:
            await self._marks.flush()
        except StoreUnavailable as error:
            self._outage.begin(error)
        except StoreLost as error:
            self._gate.suspect(error)  # the marks stay queued

"""The way of a record through a lane:

    source ─► decode ─► schedule ─► admit ─► call ─► outcome ─► settle
    (thread)                      (asyncio)                    (thread)

A lane is four values: its schedule, its decoder, its admission, and what concludes a job. The rest is the same for all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.admission import Admission, Ends, Go, Gone, Ready
from headrace.assignment import Assignment
from headrace.clock import Clock
from headrace.decode import Decoder
from headrace.ending import together
from headrace.envelope import Job, Record
from headrace.flow import Flow
from headrace.instrument import Tell
from headrace.outcome import Outcome, Settlement
from headrace.vitals import AtWork, Call, TopicPartition
from headrace.waiting import Waiting

ADMIT_BATCH = 500
GATE_S = 0.1
SHUT = "every target is shut"


class Admitting(Protocol):
    """Who may go on: claims and dedup for requests, everybody for dead letters."""

    async def admit(self, jobs: Sequence[Job]) -> list[Admission]: ...

    async def run(self, emit: Callable[[list[Admission]], None]) -> None: ...

    def concluded(self, go: Go, outcome: Outcome) -> Settlement | None: ...

    def release(self, jobs: Sequence[Job]) -> None: ...

    async def close(self) -> None: ...

    async def settled(self, settlements: Sequence[Settlement]) -> None: ...

    async def hand_over(self, settlements: Sequence[Settlement]) -> None: ...


class Settling(Protocol):
    """Where outcomes go."""

    def put(self, settlement: Settlement) -> None: ...

    @property
    def waiting(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Lane:
    """What makes a lane the one it is. `may_call` is false while nobody can be called, `why_not` says why; then nothing begins."""

    name: str
    schedule: Waiting
    decode: Decoder
    admission: Admitting
    conclude: Callable[[Job], Awaitable[Outcome]]
    may_call: Callable[[], bool]
    why_not: Callable[[], str] = lambda: SHUT


class Pipeline:
    """One lane at work. `deliver`, `settled` and `gone` are called from other threads; everything else is the loop's."""

    def __init__(
        self,
        lane: Lane,
        *,
        assignment: Assignment,
        flow: Flow,
        settler: Settling,
        clock: Clock,
        concurrency: int,
        unsettled: int,
        tell: Tell,
    ) -> None:
        self._lane = lane
        self._assignment = assignment
        self._flow = flow
        self._settler = settler
        self._clock = clock
        self._concurrency = concurrency
        self._unsettled = unsettled
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Queue[Go] = asyncio.Queue()
        self._ready_most = max(concurrency, ADMIT_BATCH)
        self._arrived = asyncio.Event()
        self._undecoded: asyncio.Future[None] = self._loop.create_future()
        self._room = asyncio.Event()
        self._settled = asyncio.Event()
        self._idle = asyncio.Event()
        self._gate: asyncio.Task[None] | None = None
        self._closing = False
        self._calls: dict[int, tuple[Record, float]] = {}

    @property
    def in_flight(self) -> int:
        """How many jobs are called, or concluded without a call."""
        return len(self._calls)

    def at_work(self) -> AtWork:
        """What the loop is at, for the watchdog."""
        calls: dict[TopicPartition, Call] = {}
        for record, began_at in self._calls.values():  # the longest first
            calls.setdefault((record.topic, record.partition), Call(record.offset, began_at))
        due_ms = self._lane.schedule.next_due_ms()
        late_ms = None if due_ms is None else self._clock.now_ms() - due_ms
        return AtWork(calls, len(self._calls), self._concurrency, len(self._lane.schedule) + self._ready.qsize(), late_ms)

    async def run(self) -> None:
        """Works until cancelled: jobs are admitted in batches, and as many called at once as the concurrency allows."""
        name = self._lane.name
        callers = {f"{name}-call-{number}": self._call() for number in range(self._concurrency)}
        guard = self._lane.admission.run(self._admitted)
        await together({f"{name}-decode": self._until_undecoded(), f"{name}-admit": self._admit(), f"{name}-guard": guard} | callers)

    def deliver(self, records: list[Record]) -> None:
        """source ─► decode ─► schedule. On the source thread; the work is the loop's."""
        self._loop.call_soon_threadsafe(self._decode, records)

    def _decode(self, records: list[Record]) -> None:
        now_ms = self._clock.now_ms()
        try:
            for moved in self._lane.schedule.add(map(self._lane.decode, records), now_ms):
                self._settler.put(moved)
        except Exception as error:  # noqa: BLE001  ends the lane: the loop would only log it, and these records would stay open for ever
            if not self._undecoded.done():
                self._undecoded.set_exception(error)
        self._arrived.set()

    async def _until_undecoded(self) -> None:
        """Raises what broke the decoder, which has an outcome for any bytes: a fault of ours."""
        await asyncio.shield(self._undecoded)

    async def _admit(self) -> None:
        """schedule ─► admit, a batch at a time, and no further ahead than the calls can follow."""
        while True:
            jobs = self._lane.schedule.take(ADMIT_BATCH, self._clock.now_ms()) if not self._closing else []
            if not jobs:
                await self._until_due()
                continue
            self._admitted(await self._lane.admission.admit(self._still_ours(jobs)))
            while self._ready.qsize() >= self._ready_most:
                self._room.clear()
                await self._room.wait()

    async def _until_due(self) -> None:
        self._arrived.clear()
        due_ms = self._lane.schedule.next_due_ms()
        if due_ms is None or self._closing:
            await self._arrived.wait()
            return
        timer = self._loop.call_later(max(0.0, (due_ms - self._clock.now_ms()) / 1000), self._arrived.set)
        try:
            await self._arrived.wait()
        finally:
            timer.cancel()

    def _admitted(self, admissions: list[Admission]) -> None:
        """Those to be called wait for a caller; those that ended at admission are settled."""
        for admission in admissions:
            match admission:
                case Go() if self._assignment.is_current(admission.job.record):
                    self._ready.put_nowait(admission)
                case Go():  # its partition went while it was admitted
                    self._drop([admission.job])
                case Ready() | Ends():
                    self._settler.put(Settlement(admission.job, admission.outcome, admission.token))
                case Gone():
                    self._drop([admission.job])

    async def _call(self) -> None:
        """admit ─► call ─► outcome ─► settle, one job after another."""
        task = asyncio.current_task()
        assert task is not None, "it runs in one"
        while not task.cancelling():  # a handler may have swallowed that
            await self._until_allowed()
            go = await self._ready.get()
            if self._ready.qsize() <= self._ready_most // 2:
                self._room.set()
            if self._closing or not self._assignment.is_current(go.job.record):
                self._drop([go.job])
                continue
            if not self._lane.may_call() or self._settler.waiting >= self._unsettled:  # since it was looked at, before the wait
                self._ready.put_nowait(go)
                continue
            await self._conclude(go)

    async def _conclude(self, go: Go) -> None:
        self._calls[id(go)] = go.job.record, time.monotonic()
        self._idle.clear()
        try:
            outcome = await self._lane.conclude(go.job)
            settlement = self._lane.admission.concluded(go, outcome)
            if settlement is not None:
                self._settler.put(settlement)
        except asyncio.CancelledError:
            self._drop([go.job])
            raise
        finally:
            del self._calls[id(go)]
            if not self._calls:
                self._idle.set()

    async def _until_allowed(self) -> None:
        """Nothing begins while nobody can be called, or while too many outcomes wait for a settle."""
        while self._settler.waiting >= self._unsettled:
            self._settled.clear()
            await self._settled.wait()
        if not self._lane.may_call() and not self._closing:
            if self._gate is None or self._gate.done():
                self._gate = self._loop.create_task(self._until_open())
            await asyncio.shield(self._gate)

    async def _until_open(self) -> None:
        """One watcher for all callers: a pause ends by the clock, or by a probe's success."""
        reason = self._lane.why_not()
        self._tell("lane_paused", {"group": self._lane.name, "reason": reason})
        while not self._lane.may_call() and not self._closing:  # noqa: ASYNC110  a pause ends by time, which sets no event
            await asyncio.sleep(GATE_S)
        if not self._closing:
            self._tell("lane_resumed", {"group": self._lane.name, "reason": reason})

    def _still_ours(self, jobs: list[Job]) -> list[Job]:
        ours = [job for job in jobs if self._assignment.is_current(job.record)]
        if len(ours) < len(jobs):
            self._drop([job for job in jobs if not self._assignment.is_current(job.record)])
        return ours

    def _drop(self, jobs: list[Job]) -> None:
        """Not begun, or interrupted: nothing is settled, the claim lapses, and whoever owns the partition reads it again."""
        if not jobs:
            return
        self._lane.admission.release(jobs)
        self._give_back(job.record for job in jobs)
        self._tell("interrupted", {"lane": self._lane.name, "records": len(jobs)})

    def ownership_changed(self) -> None:
        """Partitions go: what has not begun of them is dropped now, not when a caller happens to be free. From any thread."""
        self._loop.call_soon_threadsafe(self._purge, lambda job: not self._assignment.is_current(job.record))

    def _purge(self, unwanted: Callable[[Job], bool]) -> None:
        dropped = self._lane.schedule.drop(unwanted)
        for _ in range(self._ready.qsize()):
            go = self._ready.get_nowait()
            if unwanted(go.job):
                dropped.append(go.job)
            else:
                self._ready.put_nowait(go)
        self._drop(dropped)
        self._room.set()

    def left(self, settlements: Sequence[Settlement]) -> None:
        """Settled or handed over: they have left the lane. From any thread."""
        self._give_back(s.job.record for s in settlements)
        self._loop.call_soon_threadsafe(self._settled.set)

    def _give_back(self, records: Iterable[Record]) -> None:
        sizes = [len(r.value or b"") + len(r.key or b"") for r in records]
        self._flow.give_back(len(sizes), sum(sizes))

    async def close(self, grace_s: float) -> bool:
        """Begin nothing more; wait at most `grace_s` for calls in flight. Whether all of them ended."""
        self._closing = True
        self._arrived.set()
        self._purge(lambda _job: True)
        if not self.in_flight:
            return True
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

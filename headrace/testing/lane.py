"""One lane of a worker in memory: the real pipeline and guard, fed from a list, settled at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from headrace.admission import Admission
from headrace.assignment import Assignment
from headrace.attempt import Attempts
from headrace.decode import decode_main, decode_retry
from headrace.envelope import Job, Record
from headrace.errors import StoreLost
from headrace.flow import Flow
from headrace.guard import Guard
from headrace.outcome import Settlement
from headrace.pauses import Pauses
from headrace.pipeline import Lane, Pipeline
from headrace.store.memory import MemoryStore
from headrace.testing.world import World
from headrace.waiting import ByDueTime, InOrder

TICK_S = 0.2
CONCURRENCY = 8
NO_END = 1 << 50


class _Open:
    """A Redis that never loses anything."""

    is_open = True

    async def until_open(self) -> None: ...

    def suspect(self, error: StoreLost) -> None:
        raise error


class _Admission(Guard):
    """The real one, that ticks only while somebody waits: claims need no renewal where nobody freezes."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._asked = asyncio.Event()

    async def admit(self, jobs: Sequence[Job]) -> list[Admission]:
        admissions = await super().admit(jobs)
        self._asked.set()
        return admissions

    async def run(self, emit: Callable[[list[Admission]], None]) -> None:
        while True:
            await self._asked.wait()
            while self.waiting:
                await asyncio.sleep(TICK_S)
                await self.tick(emit)
            self._asked.clear()


class MemoryLane:
    """`main` or `retry`. `settle` is given every settlement."""

    def __init__(
        self,
        name: str,
        world: World,
        store: MemoryStore,
        attempts: Attempts,
        pauses: Pauses,
        settle: Callable[[Settlement], None],
        *,
        incarnation: str,
    ) -> None:
        self._settle = settle
        self._loop = asyncio.get_running_loop()
        self._marks: set[asyncio.Task[None]] = set()
        assignment = Assignment()
        topic: str = getattr(world.settings.topics, name)
        self._epoch = assignment.assigned([(topic, 0)], None)[topic, 0]
        self._admission = _Admission(
            store, world.topics, world.clock, incarnation=incarnation, current=assignment.is_current, gate=_Open(),
            tell=world.tell, strict_replays=name == "main",
        )  # fmt: skip
        longest_ms = int(world.settings.limits.longest_delay_s * 1000)
        schedule, decode = (InOrder(), decode_main) if name == "main" else (ByDueTime(NO_END, longest_ms, 1), decode_retry)
        self._flow = Flow(NO_END, NO_END)
        self._pipeline = Pipeline(
            Lane(name, schedule, decode, self._admission, attempts, lambda: not pauses.all_shut(world.clock.now_ms())),
            assignment=assignment, flow=self._flow, settler=self, clock=world.clock, concurrency=CONCURRENCY, unsettled=NO_END, tell=world.tell,
        )  # fmt: skip

    async def run(self) -> None:
        """Until cancelled."""
        await self._pipeline.run()

    def read(self, record: Record) -> None:
        """From the topic."""
        self._flow.take(1, len(record.value or b"") + len(record.key or b""))
        self._pipeline.deliver([record._replace(epoch=self._epoch)])

    @property
    def waiting(self) -> int:
        """Nothing waits for a settle here."""
        return 0

    def put(self, settlement: Settlement) -> None:
        """From the pipeline."""
        self._loop.call_soon(self._put, settlement)

    def _put(self, settlement: Settlement) -> None:
        self._settle(settlement)
        self._pipeline.left([settlement])
        task = self._loop.create_task(self._admission.settled([settlement]))
        self._marks.add(task)
        task.add_done_callback(self._marks.discard)

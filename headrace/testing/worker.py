"""One life of a worker in memory: the real decoders, claims, attempts and outcomes of both lanes; only Kafka and threads are left out."""

from __future__ import annotations

import asyncio
from functools import partial

from headrace.attempt import Attempts
from headrace.context import Contexts
from headrace.ending import together
from headrace.envelope import Record
from headrace.guard.waiters import claim_of
from headrace.llm import Llm
from headrace.outcome import Settlement
from headrace.outputs import Outputs
from headrace.pauses import Pauses
from headrace.store.memory import MemoryStore
from headrace.testing.crashes import CrashingSteps
from headrace.testing.lane import MemoryLane
from headrace.testing.world import World

POOL = 64
LAST_S = 0.001  # marks are written a moment after their settle


class MemoryWorker:
    """Built inside its loop. `incarnation` tells it from its predecessors."""

    def __init__(self, world: World, incarnation: str) -> None:
        self._world = world
        self._incarnation = incarnation
        settings = world.settings
        self._store = MemoryStore(world.server.now_ms, server=world.server)
        self._llm = Llm(settings.providers, pool=POOL, now_ms=world.clock.now_ms, transport=world.transport, models=settings.models)
        self._pauses = Pauses(settings.pause, self._llm.targets, tell=world.tell)
        self._outputs = Outputs(settings.topics, {}, settings.duplicate_notices)
        self._lanes = {getattr(settings.topics, name): self._lane(name) for name in ("main", "retry")}
        self._idle = asyncio.Event()

    async def run(self) -> None:
        """Works until nothing is unresolved."""
        await self._store.epochs.enter()
        await self._store.epochs.lease(self._incarnation)
        await self._store.epochs.reopen(self._incarnation)
        self._world.topics.arrived = self._arrived
        for record in self._world.topics.unresolved():
            self._arrived(record)
        lanes = {f"{name}-lane": lane.run() for name, lane in self._lanes.items()}
        await together({"idle": self._until_idle()} | lanes)

    async def _until_idle(self) -> None:
        await self._idle.wait()

    def _arrived(self, record: Record) -> None:
        lane = self._lanes.get(record.topic)
        if lane is not None:
            lane.read(record)

    def _settle(self, settlement: Settlement) -> None:
        world = self._world
        if world.crashes.strikes("settle", str(settlement.job.request_id)):
            return
        for output in self._outputs.of(settlement):
            world.topics.write(output)
        world.topics.resolve(settlement.position)
        world.settled(settlement.job, settlement.outcome)
        if not world.topics.unresolved():
            asyncio.get_running_loop().call_later(LAST_S, self._idle.set)

    def _lane(self, name: str) -> MemoryLane:
        world = self._world
        claim = partial(claim_of, incarnation=self._incarnation, strict=name == "main")
        steps = CrashingSteps(self._store.steps, world.crashes)
        contexts = Contexts(world.clock, steps, claim, monotonic=asyncio.get_running_loop().time)
        attempts = Attempts(
            world.settings, world.handler, self._llm, self._pauses, world.clock, tell=world.tell, rng=world.rng, contexts=contexts
        )
        return MemoryLane(name, world, self._store, attempts, self._pauses, self._settle, incarnation=self._incarnation)

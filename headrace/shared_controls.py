"""The operators' orders as the fleet shares them: read from Redis twice a second, restored where it lost them, asked before a call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.clock import Clock
from headrace.controls import Controls, Entry
from headrace.envelope import Job
from headrace.errors import ErrorClass, Failure, StoreLost, StoreUnavailable
from headrace.instrument import Tell
from headrace.store.orders import OrderStore

EVERY_S = 0.5
LOOKUP = 500


@dataclass(frozen=True, slots=True)
class Cancelled:
    """An operator wants it ended, without a call."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Paused:
    """An operator paused what it is; it looks again at `until_ms`."""

    until_ms: int


class Judging(Protocol):
    """What an attempt asks before it begins. `active` is False while there is no order at all."""

    @property
    def active(self) -> bool: ...

    async def judge(self, job: Job) -> Cancelled | Paused | None: ...

    def spaced(self, until_ms: int) -> int: ...


class SharedControls:
    """One in a process. While Redis is away what was known stays in force; a pause that has an end ends."""

    def __init__(self, controls: Controls, store: OrderStore, clock: Clock, *, default_model: str, tell: Tell) -> None:
        self.controls = controls
        self._store = store
        self._clock = clock
        self._default_model = default_model
        self._tell = tell
        self._version = 0
        self._seen_ms = 0
        self._asked: set[str] = set()
        self._looking: asyncio.Task[Mapping[str, str | None]] | None = None
        self._told: str | None = None

    @property
    def active(self) -> bool:
        """Whether any order stands."""
        return self.controls.active

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.refresh()

    async def refresh(self) -> None:
        """As `exchange`; while Redis cannot be asked, what is known stays, and that is told once."""
        try:
            await self.exchange()
        except (StoreUnavailable, StoreLost) as error:
            if self._told != str(error):
                self._told = str(error)
                self._tell("controls_not_read", {"error": str(error), "note": "the orders known so far stay in force"})
        else:
            self._told = None
        self.controls.expire(self._clock.now_ms())

    async def exchange(self) -> None:
        """Once: read what changed, or restore what is no longer there. Raises StoreUnavailable or StoreLost."""
        now_ms = self._clock.now_ms()
        version = await self._store.version()
        if version < self._version:
            version = await self._restored(version)
        if version != self._version:
            self.controls.replace(await self._store.entries(), now_ms)
        self._version, self._seen_ms = version, now_ms

    async def _restored(self, version: int) -> int:
        """Redis lost its data. Of cancelled ids only the command is known here; the ids themselves are gone, and it says so."""
        entries = [replace(entry, left=0) for entry in self.controls.rules.entries.values()]
        if await self._store.restore(self._version, self._seen_ms, entries):
            ids = sum(entry.left for entry in self.controls.rules.entries.values())
            lost = {"cancelled_ids_lost": ids, "remedy": "cancel them again"} if ids else {}
            self._tell("controls_restored", {"orders": len(entries), "known": self._version, "found": version, **lost})
        return await self._store.version()

    async def judge(self, job: Job) -> Cancelled | Paused | None:
        """What the operators want of a request that is about to be called; a cancellation comes before a pause."""
        if job.request is None:
            return None
        now_ms = self._clock.now_ms()
        order = self.controls.cancelled(job, self._default_model, now_ms)
        if order is None and self.controls.rules.any_ids(now_ms):
            name = await self._order_of(job.request.request_id)
            order = None if name is None else self.controls.rules.ids(name)  # without its order it was taken back
        if order is not None:
            return Cancelled(_failure(order))
        until_ms = self.controls.paused_ms(job.request, now_ms)
        return None if until_ms is None else Paused(until_ms)

    def spaced(self, until_ms: int) -> int:
        """When a request whose targets are shut comes back: in its turn, while operators hold any back."""
        return self.controls.spaced(until_ms)

    async def _order_of(self, request_id: str) -> str | None:
        """The order that cancels an id. All who ask in one turn of the loop share a round trip."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_up(), name="cancelled-ids")
        self._asked.add(request_id)
        orders = await asyncio.shield(self._looking)  # one that is interrupted takes no answer from the others
        return orders[request_id]

    async def _look_up(self) -> Mapping[str, str | None]:
        asked, self._asked, self._looking = list(self._asked), set(), None
        orders: dict[str, str | None] = {}
        for at in range(0, len(asked), LOOKUP):
            part = asked[at : at + LOOKUP]
            orders.update(zip(part, await self._found(part), strict=True))
        return orders

    async def _found(self, request_ids: Sequence[str]) -> Sequence[str | None]:
        """Without Redis nobody knows; then a request goes on, as it does while there is no order."""
        try:
            return await self._store.cancelled(request_ids)
        except (StoreUnavailable, StoreLost) as error:
            self._tell("cancellations_unknown", {"requests": len(request_ids), "error": str(error)})
            return [None] * len(request_ids)


class Uncontrolled:
    """Nobody orders anything."""

    active = False

    async def judge(self, job: Job) -> Cancelled | Paused | None:
        """Nothing stands in its way."""
        return None

    def spaced(self, until_ms: int) -> int:
        """Unchanged."""
        return until_ms


def _failure(order: Entry) -> Failure:
    """What the dead letter says: who and why."""
    return Failure(ErrorClass.CANCELLED, f"cancelled by {order.who}: {order.why}", code="operator")

"""Orders as a fleet of workers shares them, over a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from headrace.controls import Controls, Entry, Scope
from headrace.envelope import Job, Record, Request, Trail
from headrace.errors import ErrorClass
from headrace.shared_controls import Cancelled, Paused, SharedControls
from headrace.store.memory import MemoryServer, MemoryStore
from tests.support.clock import HandClock

NOW = 1_800_000_000_000


class Fleet:
    """One server, two workers, and an operator."""

    def __init__(self) -> None:
        self.clock = HandClock(NOW)
        self.server = MemoryServer(self.clock.now_ms)
        self.store = MemoryStore(self.clock.now_ms, server=self.server)
        self.told: list[tuple[str, Mapping[str, Any]]] = []
        self.workers = [self.worker(), self.worker()]
        self.asked: list[int] = []
        self.break_next = False

    def worker(self) -> SharedControls:
        return SharedControls(Controls(tell=self._tell), self._counting(), self.clock, default_model="m", tell=self._tell)

    def _tell(self, name: str, fields: Mapping[str, Any]) -> None:
        self.told.append((name, fields))

    def _counting(self) -> Any:
        orders = MemoryStore(self.clock.now_ms, server=self.server).orders
        plain = orders.cancelled

        async def cancelled(request_ids: Sequence[str]) -> list[str | None]:
            self.asked.append(len(request_ids))
            if self.break_next:
                self.break_next = False
                raise RuntimeError("broken")
            return await plain(request_ids)

        orders.cancelled = cancelled  # type: ignore[method-assign]
        return orders

    async def exchange(self) -> None:
        for worker in self.workers:
            await worker.refresh()

    async def pause(self, **scope: str) -> Entry:
        entry = Entry("pause", Scope(**scope), "ada", "why", self.clock.now_ms())
        assert await self.store.orders.put(entry)
        return entry

    async def cancel(self, *ids: str, name: str = "n") -> None:
        entry = Entry("ids", Scope(), "ada", "why", self.clock.now_ms(), self.clock.now_ms() + 10_000, name=name)
        assert await self.store.orders.put(entry)
        await self.store.orders.cancel(ids, name, 10_000)


def a_job(request_id: str = "r", *, topic: str = "main", offset: int = 5, agent: str = "a") -> Job:
    record = Record(topic, 0, offset, 1, None, b"{}", [], NOW)
    return Job(record, Trail(record.position), request_id, "f", Request(request_id=request_id, agent_id=agent, body={}))


async def test_an_order_reaches_every_worker_and_its_end_as_well() -> None:
    """After one exchange each; nothing is read again while nothing changes."""
    fleet = Fleet()
    entry = await fleet.pause(agent="a")
    await fleet.exchange()
    for worker in fleet.workers:
        assert isinstance(await worker.judge(a_job()), Paused)
    assert await fleet.workers[0].judge(a_job(agent="b")) is None
    await fleet.store.orders.drop([entry.key])
    await fleet.exchange()
    assert not any(worker.active for worker in fleet.workers)


async def test_cancelled_comes_before_paused() -> None:
    """What is both ends; what is merely paused waits."""
    fleet = Fleet()
    await fleet.pause(agent="a")
    await fleet.cancel("r")
    await fleet.exchange()
    judged = await fleet.workers[0].judge(a_job())
    assert isinstance(judged, Cancelled)
    assert (judged.failure.error_class, judged.failure.message) == (ErrorClass.CANCELLED, "cancelled by ada: why")
    assert isinstance(await fleet.workers[0].judge(a_job("other")), Paused)


async def test_a_cancellation_follows_a_request_through_its_hops() -> None:
    """By where it began: its later records stand behind the order's offsets, and those of a later request before them."""
    fleet = Fleet()
    before = {"main/0": 6, "retry/0": 3}
    await fleet.store.orders.put(Entry("cancel", Scope(agent="a"), "ada", "why", NOW, NOW + 10_000, before))
    await fleet.exchange()
    moved = a_job(topic="retry", offset=900)
    assert isinstance(await fleet.workers[0].judge(moved._replace(trail=Trail(a_job().record.position, hop=3))), Cancelled)
    assert await fleet.workers[0].judge(moved._replace(trail=Trail(a_job(offset=6).record.position, hop=3))) is None
    assert await fleet.workers[0].judge(moved) is None, "one that somebody put into retry later"


async def test_those_who_ask_at_once_share_a_round_trip_and_without_orders_there_is_none() -> None:
    """Fifty callers, one question; a pause alone asks nothing."""
    fleet = Fleet()
    await fleet.pause(agent="a")
    await fleet.exchange()
    await fleet.workers[0].judge(a_job())
    assert fleet.asked == []
    await fleet.cancel("r7")
    await fleet.exchange()
    judged = await asyncio.gather(*(fleet.workers[0].judge(a_job(f"r{n}", agent="b")) for n in range(50)))
    assert fleet.asked == [50]
    assert [n for n, one in enumerate(judged) if one is not None] == [7]


async def test_a_caller_that_is_interrupted_harms_no_other() -> None:
    """Two ask for one id, one is cancelled meanwhile: the other has its answer."""
    fleet = Fleet()
    await fleet.cancel("r")
    await fleet.exchange()
    first, second = (asyncio.create_task(fleet.workers[0].judge(a_job())) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert isinstance(await second, Cancelled)
    assert first.cancelled() or first.cancelling()


async def test_a_look_up_that_breaks_is_heard_by_all_who_asked() -> None:
    """Whatever it is: nobody waits for ever for an answer that does not come, and the next look is a new one."""
    fleet = Fleet()
    worker = fleet.workers[0]
    await fleet.cancel("r")
    await fleet.exchange()
    fleet.break_next = True
    async with asyncio.timeout(20):
        both = await asyncio.gather(worker.judge(a_job()), worker.judge(a_job("other")), return_exceptions=True)
        assert [type(one) for one in both] == [RuntimeError, RuntimeError]
        assert isinstance(await worker.judge(a_job()), Cancelled)


async def test_without_redis_the_orders_known_stay_in_force() -> None:
    """A pause goes on; of cancelled ids nobody knows, and a request goes on; both are told, and told once."""
    fleet = Fleet()
    await fleet.pause(agent="a")
    await fleet.cancel("r")
    await fleet.exchange()
    fleet.server.away = True
    await fleet.exchange()
    await fleet.exchange()
    assert isinstance(await fleet.workers[0].judge(a_job("other")), Paused)
    assert await fleet.workers[0].judge(a_job(agent="b")) is None
    names = [name for name, _ in fleet.told]
    assert names.count("controls_not_read") == 2
    assert names.count("cancellations_unknown") == 2


@pytest.mark.parametrize("how", ["flushed", "rolled back"])
async def test_a_loss_takes_no_pause_away_and_brings_none_back(how: str) -> None:
    """What stood stands again for the fleet and for who comes later; what was resumed stays so; what was ordered since the loss is kept."""
    fleet = Fleet()
    resumed = await fleet.pause(agent="early")
    await fleet.exchange()
    saved = fleet.server.snapshot()
    fleet.clock.at_ms += 1_000
    await fleet.store.orders.drop([resumed.key])
    await fleet.pause(agent="a")
    await fleet.cancel("r")
    await fleet.exchange()
    fleet.clock.at_ms += 1_000
    if how == "flushed":
        fleet.server.flush()
    else:
        fleet.server.roll_back(saved)
    await fleet.pause(agent="since")
    await fleet.exchange()
    await fleet.exchange()
    late = fleet.worker()
    await late.exchange()
    for worker in (*fleet.workers, late):
        found = {entry.scope.agent for entry in worker.controls.rules.entries.values() if entry.kind == "pause"}
        assert found == {"a", "since"}
    restored = [fields for name, fields in fleet.told if name == "controls_restored"]
    assert [fields["cancelled_ids_lost"] for fields in restored] == [1]
    assert not late.controls.rules.any_ids(NOW + 2_000)


async def test_a_loss_is_seen_also_where_as_much_was_ordered_since() -> None:
    """One order was known, and one was given between the loss and the next look: both stand, on every worker."""
    fleet = Fleet()
    await fleet.pause(agent="a")
    await fleet.exchange()
    fleet.clock.at_ms += 1_000
    fleet.server.flush()
    await fleet.pause(agent="since")
    await fleet.exchange()
    await fleet.exchange()
    for worker in fleet.workers:
        assert {entry.scope.agent for entry in worker.controls.rules.entries.values()} == {"a", "since"}

"""Recovery over a store in memory: who restores, what opens admission and when, what a second loss in the middle does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.claims import Claim, DoneMark, Granted, Taken, Token
from headrace.envelope import Position
from headrace.errors import ConfigError, KafkaUnavailable, StoreLost, StoreUnavailable
from headrace.recovery import Recovery, Step
from headrace.store.memory import MemoryServer, MemoryStore

HERE = Position("main", 0, 1)
DONE = [DoneMark(f"id{n}", Position("main", 0, n), "f", 1_790_000_000_000) for n in range(3)]


class FakeResults:
    """What was completed, a mark a step; may fail once, and may count for nothing at all."""

    def __init__(self) -> None:
        self.marks: list[DoneMark] = list(DONE)
        self.asked: list[int] = []
        self.read = self.asked_later = 0
        self.fails = False
        self.fresh = False

    def untouched(self) -> bool:
        return self.fresh

    def completed(self, since_ms: int) -> Iterator[Step]:
        self.asked.append(since_ms)
        for number, mark in enumerate(self.marks):
            if self.fails and number:
                self.fails = False
                raise KafkaUnavailable("the broker went away")
            yield Step([mark], number + 1, len(self.marks))
        self.read = len(self.marks)

    def later(self) -> Iterator[Step]:
        self.asked_later += 1
        yield Step(self.marks[self.read :], 0, 0)


class FakeHolder:
    """Counts how often it was asked; `away` lets it fail."""

    def __init__(self) -> None:
        self.asked = 0
        self.away = False

    async def reassert(self) -> None:
        if self.away:
            raise StoreUnavailable("away")
        self.asked += 1


class Bench:
    """A server with a hand clock, and workers over it."""

    def __init__(self) -> None:
        self.now = 1_790_000_000_000
        self.server = MemoryServer(lambda: self.now)
        self.results = FakeResults()
        self.told: list[tuple[str, dict[str, Any]]] = []

    def worker(self, name: str) -> tuple[MemoryStore, Recovery, FakeHolder]:
        store = MemoryStore(lambda: self.now, server=self.server)
        recovery = Recovery(store, self.results, incarnation=name, tell=lambda event, fields: self.told.append((event, dict(fields))))
        holder = FakeHolder()
        recovery.join(holder)
        return store, recovery, holder

    def names(self) -> list[str]:
        return [name for name, _ in self.told]


def a_claim(request_id: str) -> Claim:
    return Claim(request_id, HERE, HERE, 0, Token("one", 1), "f")


async def test_a_first_start_waits_for_nobody() -> None:
    """Nothing was ever settled: admission is open at once, and nobody is told of a loss."""
    bench = Bench()
    bench.results.fresh = True
    store, recovery, _ = bench.worker("one")
    await recovery.enter()
    assert not recovery.is_open
    await recovery.tick()
    assert recovery.is_open
    assert bench.names() == ["admission_open"]
    assert await store.claim([a_claim("id0")]) == [Granted()]


async def test_results_without_an_epoch_are_restored_before_anything_is_granted() -> None:
    """A worker that starts on an emptied Redis: marks first, and at least 15 s for the claims of others, then admission."""
    bench = Bench()
    store, recovery, holder = bench.worker("one")
    await recovery.enter()
    await recovery.tick()
    assert bench.results.asked == [0]
    assert not recovery.is_open
    bench.now += 14_000
    await recovery.tick()
    assert not recovery.is_open
    bench.now += 1_000
    await recovery.tick()
    assert recovery.is_open
    assert holder.asked == 1
    assert (bench.results.asked, bench.results.asked_later) == ([0], 1), "read whole once, and what came later before it opens"
    assert await store.claim([a_claim("id2")]) == [Taken("completed", 1_790_000_000_000)]
    assert bench.names() == ["store_lost", *["restoring", "restored"] * 2, "admission_open"]


async def settled_down(bench: Bench, *recoveries: Recovery) -> None:
    """Until all are open, and have beaten."""
    for recovery in recoveries:
        await recovery.enter()
    for _ in range(2):
        bench.now += 15_000
        for recovery in recoveries:
            await recovery.tick()
    assert all(recovery.is_open for recovery in recoveries)
    bench.told.clear()
    bench.results.asked.clear()


@pytest.mark.parametrize("way", ["flush", "lose", "roll_back"])
async def test_each_way_to_lose_data_is_noticed_by_both_and_restored_by_one(way: str) -> None:
    """Emptied alive, restarted empty, restarted from an old file: both claim again what they hold, one restores, both open."""
    bench = Bench()
    (store, one, holder), (_, two, other) = bench.worker("one"), bench.worker("two")
    await settled_down(bench, one, two)
    saved = bench.server.snapshot()
    for _ in range(90):
        bench.now += 1_000
        await one.tick()
    last_beat = bench.now
    if way == "roll_back":
        bench.server.roll_back(saved)
        last_beat -= 90_000
    else:
        getattr(bench.server, way)()
    holder.asked = other.asked = 0
    for recovery in (one, two):
        with pytest.raises(StoreLost) as lost:
            await recovery.tick()
        recovery.suspect(lost.value)
        assert not recovery.is_open
        await recovery.tick()
    assert (holder.asked, other.asked) == (1, 1)
    assert bench.names().count("store_lost") == 1
    assert bench.results.asked == [last_beat - 60_000 if way == "roll_back" else 0]
    for _ in range(2):
        bench.now += 15_000
        await one.tick()
        await two.tick()
    assert one.is_open
    assert two.is_open
    assert await store.claim([a_claim("id1")]) == [Taken("completed", 1_790_000_000_000)]


async def test_what_is_settled_while_it_is_closed_is_restored_before_it_opens() -> None:
    """A worker that has not claimed again settles after the first reading, and dies: the second reading finds its result."""
    bench = Bench()
    store, one, _ = bench.worker("one")
    await one.enter()
    await one.tick()
    bench.results.marks.append(DoneMark("late", HERE, "f", bench.now))
    bench.now += 15_000
    await one.tick()
    assert one.is_open
    held = store.held("late")
    assert held is not None
    assert held.state == "done"


async def test_a_refusal_that_was_no_loss_opens_again_at_once() -> None:
    """Suspected for nothing (a stale answer): the epoch stands, nothing is restored, nobody claims again."""
    bench = Bench()
    _, one, holder = bench.worker("one")
    await settled_down(bench, one)
    holder.asked = 0
    one.suspect(StoreLost("a stale answer"))
    assert not one.is_open
    await one.tick()
    assert one.is_open
    assert holder.asked == 0
    assert bench.results.asked == []


async def test_a_broker_that_goes_away_in_the_middle_is_read_from_again() -> None:
    """Reading the results fails half way: admission stays closed, and the next round restores everything."""
    bench = Bench()
    store, one, _ = bench.worker("one")
    bench.results.fails = True
    await one.enter()
    with pytest.raises(KafkaUnavailable):
        await one.tick()
    assert not one.is_open
    bench.now += 15_000
    await one.tick()
    assert one.is_open
    assert bench.results.asked[:2] == [0, 0]
    assert [(held := store.held(mark.request_id)) and held.state for mark in DONE] == ["done"] * 3


async def test_the_next_takes_over_from_one_that_died_while_restoring() -> None:
    """Its lease runs out after 10 s; the other restores from the beginning."""
    bench = Bench()
    (_, one, _), (_, two, _) = bench.worker("one"), bench.worker("two")
    bench.results.fails = True
    await one.enter()
    await two.enter()
    with pytest.raises(KafkaUnavailable):
        await one.tick()  # and is heard of no more
    await two.tick()
    assert bench.results.asked == [0]
    bench.now += 15_000
    await two.tick()
    assert bench.results.asked[:2] == [0, 0]
    assert two.is_open


async def test_a_second_loss_while_restoring_starts_again() -> None:
    """Lost again before admission opened: a newer epoch, claims claimed again, marks restored again."""
    bench = Bench()
    store, one, holder = bench.worker("one")
    await settled_down(bench, one)
    holder.asked = 0
    for times in (1, 2):
        bench.server.lose()
        with pytest.raises(StoreLost) as lost:
            await one.tick()
        one.suspect(lost.value)
        await one.tick()
        assert holder.asked == times
        assert not one.is_open
    bench.now += 15_000
    await one.tick()
    assert one.is_open
    assert store.held("id0") is not None


async def test_claims_that_could_not_be_claimed_again_keep_admission_closed_here() -> None:
    """Redis goes away between the new epoch and our claims: nothing is granted by this worker until they are there."""
    bench = Bench()
    _, one, holder = bench.worker("one")
    await settled_down(bench, one)
    bench.server.lose()
    holder.away = True
    with pytest.raises(StoreLost) as lost:
        await one.tick()
    one.suspect(lost.value)
    bench.now += 60_000
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await one.tick()
        assert not one.is_open
    holder.away = False
    await one.tick()
    bench.now += 15_000
    await one.tick()
    assert one.is_open


async def test_a_server_that_may_evict_is_not_taken_back() -> None:
    """Redis comes back with an eviction policy: admission stays closed, with the remedy, until it is set right."""
    bench = Bench()
    store, one, _ = bench.worker("one")
    await settled_down(bench, one)
    bench.server.lose()

    async def evicting() -> None:
        raise ConfigError(["maxmemory-policy"])

    right, store.check_server = store.check_server, evicting  # type: ignore[method-assign]
    with pytest.raises(StoreLost) as lost:
        await one.tick()
    one.suspect(lost.value)
    with pytest.raises(ConfigError):
        await one.tick()
    assert not one.is_open
    store.check_server = right  # type: ignore[method-assign]
    await one.tick()
    bench.now += 15_000
    await one.tick()
    assert one.is_open


async def test_a_server_set_to_evict_later_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy is changed while we run: within half a minute nothing more is granted, until it is set back."""
    bench = Bench()
    store, one, _ = bench.worker("one")
    await settled_down(bench, one)

    async def evicting() -> None:
        raise ConfigError(["maxmemory-policy"])

    right, store.check_server = store.check_server, evicting  # type: ignore[method-assign]
    await one.tick()
    assert one.is_open, "not asked at every beat"
    monkeypatch.setattr("headrace.recovery.CHECK_S", 0.0)
    for _ in range(2):
        with pytest.raises(ConfigError):
            await one.tick()
        assert not one.is_open
    store.check_server = right  # type: ignore[method-assign]
    await one.tick()
    assert one.is_open

"""One contract for the operators' orders: a dict, and the Lua scripts on a real Redis; and for heartbeats on Redis."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace.controls.entry import ENTRIES, Entry, Scope
from headrace.errors import StoreLost, StoreUnavailable
from headrace.store import Store
from headrace.store.memory import MemoryStore
from headrace.store.orders import BATCH
from tests.support.stores import Bench, MemoryBench, a_claim


async def a_pause(store: Store | MemoryStore, *, for_ms: int | None = None, since_ms: int | None = None, **scope: str) -> Entry:
    now_ms = await store.time_ms()
    return Entry("pause", Scope(**scope), "ada@host", "why", since_ms or now_ms, None if for_ms is None else now_ms + for_ms)


async def an_order(store: Store | MemoryStore, name: str, *ids: str, ttl_ms: int = 60_000) -> int:
    now_ms = await store.time_ms()
    await store.orders.put(Entry("ids", Scope(), "ada@host", "why", now_ms, now_ms + 60_000, name=name))
    return await store.orders.cancel(ids, name, ttl_ms)


async def left(store: Store | MemoryStore) -> dict[str, int]:
    return {entry.name: entry.left for entry in await store.orders.entries() if entry.kind == "ids"}


async def test_an_order_is_there_for_everybody_until_it_is_taken_back(bench: Bench) -> None:
    """As it was given; of the same, the later one; each change is a new version."""
    orders, other = bench.store.orders, bench.another()
    await other.open()
    assert (await orders.version(), await orders.entries()) == (0, [])
    first, second = await a_pause(bench.store, agent="a|\u00e9"), await a_pause(bench.store, agent="a|\u00e9", for_ms=60_000)
    version = 0
    for entry in (first, second):
        assert await orders.put(entry)
        before, version = version, await other.orders.version()
        assert version > before
        assert await other.orders.entries() == [entry]
    assert await other.orders.drop([first.key, "pause:none"]) == [True, False]
    assert await orders.entries() == []
    assert await orders.version() == version + 1
    await other.close()


async def test_orders_need_no_epoch_and_outlive_one(bench: Bench) -> None:
    """They are given before the first worker was ever started, and stay when a new epoch is written."""
    fresh = bench.another()
    await fresh.open()
    assert await fresh.orders.put(await a_pause(fresh, model="m"))
    await bench.restart()
    await bench.store.epochs.enter()
    assert len(await bench.store.orders.entries()) == 1
    await fresh.close()


async def test_there_is_room_for_so_many_and_what_has_run_out_takes_none(bench: Bench) -> None:
    """The first too many is refused, a change of one that is there is not; once one has run out there is room."""
    for number in range(ENTRIES):
        assert await bench.store.orders.put(await a_pause(bench.store, agent=f"a{number}"))
    more = await a_pause(bench.store, agent="more")
    assert not await bench.store.orders.put(more)
    assert await bench.store.orders.put(await a_pause(bench.store, agent="a1", for_ms=20))
    bench.now_later(50)
    assert await bench.store.orders.put(more)


async def test_ids_are_cancelled_by_their_order_and_counted(bench: Bench) -> None:
    """More than a batch of them; again is no change; another order takes over; taken back they are free, and an order without any goes."""
    ids = [f"r{number}" for number in range(BATCH + 10)]
    assert await an_order(bench.store, "one", *ids) == len(ids)
    assert await bench.store.orders.cancel(ids[:5], "one", 60_000) == 0
    assert await bench.store.orders.cancelled(["r0", "none", ids[-1]]) == ["one", None, "one"]
    assert await left(bench.store) == {"one": len(ids)}
    assert await an_order(bench.store, "two", "r0", "r1") == 2
    assert await left(bench.store) == {"one": len(ids) - 2, "two": 2}
    assert await bench.store.orders.uncancel(["r0", "r1", "none"]) == 2
    assert await left(bench.store) == {"one": len(ids) - 2}
    assert await bench.store.orders.cancelled(["r0", "r2"]) == [None, "one"]
    assert await bench.store.orders.uncancel(ids) == len(ids) - 2
    assert await bench.store.orders.entries() == []


async def test_a_cancelled_id_lives_as_long_as_it_was_said(bench: Bench) -> None:
    """Then it is free by itself."""
    await an_order(bench.store, "one", "r", ttl_ms=30)
    bench.now_later(60)
    assert await bench.store.orders.cancelled(["r"]) == [None]


async def test_what_was_known_is_written_again_only_where_redis_knows_less(bench: Bench) -> None:
    """Nothing is restored over a later version; after a loss all of it is, but for what was given since."""
    orders = bench.store.orders
    kept, resumed = await a_pause(bench.store, agent="kept"), await a_pause(bench.store, agent="resumed")
    await orders.put(kept)
    known = await orders.version()
    assert not await orders.restore(known, bench.store.server_ms, [])
    bench.now_later(5)
    await bench.lose()
    await orders.put(resumed)  # as an old file would bring it back
    bench.now_later(5)
    seen_ms = await bench.store.time_ms()
    bench.now_later(5)
    since = await a_pause(bench.store, agent="since")
    await orders.put(since)
    assert await orders.version() < known  # though more was given since than before: nobody takes it for what he knows
    assert await orders.restore(known, seen_ms, [kept])
    assert not await orders.restore(known, seen_ms, [kept])
    assert {entry.scope.agent: entry for entry in await orders.entries()} == {"kept": kept, "since": since}
    assert await orders.version() == known + 1


async def test_what_claims_say_of_ids(bench: Bench) -> None:
    """A letter each, nothing for an id that no lane has met."""
    claims = [a_claim(name, number) for number, name in enumerate(("claimed", "done", "dead", "waiting", "answered"))]
    await bench.store.claim(claims)
    await bench.store.mark([(claims[1], "done"), (claims[2], "dead"), (claims[3], "waiting")])
    await bench.store.hand_over([(claims[4], b"x" * 100_000)])
    assert await bench.store.orders.states([claim.request_id for claim in claims] + ["none"]) == ["c", "s", "d", "w", "a", None]
    assert await bench.store.orders.states([]) == []


async def test_without_a_server_it_says_so(bench: Bench, redis_url: str) -> None:
    """Every method raises StoreUnavailable, as those of claims do."""
    away: Any = Store("redis://127.0.0.1:1/0", "away")
    if isinstance(bench, MemoryBench):
        bench.memory.server.away = True
        away = bench.store
    entry = Entry("pause", Scope(), "w", "y", 1)
    for call in (
        away.orders.version, away.orders.entries, lambda: away.orders.put(entry), lambda: away.orders.drop(["x"]),
        lambda: away.orders.cancelled(["x"]), lambda: away.orders.states(["x"]), lambda: away.orders.restore(1, 1, []),
    ):  # fmt: skip
        with pytest.raises((StoreUnavailable, StoreLost)):
            await call()
    if isinstance(bench, MemoryBench):
        bench.memory.server.away = False


async def test_heartbeats_are_read_by_everybody_and_dropped(redis_url: str, namespace: str) -> None:
    """By process; the word of one replaces its last one."""
    store = Store(redis_url, namespace)
    await store.open()
    try:
        await store.roster.put("one", "first")
        await store.roster.put("one", "second")
        await store.roster.put("two", f"{time.time()}")
        assert (await store.roster.all())["one"] == "second"
        await store.roster.drop(["one"])
        await store.roster.drop([])
        assert set(await store.roster.all()) == {"two"}
        await store.roster.drop(["two"])
    finally:
        await store.close()

"""Who waits for which request, and that nothing stays that nobody wants."""

from __future__ import annotations

import asyncio

from headrace.client.registry import Registry
from headrace.results import Result

DONE = Result("a", "completed")


async def test_a_place_is_given_back_once() -> None:
    """By its end, by being forgotten, by failing, in whatever order."""
    registry = Registry(asyncio.Semaphore(1))
    for finish in ("end", "drop", "fail", "close"):
        await registry.room.acquire()
        entry = registry.add(b"a", b"", 10.0)
        entry.holds = True
        match finish:
            case "end":
                registry.end(b"a", DONE)
            case "drop":
                registry.drop(b"a", entry)
            case "fail":
                registry.fail(b"a", entry)
            case _:
                registry.close()
        registry.end(b"a", DONE)
        registry.drop(b"a", entry)
        assert (registry.entries, registry.room._value) == ({}, 1)


async def test_an_end_is_kept_until_its_last_waiter_has_it() -> None:
    """Two who wait both get it; afterwards it is gone. A wait for another's request leaves nothing, answered or not."""
    registry = Registry(asyncio.Semaphore(1))
    entry = registry.add(b"a", b"", 10.0)
    entry.delivered = asyncio.get_running_loop().create_future()
    entry.waiters = 2
    registry.end(b"a", DONE)
    registry.leave(b"a", entry)
    assert registry.entries == {b"a": entry}
    registry.leave(b"a", entry)
    assert registry.entries == {}
    other = registry.add(b"b", b"", 10.0)
    other.waiters = 1
    registry.leave(b"b", other)
    assert registry.entries == {}


async def test_what_nobody_asks_for_is_forgotten_in_time() -> None:
    """Answered or not; what is waited for stays."""
    registry = Registry(asyncio.Semaphore(5))
    for key, until_s, waiters in ((b"old", 5.0, 0), (b"young", 15.0, 0), (b"wanted", 5.0, 1)):
        registry.add(key, b"", until_s).waiters = waiters
    registry.tidy(10.0)
    assert (set(registry.entries), registry.forgotten) == ({b"young", b"wanted"}, 1)

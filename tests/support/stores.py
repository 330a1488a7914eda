"""The two stores of one contract, each with a way to look behind it and to let it lose what it holds."""

from __future__ import annotations

import time
from dataclasses import replace

import redis.asyncio as aredis

from headrace.claims import Claim, Held, Token
from headrace.envelope import Position
from headrace.store import Store
from headrace.store import codec as store_codec
from headrace.store.memory import MemoryStore


def a_claim(
    request_id: str = "id", offset: int = 0, *, topic: str = "main", hop: int = 0, by: str = "one", epoch: int = 1, **more: object
) -> Claim:
    here = Position(topic, 0, offset)
    fields: dict[str, object] = {"origin": here, "fingerprint": "f", **more}
    return Claim(request_id, here, hop=hop, token=Token(by, epoch), **fields)  # type: ignore[arg-type]


async def opened(store: Store | MemoryStore) -> None:
    """Enter, and open admission at once."""
    await store.open()
    await store.epochs.enter()
    await store.epochs.lease("test")
    assert await store.epochs.reopen("test")


class MemoryBench:
    """The dict, its clock in hand."""

    def __init__(self) -> None:
        self.now = 1_790_000_000_000
        self.store: Store | MemoryStore = MemoryStore(lambda: self.now)
        self.memory = self.store

    async def held(self, request_id: str) -> Held | None:
        return self.memory.held(request_id)

    async def lapse(self, request_id: str) -> None:
        held, ends = self.memory.server.data.held[request_id]
        self.memory.server.data.held[request_id] = (replace(held, live_until_ms=0), ends)

    async def lose(self) -> None:
        self.memory.server.flush()

    def another(self) -> Store | MemoryStore:
        return MemoryStore(lambda: self.now, server=self.memory.server)

    async def saved(self) -> object:
        return self.memory.server.snapshot()

    async def roll_back(self, saved: object) -> None:
        run = self.memory.server.data.run
        self.memory.server.roll_back(saved)  # type: ignore[arg-type]
        self.memory.server.data.run = run  # as seen by a connection that stayed

    async def restart(self) -> None:
        self.memory.server.roll_back(self.memory.server.snapshot())

    def now_later(self, ms: int) -> None:
        self.now += ms


class RedisBench:
    """A real Redis, and a client of our own to look behind the store."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url, self.namespace = url, namespace
        self.prefix = f"{{{namespace}}}:"
        self.store: Store | MemoryStore = Store(url, namespace)
        self.client = aredis.Redis.from_url(url)

    async def held(self, request_id: str) -> Held | None:
        value = await self.client.get(f"{self.prefix}claim:{request_id}")
        assert value is None or isinstance(value, bytes)
        return None if value is None else store_codec.held(value)

    async def lapse(self, request_id: str) -> None:
        await self.client.setrange(f"{self.prefix}claim:{request_id}", 2, "0" * 13)

    def another(self) -> Store | MemoryStore:
        return Store(self.url, self.namespace)

    async def saved(self) -> object:
        return {key: await self.client.get(key) async for key in self.client.scan_iter(self.prefix + "*")}

    async def roll_back(self, saved: object) -> None:
        await self.lose()
        for key, value in saved.items():  # type: ignore[attr-defined]
            await self.client.set(key, value)

    async def restart(self) -> None:
        """A restart as the store sees it, on a server that others use: it knows another run id, and connects anew."""
        assert isinstance(self.store, Store)
        await self.client.set(self.prefix + "run", "0" * 40)
        self.store._server.run_id = "0" * 40
        await self.store._client.connection_pool.disconnect()  # type: ignore[union-attr]

    def now_later(self, ms: int) -> None:
        time.sleep(ms / 1000)  # Redis' own clock

    async def lose(self) -> None:
        keys = [key async for key in self.client.scan_iter(self.prefix + "*")]
        if keys:
            await self.client.delete(*keys)


Bench = MemoryBench | RedisBench

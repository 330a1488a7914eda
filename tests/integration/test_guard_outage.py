"""The guard over a Redis of its own, a cluster of one node: restarted under load, come back empty, and full."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import redis.asyncio as aredis
import redis.exceptions

from headrace.admission import Admission, Go
from headrace.clock import Clock
from headrace.envelope import Job, Position, Record, Response, Trail
from headrace.guard import Guard
from headrace.outcome import Completed, Settlement
from headrace.recovery import Recovery, Step
from headrace.store import Store

COMPLETED = Completed(Response(b"{}"), (), 1, 1)
WAIT_MS = 1_000


class OwnRedis:
    """A Redis server on a free port of loopback, with an append-only file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self.assigned = False
        self.process: subprocess.Popen[bytes] | None = None
        self.client = aredis.Redis(port=self.port)

    async def start(self) -> None:
        """Start it, and wait until its one node owns every slot."""
        binary = shutil.which("redis-server")
        if binary is None:
            pytest.skip("needs a redis-server on the PATH")
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self.folder, "appendonly": "yes", "cluster-enabled": "yes", "save": ""}
        args = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self.process = subprocess.Popen([binary, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: ASYNC220  # a start takes a millisecond
        async with asyncio.timeout(20):
            while not await self._ready():  # noqa: ASYNC110  # another process's state has no event
                await asyncio.sleep(0.02)

    async def _ready(self) -> bool:
        execute = cast("Callable[..., Awaitable[Any]]", self.client.execute_command)
        try:
            if not self.assigned:
                await execute("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                self.assigned = True
            await self.client.get("ready")
        except (redis.exceptions.RedisError, redis.exceptions.RedisClusterException):
            return False
        return True

    def stop(self) -> None:
        """End it at once, as a crash does; the file stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def _free_port() -> int:
    while True:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        if port < 55_000:  # the cluster's bus takes port + 10,000
            return port


class Nothing:
    """Results in which nothing is completed, though something was."""

    def untouched(self) -> bool:
        return False

    def completed(self, since_ms: int) -> Iterator[Step]:
        assert since_ms >= 0
        yield Step([], 0, 0)

    def later(self) -> Iterator[Step]:
        yield Step([], 0, 0)


class NobodyResolved:
    """A broker on which nothing is settled."""

    async def resolved(self, positions: Sequence[Position]) -> list[bool | None]:
        return [False for _ in positions]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[OwnRedis]:
    """Give a running server of one's own."""
    own = OwnRedis(tmp_path)
    try:
        await own.start()
        yield own
    finally:
        own.stop()
        await own.client.aclose()


def a_job(offset: int) -> Job:
    record = Record("main", 0, offset, 1, None, b"{}", [], 0)
    return Job(record, Trail(record.position), f"id{offset}", "f")


class Worker:
    """A guard over the server, and what it told."""

    def __init__(self, server: OwnRedis) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []
        self.away = asyncio.Event()
        self.emitted: list[Admission] = []
        self.store = Store(f"redis://127.0.0.1:{server.port}", "outage")
        self.recovery = Recovery(self.store, Nothing(), incarnation="one", tell=self.tell, wait_ms=WAIT_MS)
        self.guard = Guard(
            self.store, NobodyResolved(), Clock(), incarnation="one", current=lambda _record: True, gate=self.recovery,
            tell=self.tell,
        )  # fmt: skip
        self.recovery.join(self.guard)

    async def start(self) -> None:
        """Enter, and run what keeps the claims."""
        await self.store.open()
        await self.recovery.enter()
        self.tasks = [asyncio.create_task(self.recovery.run()), asyncio.create_task(self.guard.run(self.emitted.extend))]
        await self.recovery.until_open()

    async def stop(self) -> None:
        """End it."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.store.close()

    def names(self) -> list[str]:
        """What was told, but for the beats that Redis did not take."""
        return [name for name, _ in self.told if name != "beat_missed"]

    def tell(self, name: str, fields: dict[str, object]) -> None:
        self.told.append((name, fields))
        if name == "store_unavailable":
            self.away.set()

    async def handle(self, offsets: range) -> None:
        """Claim and settle, as a lane does."""
        admissions = await self.guard.admit([a_job(offset) for offset in offsets])
        gos = [go for go in admissions if isinstance(go, Go)]
        assert len(gos) == len(offsets)
        assert all(go.token == "one/1" for go in gos)
        await self.guard.settled([Settlement(go.job, COMPLETED, go.token) for go in gos])


async def test_a_restart_under_load_costs_nothing_visible(server: OwnRedis) -> None:
    """Redis is killed and started again while batches are claimed and settled: all are claimed, and all end marked done."""
    worker = Worker(server)
    await worker.start()

    begun = asyncio.Event()

    async def load() -> None:
        for start in range(0, 4_000, 20):
            await worker.handle(range(start, start + 20))
            begun.set()

    loading = asyncio.create_task(load())
    await asyncio.wait_for(begun.wait(), 10)
    server.stop()
    await asyncio.wait_for(worker.away.wait(), 10)
    await server.start()
    await asyncio.wait_for(loading, 30)
    async with asyncio.timeout(10):
        while len(worker.guard._marks):  # noqa: ASYNC110  # the guard has no signal for an empty queue
            await asyncio.sleep(0.05)
    keys = [f"{{outage}}:claim:id{offset}" for offset in range(4_000)]
    values = await server.client.mget(keys)
    assert [value[:1] if isinstance(value, bytes) else value for value in values] == [b"s"] * 4_000
    names = [name for name, _ in worker.told]
    assert names.count("store_unavailable") == names.count("store_back") >= 1
    assert "marks_dropped" not in names
    await worker.stop()


async def test_a_redis_come_back_empty_is_entered_again(server: OwnRedis) -> None:
    """Emptied alive: nothing is granted for a while, what was held is claimed again, then admission goes on."""
    worker = Worker(server)
    await worker.start()
    await worker.handle(range(20))
    (held,) = await worker.guard.admit([a_job(99)])
    await server.client.flushall()
    await worker.handle(range(20, 40))
    names = [name for name, _ in worker.told]
    after = names[names.index("store_suspected") :]
    assert after.index("claims_reasserted") < after.index("restored") < after.index("admission_open")
    value = await server.client.get("{outage}:claim:id99")
    assert isinstance(value, bytes)
    assert value.startswith(b"c|")
    assert isinstance(held, Go)
    await worker.stop()


async def test_a_full_redis_pauses_and_says_so_once(server: OwnRedis) -> None:
    """Out of memory it still tells the time: admission waits, told once, and goes on when there is room."""
    worker = Worker(server)
    await worker.start()
    worker.told.clear()
    await server.client.config_set("maxmemory", "1")
    handling = asyncio.create_task(worker.handle(range(5)))
    await asyncio.wait_for(worker.away.wait(), 10)
    for _ in range(3):
        await worker.guard.tick(worker.emitted.extend)
    assert worker.names() == ["store_unavailable"]
    await server.client.config_set("maxmemory", "0")
    await asyncio.wait_for(handling, 10)
    assert worker.names() == ["store_unavailable", "store_back"]
    await worker.stop()

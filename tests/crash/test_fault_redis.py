"""Redis frozen, slow, cut off, half open, full, read-only, without its scripts or with another password: one outcome a record, no call too many."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import pytest
import redis as sync_redis
from pydantic import SecretStr

from headrace import process, recovery
from headrace.config import RedisSettings
from headrace.local.stub import Rule, StubLLM
from tests.support.audited import audited
from tests.support.bench import Bench, parsed
from tests.support.engine import Engine
from tests.support.history import History
from tests.support.redis_link import RedisLink
from tests.support.servers import OwnRedis
from tests.support.worker import Worker

pytest_plugins = ["tests.support.fixtures"]

FROZEN_S = float(os.environ.get("HEADRACE_TEST_FROZEN_S", "6"))
IDS = int(os.environ.get("HEADRACE_TEST_REDIS_IDS", "150"))
WAIT_S = 60.0


def rules(low: float, high: float, *, fail: float = 0.25) -> list[Rule]:
    """Calls that take that long; a share of the ids fails at its first call, for the retry lane to have work."""
    slow = {"latency": {"uniform_ms": [low, high]}}
    return [
        Rule.model_validate({"name": "fails", "match": {"share": fail, "first": 1}, "action": {"signal": "server_error", **slow}}),
        Rule.model_validate({"name": "slow", "action": slow}),
    ]


def needed(stub: StubLLM, ids: list[str]) -> dict[str, int]:
    """How often each id has to be called: once, and once more where its first call failed."""
    failed = {entry.request_id for entry in stub.log if entry.status == 500}
    return {request_id: 1 + (request_id in failed) for request_id in ids}


class Copies:
    """Sends copies of random ids all the while, five every 100 ms; `sent` counts them by id."""

    def __init__(self, bench: Bench, ids: list[str], seed: int) -> None:
        self._bench, self._ids, self._chance = bench, ids, random.Random(seed)
        self.sent: Counter[str] = Counter()

    def send(self, count: int) -> None:
        """So many now."""
        chosen = self._chance.choices(self._ids, k=count)
        self._bench.ask(*chosen, partition=self._chance.randrange(2))
        self.sent.update(chosen)

    @asynccontextmanager
    async def all_the_while(self) -> AsyncIterator[None]:
        """While the block runs."""

        async def go_on() -> None:
            while True:
                await asyncio.to_thread(self.send, 5)
                await asyncio.sleep(0.1)

        task = asyncio.create_task(go_on())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def ended(bench: Bench, records: int) -> Counter[tuple[str, str]]:
    """Once so many records have ended and both lanes are drained: results by (id, status)."""
    await bench.until("results", records, WAIT_S)
    await bench.until_drained(timeout_s=WAIT_S)
    return Counter((r["request_id"], r["status"]) for r in map(parsed, bench.read("results")))


async def stopped(*workers: Worker) -> None:
    """Asked to stop, all of them do, and none had stopped by itself before."""
    for worker in workers:
        assert worker.process.poll() is None, worker.account
        worker.signal(signal.SIGTERM)
    for worker in workers:
        assert await worker.exit_code(WAIT_S) == 0, worker.account


async def kept(bench: Bench, stub: StubLLM, ids: list[str]) -> None:
    """The auditor finds every promise kept, with no extra call: nothing was killed."""
    history = History()
    for request_id in ids:
        history.produced(request_id)
    verdict = await audited(bench, stub, history)
    assert (verdict.extra_calls or 0) <= 0, "attempts that never reached the server are none of its calls"


def once(ids: list[str], copies: Counter[str]) -> Counter[tuple[str, str]]:
    """One completed result an id, one notice a copy."""
    return Counter({(i, "completed"): 1 for i in ids} | {(i, "duplicate"): n for i, n in copies.items()})


async def test_frozen_under_two_workers_and_two_lanes_it_waits(mine: Bench, redis: OwnRedis, stub: StubLLM) -> None:
    """SIGSTOP of Redis, `on_outage: pause`, copies and new requests all the while: one completed an id, one notice a copy, no call too many."""
    first, later = [f"r{n:03}" for n in range(IDS)], [f"n{n:03}" for n in range(40)]
    stub.set_rules(rules(100, 900))
    settings = mine.settings(stub.base_url, timeout_s=30, limits={"concurrency": 12})
    copies = Copies(mine, first + later[:20], seed=6)
    with Worker(settings) as one, Worker(settings) as other:
        for worker in (one, other):
            await worker.event("assigned", count=2, timeout_s=WAIT_S)
        mine.ask(*first)
        await stub.wait_calls(IDS // 3)
        redis.freeze()
        async with copies.all_the_while():
            mine.ask(*later)
            await asyncio.sleep(FROZEN_S)
        redis.thaw()
        counts = await ended(mine, IDS + 40 + copies.sent.total())
        assert one.named("store_unavailable"), "the freeze was noticed"
        await stopped(one, other)
    assert counts == once(first + later, copies.sent)
    assert stub.calls == needed(stub, first + later)
    await kept(mine, stub, first + later)


async def test_frozen_it_goes_on_without_dedup(mine: Bench, redis: OwnRedis, stub: StubLLM) -> None:
    """SIGSTOP, `on_outage: continue`: work goes on while Redis is away, and only copies sent then may be answered twice; dedup is back with Redis.

    Promised then: each record ends once, each id is completed, and never more results or calls than records of it.
    """
    first, later = [f"r{n:03}" for n in range(IDS)], [f"n{n:03}" for n in range(40)]
    stub.set_rules(rules(50, 300))
    settings = mine.settings(
        stub.base_url, timeout_s=30, limits={"concurrency": 12}, redis=RedisSettings(url=SecretStr(redis.url), on_outage="continue")
    )
    copies = Copies(mine, first[: IDS // 2], seed=7)
    with Worker(settings) as one, Worker(settings) as other:
        for worker in (one, other):
            await worker.event("assigned", count=2, timeout_s=WAIT_S)
        mine.ask(*first)
        await stub.wait_calls(IDS // 3)
        redis.freeze()
        frozen = time.monotonic()
        async with copies.all_the_while():
            mine.ask(*later)
            await mine.finished(later, timeout_s=WAIT_S)  # without Redis
            await asyncio.sleep(max(0.0, FROZEN_S - (time.monotonic() - frozen)))
        redis.thaw()
        await asyncio.gather(*(worker.event("store_back", timeout_s=WAIT_S) for worker in (one, other)))
        await ended(mine, IDS + 40 + copies.sent.total())
        mine.ask("after", "after")
        counts = await ended(mine, IDS + 42 + copies.sent.total())
        await stopped(one, other)
    assert (counts["after", "completed"], counts["after", "duplicate"]) == (1, 1)
    for request_id in first + later:
        records = 1 + copies.sent[request_id]
        assert 1 <= counts[request_id, "completed"] <= records
        assert counts[request_id, "completed"] + counts[request_id, "duplicate"] == records
        assert stub.calls[request_id] <= records + (needed(stub, [request_id])[request_id] - 1)


@pytest.mark.parametrize("on_outage", ["pause", "continue"])
async def test_frozen_at_the_start(mine: Bench, redis: OwnRedis, stub: StubLLM, on_outage: Any) -> None:
    """Started while Redis is frozen: `pause` refuses with the remedy and in bounded time; `continue` works without it, and with it once it is back."""
    settings = mine.settings(stub.base_url, timeout_s=30, redis=RedisSettings(url=SecretStr(redis.url), on_outage=on_outage))
    redis.freeze()
    mine.ask("r1", "r2", "r3")
    with Worker(settings) as worker:
        if on_outage == "pause":
            assert await worker.exit_code(WAIT_S) == 2
            assert "on_outage: continue" in worker.said
            redis.thaw()
            assert stub.total_calls == 0
            return
        await mine.finished(["r1", "r2", "r3"], timeout_s=WAIT_S)
        redis.thaw()
        await worker.event("store_back", timeout_s=WAIT_S)
        mine.ask("again", "again")
        counts = await ended(mine, 5)
        await stopped(worker)
    assert (counts["again", "completed"], counts["again", "duplicate"]) == (1, 1)
    assert stub.calls == dict.fromkeys(["r1", "r2", "r3", "again"], 1)


async def test_away_at_the_start_and_back_before_the_first_record(mine: Bench, redis: OwnRedis, stub: StubLLM) -> None:
    """Started without Redis, `continue`, and Redis comes before any work: the first records are claimed, the worker does not stop."""
    settings = mine.settings(stub.base_url, timeout_s=30, redis=RedisSettings(url=SecretStr(redis.url), on_outage="continue"))
    redis.freeze()
    with Worker(settings) as worker:
        await worker.event("store_unavailable", timeout_s=WAIT_S)
        redis.thaw()
        await worker.event("assigned", count=2, timeout_s=WAIT_S)
        mine.ask("r", "r")
        counts = await ended(mine, 2)
        await stopped(worker)
    assert counts["r", "completed"] >= 1
    assert stub.calls["r"] == counts["r", "completed"], "without claims each record is a call"


async def test_frozen_while_it_is_asked_to_stop(mine: Bench, redis: OwnRedis, stub: StubLLM) -> None:
    """Asked to stop while Redis is frozen: calls in flight end within the grace and are settled, nothing begins, the marks are given up in
    bounded time and told; afterwards nothing is called or settled twice.
    """
    ids, leave_s = [f"r{n:03}" for n in range(40)], 3.0
    stub.set_rules(rules(700, 900, fail=0))
    settings = mine.settings(stub.base_url, timeout_s=30, grace_s=20, limits={"concurrency": 20})
    copies = Copies(mine, ids, seed=8)
    with mock.patch.object(process, "LEAVE_S", leave_s):
        async with Engine(settings) as engine:
            mine.ask(*ids)
            await stub.wait_in_flight(20)
            redis.freeze()
            asked = time.monotonic()
            engine.ask_to_stop()
            copies.send(20)
            assert await engine.stop(WAIT_S) == 0
            took_s = time.monotonic() - asked
    assert engine.named("stopped")[0]["cut_off"] is False
    assert engine.named("marks_left"), "what Redis did not take is told"
    assert took_s < 20 + leave_s + 15, f"it took {took_s:.1f} s"
    assert stub.calls == dict.fromkeys(stub.calls, 1)
    called = set(stub.calls)
    assert len(called) < len(ids), "nothing began after that"
    redis.thaw()
    async with Engine(settings) as engine:
        counts = await ended(mine, len(ids) + copies.sent.total())
        await engine.stop()
    assert counts == once(ids, copies.sent)
    assert stub.calls == dict.fromkeys(ids, 1)
    await kept(mine, stub, ids)


async def _reset(link: RedisLink) -> None:
    for _ in range(12):
        link.cut()
        await asyncio.sleep(0.15)


async def _late(link: RedisLink) -> None:
    link.late_s = 0.3
    await asyncio.sleep(3)
    link.late_s = 0.0


async def _half_open(link: RedisLink) -> None:
    link.deaf = True
    await asyncio.sleep(5)
    link.deaf = False


# What a server says that is there and cannot serve: while it starts, runs a script, is moved in a cluster, or is of tomorrow.
ERRORS = (
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "CLUSTERDOWN The cluster is down",
    "MOVED 3999 127.0.0.1:6381",
    "ASK 3999 127.0.0.1:6381",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "NOREPLICAS Not enough good replicas to write.",
    "MISCONF Redis is configured to save RDB snapshots, but is currently unable to persist to disk.",
    "NOPERM User default has no permissions to run the 'evalsha' command",
    "ERR max number of clients reached",
    "SOMETHINGNEW a redis of tomorrow, with a word of 7 about sk-secret-1234567890",
)


async def _answers_errors(link: RedisLink) -> None:
    for error in ERRORS:
        link.saying = error
        await asyncio.sleep(0.6)
        link.saying = None
        await asyncio.sleep(0.4)


ON_THE_WAY = {"reset": _reset, "late": _late, "half_open": _half_open, "errors": _answers_errors}


async def loaded(bench: Bench, stub: StubLLM, worker: Worker, fault: Callable[[], Awaitable[None]], *, seed: int) -> None:
    """Work and copies under a fault that begins and ends: one completed an id, one notice a copy, no call too many."""
    ids = [f"r{n:03}" for n in range(120)]
    copies = Copies(bench, ids, seed)
    await worker.event("assigned", count=2, timeout_s=WAIT_S)
    bench.ask(*ids[:60])
    await stub.wait_calls(20)
    task = asyncio.create_task(asyncio.wait_for(fault(), WAIT_S))
    async with copies.all_the_while():
        bench.ask(*ids[60:])
        await task
    copies.send(20)
    counts = await ended(bench, len(ids) + copies.sent.total())
    assert counts == once(ids, copies.sent)
    assert stub.calls == needed(stub, ids)
    assert bench.read("dlq") == []
    await kept(bench, stub, ids)


@pytest.mark.parametrize("kind", ON_THE_WAY)
async def test_the_way_to_redis_is_at_fault(mine: Bench, redis: OwnRedis, stub: StubLLM, kind: str) -> None:
    """Connections reset, late, half open, or answered with the errors of a server that cannot serve: no request fails, no extra call, it heals by itself."""
    stub.set_rules(rules(20, 120))
    async with RedisLink(redis.url) as link:
        settings = mine.settings(stub.base_url, timeout_s=30, limits={"concurrency": 12}, redis=RedisSettings(url=SecretStr(link.url)))
        with Worker(settings) as worker:
            await loaded(mine, stub, worker, lambda: ON_THE_WAY[kind](link), seed=10)
            told = worker.named("store_unavailable")
            assert len(told) == len(worker.named("store_back"))
            least, most = {"reset": (0, 24), "late": (0, 0), "half_open": (1, 2), "errors": (1, 2 * len(ERRORS))}[kind]
            assert least <= len(told) <= most, "told once a lane each time, and slow is not away"
            assert "sk-secret" not in worker.said
            assert "sk-secret" not in str(worker.told)
            await stopped(worker)


class Admin:
    """The operator's hand on a running Redis."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = sync_redis.Redis.from_url(url)

    def do(self, *command: Any) -> Any:
        """One command."""
        return self._client.execute_command(*command)  # type: ignore[no-untyped-call]  # theirs


async def _held(begin: Callable[[], Any], end: Callable[[], Any], held_s: float = 1.5) -> None:
    await asyncio.to_thread(begin)
    await asyncio.sleep(held_s)
    await asyncio.to_thread(end)


def _full(admin: Admin) -> Awaitable[None]:
    return _held(lambda: admin.do("CONFIG", "SET", "maxmemory", "1"), lambda: admin.do("CONFIG", "SET", "maxmemory", "0"))


def _replica(admin: Admin) -> Awaitable[None]:
    return _held(lambda: admin.do("REPLICAOF", "127.0.0.1", "1"), lambda: admin.do("REPLICAOF", "NO", "ONE"))


def _alone(admin: Admin) -> Awaitable[None]:
    name = "min-replicas-to-write"
    return _held(lambda: admin.do("CONFIG", "SET", name, "1"), lambda: admin.do("CONFIG", "SET", name, "0"))


async def _unscripted(admin: Admin) -> None:
    for _ in range(15):
        await asyncio.to_thread(admin.do, "SCRIPT", "FLUSH")
        await asyncio.sleep(0.1)


def _password(admin: Admin) -> Awaitable[None]:
    def begin() -> None:
        admin.do("CONFIG", "SET", "requirepass", "another-password")
        admin.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")  # those who were let in before would stay

    return _held(begin, lambda: admin.do("CONFIG", "SET", "requirepass", ""))


async def _busy(admin: Admin) -> None:
    admin.do("CONFIG", "SET", "busy-reply-threshold", "50")

    def loop() -> None:
        with pytest.raises(sync_redis.ResponseError):
            Admin(admin.url).do("EVAL", "while true do end", "0")

    looping = asyncio.create_task(asyncio.to_thread(loop))
    await asyncio.sleep(2)
    await asyncio.to_thread(admin.do, "SCRIPT", "KILL")
    await looping


AT_THE_SERVER: dict[str, tuple[Callable[[Admin], Awaitable[None]], str | None]] = {
    "full": (_full, "out of memory"),
    "read_only": (_replica, "ReadOnlyError"),
    "min_replicas": (_alone, "refused a command"),
    "script_flush": (_unscripted, None),
    "password": (_password, "Redis"),  # of the credentials, or of a connection cut with them
    "busy_script": (_busy, "Redis"),
}


async def test_an_eviction_policy_set_meanwhile_closes_admission(mine: Bench, redis: OwnRedis, stub: StubLLM) -> None:
    """`maxmemory-policy allkeys-lru` set under a running worker: told once with the remedy, nothing new is granted until it is set right, then all goes on."""
    admin = Admin(redis.url)
    with mock.patch.object(recovery, "CHECK_S", 0.3):
        async with Engine(mine.settings(stub.base_url, timeout_s=30), "main") as engine:
            mine.ask("before")
            await mine.finished(["before"], timeout_s=WAIT_S)
            await asyncio.to_thread(admin.do, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            told = await engine.event("restore_waits", timeout_s=WAIT_S)
            assert "noeviction" in told["error"]
            mine.ask("meanwhile", "meanwhile")
            await asyncio.sleep(1)
            assert stub.calls == {"before": 1}
            await asyncio.to_thread(admin.do, "CONFIG", "SET", "maxmemory-policy", "noeviction")
            await mine.until("results", 3, WAIT_S)
            assert len(engine.named("restore_waits")) == 1
            await engine.stop()
    await kept(mine, stub, ["before", "meanwhile"])


@pytest.mark.parametrize("kind", AT_THE_SERVER)
async def test_redis_takes_no_writes_for_a_while(mine: Bench, redis: OwnRedis, stub: StubLLM, kind: str) -> None:
    """Full, a replica, short of replicas, another password, scripts flushed, a script that hangs: told once a lane with the reason, nothing fails, it heals by itself."""
    fault, says = AT_THE_SERVER[kind]
    stub.set_rules(rules(20, 120))
    admin = Admin(redis.url)
    settings = mine.settings(stub.base_url, timeout_s=30, limits={"concurrency": 12})
    with Worker(settings) as worker:
        await loaded(mine, stub, worker, lambda: fault(admin), seed=9)
        told = worker.named("store_unavailable")
        if says is None:
            assert told == [], "a script is given again without a word"
        else:
            assert 1 <= len(told) <= 2, "told once a lane"
            assert says in told[0]["error"]
            assert len(worker.named("store_back")) == len(told)
        await stopped(worker)

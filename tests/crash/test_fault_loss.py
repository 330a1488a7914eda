"""Redis loses its data under two workers: noticed each time, marks restored from the results, copies still caught, workers go on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Sequence

import pytest

from headrace.config import Settings
from headrace.local.stub import Rule, StubLLM
from tests.support.bench import Bench
from tests.support.servers import OwnRedis
from tests.support.worker import Worker

pytest_plugins = ["tests.support.fixtures"]

CONCURRENCY = 16
BEFORE, DURING = 200, 200
CLOSED_S = float(os.environ.get("HEADRACE_TEST_CLOSED_S", "4"))  # 15 in earnest


def rules() -> list[Rule]:
    """Calls of 0.1 to 0.4 s, one in ten of which fails at first."""
    return [
        Rule.model_validate({"name": "again", "match": {"share": 0.1, "first": 1}, "action": "server_error"}),
        Rule.model_validate({"name": "slow", "action": {"latency": {"uniform_ms": [100, 400]}}}),
    ]


def completed(counts: Counter[tuple[str, str]]) -> dict[str, int]:
    """How many completed results each id has."""
    return {request_id: n for (request_id, status), n in counts.items() if status == "completed"}


def settings_of(mine: Bench, stub: StubLLM) -> Settings:
    """Two workers share the work."""
    return mine.settings(stub.base_url, limits={"concurrency": CONCURRENCY})


@pytest.mark.parametrize("loss", ["emptied alive", "restarted empty", "restarted from an old snapshot"])
async def test_redis_loses_its_data_under_two_workers(mine: Bench, redis: OwnRedis, stub: StubLLM, loss: str) -> None:
    """What was completed before is restored, what is in flight is claimed again, copies of both are caught; no worker stops, no call is repeated."""
    old, new = [f"a{n:03}" for n in range(BEFORE)], [f"b{n:03}" for n in range(DURING)]
    stub.set_rules(rules())
    settings = settings_of(mine, stub)
    with Worker(settings, "main", "retry", closed_s=CLOSED_S) as first, Worker(settings, "main", "retry", closed_s=CLOSED_S) as second:
        for worker in (first, second):
            await worker.event("assigned", timeout_s=40)
        mine.ask(*old[: BEFORE // 2])
        await mine.finished(old[: BEFORE // 2], timeout_s=60)
        redis.save()
        mine.ask(*old[BEFORE // 2 :])
        await mine.finished(old, timeout_s=60)
        mine.ask(*new)
        await stub.wait_in_flight(CONCURRENCY)
        await asyncio.to_thread(lose, redis, loss)
        copies = [*old, *new]
        mine.ask(*copies)
        await mine.finished(copies, timeout_s=90)
        await mine.until("results", lambda seen: len(seen) >= 2 * len(copies), timeout_s=60)
        await mine.until_drained(timeout_s=60)
        counts = await mine.finished(copies)
        told = [name for worker in (first, second) for name, _ in worker.told]
        for worker in (first, second):
            worker.signal(signal.SIGTERM)
        assert [await worker.exit_code() for worker in (first, second)] == [0, 0]
    assert told.count("claims_reasserted") >= 2 + 2, "each at its start, and each after the loss"
    assert {"store_suspected", "store_lost", "restored", "admission_open"} <= set(told)
    assert completed(counts) == dict.fromkeys(copies, 1)
    assert sum(n for (_, status), n in counts.items() if status == "duplicate") == len(copies)
    needed = len(copies) + sum(entry.status == 500 for entry in stub.log)
    assert stub.total_calls == needed, f"{stub.total_calls - needed} calls repeated"


def lose(redis: OwnRedis, loss: str) -> None:
    """One of the three ways."""
    if loss == "emptied alive":
        redis.flush()
        return
    redis.kill()
    if loss == "restarted empty":
        redis.forget()
    redis.start()


async def test_copies_sent_while_nobody_works_on_an_emptied_redis(mine: Bench, redis: OwnRedis, stub: StubLLM) -> None:
    """The fleet is down, Redis is emptied, and copies of everything completed wait in the topic: the next worker restores first, and calls nobody."""
    ids = [f"r{n:03}" for n in range(150)]
    settings = settings_of(mine, stub)
    with Worker(settings, "main", closed_s=CLOSED_S) as worker:
        mine.ask(*ids)
        await mine.finished(ids, timeout_s=60)
        await mine.until_drained(["main"])
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
    redis.flush()
    mine.ask(*ids)
    with Worker(settings, "main", closed_s=CLOSED_S) as worker:
        await worker.event("store_lost", timeout_s=40)
        await mine.until_drained(["main"], timeout_s=60)
        counts = await mine.finished(ids)
        restored = await worker.event("restored")
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
    assert restored["ids"] == len(ids)
    assert counts == Counter({(i, s): 1 for i in ids for s in ("completed", "duplicate")})
    assert stub.total_calls == len(ids)


async def test_the_restoring_worker_is_killed_in_the_middle(mine: Bench, redis: OwnRedis, stub: StubLLM) -> None:
    """Whoever restores dies before it is done: the other takes its place, and admission opens with every mark there."""
    ids = [f"r{n:03}" for n in range(150)]
    settings = settings_of(mine, stub)
    with Worker(settings, "main", closed_s=CLOSED_S) as first, Worker(settings, "main", closed_s=CLOSED_S) as second:
        for worker in (first, second):
            await worker.event("assigned", timeout_s=40)
        mine.ask(*ids)
        await mine.finished(ids, timeout_s=60)
        await mine.until_drained(["main"])
        redis.flush()
        mine.ask(*ids)
        restoring, other = await who_restores((first, second))
        restoring.kill()
        await other.event("restored", timeout_s=40)
        await mine.until_drained(["main"], timeout_s=60)
        counts = await mine.finished(ids)
        other.signal(signal.SIGTERM)
        assert await other.exit_code() == 0
    assert counts == Counter({(i, s): 1 for i in ids for s in ("completed", "duplicate")})
    assert stub.total_calls == len(ids)


async def who_restores(workers: Sequence[Worker]) -> tuple[Worker, Worker]:
    """The one whose turn it is, and the other."""
    async with asyncio.timeout(40):
        while not any(worker.named("store_lost") for worker in workers):  # noqa: ASYNC110  two processes have no common signal
            await asyncio.sleep(0.02)
    first, second = workers
    return (first, second) if first.named("store_lost") else (second, first)

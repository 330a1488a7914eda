"""Redis frozen in the middle of work, copies submitted meanwhile, workers killed: at most one completed result an id."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter

from headrace.local.stub import Rule
from tests.support.audited import audited
from tests.support.bench import Bench
from tests.support.history import History
from tests.support.servers import OwnRedis
from tests.support.stub import PatientStub
from tests.support.worker import Worker

pytest_plugins = ["tests.support.fixtures"]

FROZEN_S = float(os.environ.get("HEADRACE_TEST_FROZEN_S", "8"))
RESTARTS = int(os.environ.get("HEADRACE_TEST_RESTARTS", "2"))


def slow(low: float, high: float) -> Rule:
    """Calls that take that long."""
    return Rule.model_validate({"name": "slow", "action": {"latency": {"uniform_ms": [low, high]}}})


def asked(bench: Bench, history: History, ids: list[str], partition: int = -1) -> None:
    """Ask for these, written down."""
    bench.ask(*ids, partition=partition)
    for request_id in ids:
        history.produced(request_id)


def completed(counts: Counter[tuple[str, str]]) -> dict[str, int]:
    """How many completed results each id has."""
    return {request_id: n for (request_id, status), n in counts.items() if status == "completed"}


async def test_redis_frozen_in_mid_load_with_copies_of_what_is_in_flight(mine: Bench, redis: OwnRedis, stub: PatientStub) -> None:
    """SIGSTOP of Redis for 8 s, copies of every id sent meanwhile to the other partition: one completed an id, one call an id, copies are told so."""
    history = History()
    ids = [f"r{number:03}" for number in range(300)]
    stub.set_rules([slow(100, 900)])
    asked(mine, history, ids, 0)
    settings = mine.settings(stub.base_url, limits={"concurrency": 64})
    with Worker(settings, "main", "retry") as worker:
        await stub.wait_calls(100)
        redis.freeze()
        asked(mine, history, ids, 1)
        await asyncio.sleep(FROZEN_S)
        redis.thaw()
        counts = await mine.finished(ids, timeout_s=40)
        await mine.until("results", lambda seen: len(seen) >= 2 * len(ids))
        await mine.until_drained(["main", "retry"])
        assert worker.named("store_unavailable"), "the freeze was noticed"
        assert worker.named("store_back")
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
    assert completed(counts) == dict.fromkeys(ids, 1)
    final = await mine.finished(ids)
    assert completed(final) == dict.fromkeys(ids, 1)
    assert sum(n for (_, status), n in final.items() if status == "duplicate") == len(ids)
    assert stub.calls == dict.fromkeys(ids, 1)
    await audited(mine, stub, history)


async def test_restarts_at_random_moments_with_copies(bench: Bench, stub: PatientStub) -> None:
    """Workers killed or asked to stop in turn, with copies and faults in the mix (field case 3): the sets are equal, calls within the bound."""
    history = History()
    chance = random.Random(3)
    ids = [f"r{number:04}" for number in range(250 * (RESTARTS + 1))]
    stub.set_rules([Rule.model_validate({"name": "again", "match": {"share": 0.1, "first": 1}, "action": "server_error"}), slow(5, 120)])
    settings = bench.settings(stub.base_url, grace_s=2, limits={"concurrency": 16, "unsettled_outcomes": 64})
    for round_ in range(RESTARTS):
        part = ids[250 * round_ : 250 * (round_ + 1)]
        called = stub.total_calls
        with Worker(settings, "main", "retry") as worker:
            asked(bench, history, part)
            asked(bench, history, chance.sample(part, 50))
            await stub.wait_calls(called + chance.randrange(20, 200))
            if chance.random() < 0.5:
                history.killed(calls_in_flight=2 * 16, unsettled=2 * 64)  # two lanes
                worker.kill()
            else:
                worker.signal(signal.SIGTERM)
                assert await worker.exit_code() == 0
    asked(bench, history, ids[250 * RESTARTS :])
    with Worker(settings, "main", "retry") as last:
        counts = await bench.finished(ids, timeout_s=60)
        await bench.until_drained(["main", "retry"], timeout_s=40)
        last.signal(signal.SIGTERM)
        assert await last.exit_code() == 0
    assert completed(counts) == dict.fromkeys(ids, 1)
    assert completed(await bench.finished(ids)) == dict.fromkeys(ids, 1)
    await audited(bench, stub, history)

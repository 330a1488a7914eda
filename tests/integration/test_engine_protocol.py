"""Group protocols and a broker that goes away: what a broker does not have is done without, what dies and comes back is waited for."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.local.stub import Rule, StubLLM
from tests.support.bench import Bench
from tests.support.engine import Engine
from tests.support.servers import OwnKafka, own_kafka

pytest_plugins = ["tests.support.fixtures"]

BROKER_KILLS = int(os.environ.get("HEADRACE_TEST_BROKER_KILLS", "1"))


@pytest.fixture
def own() -> Iterator[OwnKafka]:
    """Give a broker of this test's own."""
    with own_kafka() as server:
        yield server


def slow(low: float, high: float) -> Rule:
    """Calls that take that long."""
    return Rule.model_validate({"name": "slow", "action": {"latency": {"uniform_ms": [low, high]}}})


def far(bench: Bench, *ids: str, due_s: float) -> None:
    """Requests that come due later."""
    bench.ask(*ids, next_retry_at=time.time() + due_s)


async def test_a_broker_with_classic_groups_only(redis_url: str, namespace: str, stub: StubLLM) -> None:
    """`auto` against a broker without KIP-848: lanes and wheels take classic groups, say so, and work; so does a second worker."""
    with own_kafka(group_coordinator_rebalance_protocols="classic") as server:
        bench = Bench(server.bootstrap, redis_url, namespace)
        ids = [f"r{number:02}" for number in range(60)]
        stub.set_rules([Rule.model_validate({"name": "again", "match": {"share": 0.3, "first": 1}, "action": "server_error"})])
        async with Engine(bench.settings(stub.base_url), "main", "retry", "dlq") as first:
            bench.ask(*ids[:30])
            far(bench, "far", due_s=6)
            await bench.finished(ids[:30])
            async with Engine(bench.settings(stub.base_url), "main") as second:
                await second.until(lambda: any(e["partitions"] for e in second.named("assigned")), "partition for the second")
                bench.ask(*ids[30:])
                counts = await bench.finished([*ids, "far"])
                await bench.until_drained(["main", "retry"])
                await second.stop()
            await first.stop()
            spoken: dict[str, list[Any]] = {}
            for told in first.named("group_protocol"):
                spoken.setdefault(str(told["group"]), []).append(told["protocol"])
        bench.close()
    assert set(spoken) == {f"{namespace}.{lane}" for lane in ("main", "retry", "dlq", "wheels")}
    assert {protocols[-1] for protocols in spoken.values()} == {"classic"}
    assert counts == {(request_id, "completed"): 1 for request_id in [*ids, "far"]}


async def test_a_broker_killed_and_restarted_under_load(own: OwnKafka, redis_url: str, namespace: str, stub: StubLLM) -> None:
    """`kill -9` of the broker in mid-settle, away for seconds: it heals by itself, one result an id, no call repeated, lag 0."""
    bench = Bench(own.bootstrap, redis_url, namespace)
    ids = [f"r{number:04}" for number in range(1_000)]
    stub.set_rules([slow(5, 60)])
    bench.ask(*ids)
    settings = bench.settings(stub.base_url, limits={"concurrency": 16, "settle_interval_ms": 0})
    async with Engine(settings, "main", "retry") as engine:
        await stub.wait_calls(150)
        for _ in range(BROKER_KILLS):
            await asyncio.to_thread(own.kill)
            await asyncio.to_thread(own.restart)
        counts = await bench.finished(ids, timeout_s=90)
        await bench.until_drained(["main", "retry"], timeout_s=30)
        await engine.stop()
    bench.close()
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    assert stub.total_calls == len(ids), f"{stub.total_calls - len(ids)} calls repeated"

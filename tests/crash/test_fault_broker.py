"""A broker that dies, fills its disk, times transactions out or forgets producers: it heals by itself, nothing is lost, doubled or called again."""

from __future__ import annotations

import asyncio
import os
import random
import resource
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError

from headrace.config import Settings
from headrace.local.stub import StubLLM
from tests.support.bench import Bench
from tests.support.engine import Engine
from tests.support.faults import AGAIN, FAR_S, Asking, slow, until
from tests.support.proxy import END_TXN, Proxy
from tests.support.servers import OwnKafka, own_kafka

pytest_plugins = ["tests.support.fixtures"]

KILLS = int(os.environ.get("HEADRACE_TEST_BROKER_KILLS", "1"))
FULL = int(os.environ.get("HEADRACE_TEST_DISKS_FULL", "1"))
FORGET_MS = 3_000
pytestmark = pytest.mark.timeout(120 + 60 * max(KILLS, FULL))


@pytest.fixture(scope="module")
def own() -> Iterator[OwnKafka]:
    """Give a broker to be killed and started again, with small index files: they too are files that grow."""
    with own_kafka(log_index_size_max_bytes="65536") as server:
        yield server


@pytest.fixture(scope="module")
def impatient() -> Iterator[OwnKafka]:
    """Give a broker that ends late transactions at once, and forgets producers that are idle for three seconds."""
    with own_kafka(
        transaction_abort_timed_out_transaction_cleanup_interval_ms="200",
        transactional_id_expiration_ms=str(FORGET_MS),
        transaction_remove_expired_transaction_cleanup_interval_ms="200",
        producer_id_expiration_ms=str(FORGET_MS),
        producer_id_expiration_check_interval_ms="200",
    ) as server:
        yield server


@pytest.fixture
def bench(own: OwnKafka, redis_url: str, namespace: str) -> Iterator[Bench]:
    """Give topics on the broker that can be killed."""
    made = Bench(own.bootstrap, redis_url, namespace)
    yield made
    made.close()


@pytest.fixture
def forgotten(impatient: OwnKafka, redis_url: str, namespace: str) -> Iterator[Bench]:
    """Give topics on the broker that has no patience."""
    made = Bench(impatient.bootstrap, redis_url, namespace)
    yield made
    made.close()


def settings_of(bench: Bench, stub: StubLLM, **changes: Any) -> Settings:
    """Quick, small settles; the shortest transaction time-out."""
    limits = {"concurrency": 16, "settle_interval_ms": 0}
    return bench.settings(stub.base_url, limits=limits, kafka_settings={"transaction_timeout_ms": 2_000}, **changes)


@pytest.mark.long
async def test_killed_and_restarted_under_two_workers_retries_and_wheels(bench: Bench, own: OwnKafka, stub: StubLLM) -> None:
    """`kill -9` of the broker while two workers settle, retry and turn their wheels: one result an id, no call repeated, lag 0 everywhere."""
    chance = random.Random(5)
    stub.set_rules([AGAIN, slow(5, 60)])
    settings, asking = settings_of(bench, stub), Asking(bench, stub)
    async with Engine(settings, "main", "retry") as first, Engine(settings, "main", "retry") as second:
        for _ in range(KILLS):
            called = stub.total_calls
            await asking.ask(60, far_s=chance.uniform(4.5, 6))
            await asking.ask(200)
            await stub.wait_calls(called + chance.randrange(40, 160))
            await asyncio.to_thread(own.kill)
            await asyncio.sleep(chance.uniform(0, 1.5))
            await asyncio.to_thread(own.restart)
        await asking.settled()
        await asyncio.gather(first.stop(), second.stop())


@pytest.mark.long
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux limits the size of another process's files")
async def test_disk_full(bench: Bench, own: OwnKafka, stub: StubLLM) -> None:
    """The broker can write no further and ends, perhaps in mid-batch: it is told; with room again all is settled, once, and no call is repeated."""
    stub.set_rules([AGAIN, slow(5, 40)])
    asking = Asking(bench, stub)
    async with Engine(settings_of(bench, stub), "main", "retry") as engine:
        for _ in range(FULL):
            called, told = stub.total_calls, _troubles(engine)
            await asking.ask(300)
            await stub.wait_calls(called + 60)
            largest = max(path.stat().st_size for path in own.data.glob(f"{bench.namespace}-results-*/*.log"))
            own.fill_disk(largest + 10_000)
            await until(lambda: own.ended, "end of the broker")
            await until(lambda n=told: _troubles(engine) > n, "word of the trouble", 70)
            await asyncio.to_thread(own.restart)
        await asking.settled()
        await engine.stop()


def _troubles(engine: Engine) -> int:
    return sum(len(engine.named(name)) for name in ("settle_again", "kafka_unavailable", "source_error"))


async def test_transactions_timed_out_by_the_coordinator(forgotten: Bench, stub: StubLLM) -> None:
    """Three commits held up until the coordinator has ended their transaction: each time a new producer, under a name too; nothing lost or doubled."""
    stub.set_rules([AGAIN, slow(5, 60)])
    asking = Asking(forgotten, stub)
    async with Proxy(forgotten.kafka) as proxy:

        def freeze(api: int) -> bool:
            if api == END_TXN and proxy.client.endswith("main.settle"):
                proxy.cut_before = None
                proxy.freeze()
            return False

        async with Engine(settings_of(forgotten, stub, kafka=proxy.bootstrap, instance="same"), "main", "retry") as engine:
            for round_ in range(3):
                proxy.cut_before = freeze
                await asking.ask(60)
                await until(lambda: proxy.cut_before is None, "EndTxn")
                await asyncio.sleep(2.6)  # the time-out, and the coordinator's look at it: nothing tells of that
                proxy.thaw()
                await engine.event("producer_replaced", count=round_ + 1, timeout_s=30)
            await asking.settled()
            assert await engine.stop() == 0


async def test_producers_forgotten_while_idle(forgotten: Bench, stub: StubLLM) -> None:
    """Idle for longer than the broker keeps a transactional id (INVALID_PRODUCER_ID_MAPPING): lanes and wheels go on by themselves, twice."""
    lanes = ("main", "retry", "dlq", "later")
    stub.set_rules([AGAIN, slow(5, 20)])
    asking = Asking(forgotten, stub)
    async with Engine(settings_of(forgotten, stub, instance="same"), *lanes[:3]) as engine:
        for round_ in range(2):
            await asking.ask(30, far_s=FAR_S)
            await asking.ask(60)
            forgotten.send(b"\xff")  # the dlq lane writes nothing but offsets
            await asking.settled(lanes)
            await asyncio.sleep((FORGET_MS / 1000 + 1) * (1 - round_))  # nothing tells that the broker has forgotten
        assert await engine.stop() == 0
    lost = [event for event in engine.named("producer_replaced") if event["code"] == KafkaError.INVALID_PRODUCER_ID_MAPPING]
    assert {str(event["transactional_id"]).split(".")[1] for event in lost} == set(lanes[:3])

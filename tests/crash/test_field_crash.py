"""Faults seen in the field when workers end or stand still: in the middle of a transaction, with calls that outlive every grace."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.local.stub import Rule
from tests.support.audited import audited
from tests.support.bench import Bench
from tests.support.history import History
from tests.support.proxy import TXN_OFFSET_COMMIT, Proxy
from tests.support.servers import OwnKafka, own_kafka
from tests.support.stub import PatientStub
from tests.support.worker import Worker

pytest_plugins = ["tests.support.fixtures"]

CALL_S = float(os.environ.get("HEADRACE_TEST_LONG_CALL_S", "60"))
GRACE_S = float(os.environ.get("HEADRACE_TEST_SHORT_GRACE_S", "1"))
CONCURRENCY, UNSETTLED = 8, 16


@pytest.fixture(scope="module")
def broker() -> Iterator[OwnKafka]:
    """Give a broker that notices soon what is dead, members and transactions alike."""
    with own_kafka(
        group_consumer_min_session_timeout_ms="2000",
        group_consumer_session_timeout_ms="3000",
        group_consumer_min_heartbeat_interval_ms="500",
        group_consumer_heartbeat_interval_ms="500",
        transaction_abort_timed_out_transaction_cleanup_interval_ms="200",
    ) as server:
        yield server


@asynccontextmanager
async def bench_of(broker: OwnKafka, redis_url: str, name: str) -> AsyncIterator[Bench]:
    """Give topics of that broker."""
    bench = Bench(broker.bootstrap, redis_url, name)
    try:
        yield bench
    finally:
        bench.close()


def rule(name: str, action: Any, **match: Any) -> Rule:
    """A rule of the stub."""
    return Rule.model_validate({"name": name, "match": match, "action": action})


async def test_field_05_a_rebalance_in_the_middle_of_a_transaction(
    broker: OwnKafka, redis_url: str, namespace: str, stub: PatientStub
) -> None:
    """A worker stands still between the offsets of a transaction and its end until another has settled all: its commit is refused, one result an id."""
    ids = [f"r{number:03}" for number in range(160)]
    stub.set_rules([rule("slow", {"latency": {"fixed_ms": 60}})])
    history, frozen = History(), asyncio.Event()
    async with bench_of(broker, redis_url, namespace) as bench, Proxy(broker.bootstrap) as proxy:
        limits = {"concurrency": CONCURRENCY, "unsettled_outcomes": UNSETTLED, "settle_interval_ms": 0}
        changes: dict[str, Any] = {"limits": limits, "kafka_settings": {"transaction_timeout_ms": 2_000}}
        with Worker(bench.settings(stub.base_url, kafka=proxy.bootstrap, **changes), "main") as first:
            await first.event("reading", timeout_s=60)

            def freeze(api: int) -> bool:
                if api == TXN_OFFSET_COMMIT and stub.total_calls > 40 and not frozen.is_set():
                    first.signal(signal.SIGSTOP)
                    frozen.set()
                return False

            proxy.cut_before = freeze
            bench.ask(*ids)
            async with asyncio.timeout(40):
                await frozen.wait()
            history.killed(calls_in_flight=CONCURRENCY, unsettled=UNSETTLED + CONCURRENCY)
            with Worker(bench.settings(stub.base_url, **changes), "main") as second:
                await bench.finished(ids, timeout_s=60)
                first.signal(signal.SIGCONT)
                refused = await first.event("producer_replaced", timeout_s=40)
                assert "fenced" in refused["error"], "its commit is refused"
                bench.ask("after-0", partition=0)
                bench.ask("after-1", partition=1)
                counts = await bench.finished([*ids, "after-0", "after-1"], timeout_s=60)
                await bench.until_drained(["main"], timeout_s=30)
                for worker in (first, second):
                    worker.signal(signal.SIGTERM)
                assert [await worker.exit_code() for worker in (first, second)] == [0, 0]
        await audited(bench, stub, history, lanes=["main"])
    assert counts == {(request_id, "completed"): 1 for request_id in [*ids, "after-0", "after-1"]}


async def test_field_11_a_stop_is_never_worse_than_a_kill(broker: OwnKafka, redis_url: str, namespace: str) -> None:
    """Calls far longer than the grace, ended by SIGTERM here and by `kill -9` there: the same outcomes, the same calls, the same offsets."""
    ended = await asyncio.gather(
        *(_end_by(number, broker, redis_url, f"{namespace}-{number}") for number in (signal.SIGTERM, signal.SIGKILL))
    )
    assert ended[0] == ended[1]
    outcomes, calls, attempts, _ = ended[0]
    assert outcomes == {(request_id, "completed"): 1 for request_id in calls}
    assert {calls[f"long-{number}"] for number in range(10)} == {2}, "those that were cut off, and only they, are called again"
    assert {calls[f"short-{number}"] for number in range(10)} == {1}
    assert attempts == {1}, "being cut off spent no attempt"


Ended = tuple[Counter[tuple[str, str]], dict[str, int], set[int | None], dict[int, int]]


async def _end_by(number: int, broker: OwnKafka, redis_url: str, name: str) -> Ended:
    """Ten answers settled and ten calls under way, the signal, and a second worker that does the rest."""
    short, long = ([f"{kind}-{n}" for n in range(10)] for kind in ("short", "long"))
    async with PatientStub() as stub, bench_of(broker, redis_url, name) as bench:
        stub.set_rules([rule("long", {"latency": {"fixed_ms": 1_000 * CALL_S}}, request_ids=long)])
        for n, request_id in enumerate([*long, *short]):
            bench.ask(request_id, partition=n % 2)
        settings = bench.settings(stub.base_url, timeout_s=2 * CALL_S, grace_s=GRACE_S, limits={"concurrency": 20})
        with Worker(settings, "main") as first:
            await bench.finished(short, timeout_s=60)
            await stub.wait_in_flight(10)
            first.signal(number)
            assert await first.exit_code() == (0 if number == signal.SIGTERM else -number)
        stub.heal()
        with Worker(settings, "main") as second:
            await bench.finished([*short, *long], timeout_s=60)
            await bench.until_drained(["main"], timeout_s=30)
            second.signal(signal.SIGTERM)
            assert await second.exit_code() == 0
        history = History()
        history.killed(calls_in_flight=10, unsettled=0)
        await audited(bench, stub, history, lanes=["main"])
        outcomes = await bench.finished([*short, *long])
        offsets = {partition: at for partition, (at, _, _) in (await asyncio.to_thread(bench.standing, "main")).items()}
        return outcomes, stub.calls, {entry.attempt for entry in stub.log}, offsets

"""Workers that are killed, frozen or replaced, as processes of their own: one result for every id, and the promised bound on calls."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from headrace.local.stub import Latency, Rule
from tests.support.audited import audited
from tests.support.bench import Bench
from tests.support.history import History
from tests.support.servers import own_redis
from tests.support.stub import PatientStub
from tests.support.worker import Worker

pytest_plugins = ["tests.support.fixtures"]

HESITANT_S = 1.0  # beyond the store's patience with an answer; well within what a claim lives without a renewal
SESSION_S = 6.0  # what the local broker gives a KIP-848 member; a classic one has 10


def slow(ms: float) -> list[Rule]:
    """Every call takes that long."""
    return [Rule.model_validate({"name": "slow", "action": {"latency": Latency(fixed_ms=ms).model_dump()}})]


def asked(bench: Bench, history: History, ids: list[str]) -> None:
    """Ask for these, written down."""
    bench.ask(*ids)
    for request_id in ids:
        history.produced(request_id)


def _told(worker: Worker) -> dict[str, int]:
    return dict(Counter(name for name, _ in worker.told))


async def test_kill_9_with_64_calls_in_flight(bench: Bench, stub: PatientStub) -> None:
    """`kill -9` in mid-work, another worker started at once: one result an id, extra calls at most what was in flight or unsettled, lag 0."""
    stub.set_rules(slow(300))
    history = History()
    ids = [f"r{number:03}" for number in range(600)]
    asked(bench, history, ids)
    settings = bench.settings(stub.base_url, limits={"concurrency": 64, "unsettled_outcomes": 64})
    with Worker(settings, "main") as first:
        await stub.wait_calls(200)
        await stub.wait_in_flight(64)
        history.killed(calls_in_flight=64, unsettled=64)
        first.kill()
        killed_at = time.monotonic()
    called = stub.total_calls
    with Worker(settings, "main") as second:
        await stub.wait_calls(called + 1)
        recovery_s = time.monotonic() - killed_at
        counts = await bench.finished(ids, timeout_s=60)
        await bench.until_drained(["main"])
        second.signal(signal.SIGTERM)
        assert await second.exit_code() == 0
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    await audited(bench, stub, history, lanes=("main",))
    assert max(stub.calls.values()) <= 2
    assert recovery_s < SESSION_S + 20, f"recovery took {recovery_s:.1f} s"


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_a_worker_joins_and_the_first_leaves_with_200_calls_in_flight(bench: Bench, stub: PatientStub, protocol: str) -> None:
    """Partitions change hands twice under 200 calls in flight: no call is repeated, one result an id."""
    history = History()
    stub.set_rules(slow(4_000))
    ids = [f"r{number:03}" for number in range(400)]
    asked(bench, history, ids[:200])
    settings = bench.settings(
        stub.base_url, grace_s=20, timeout_s=20, limits={"concurrency": 200}, kafka_settings={"group_protocol": protocol}
    )
    with Worker(settings, "main") as first:
        await stub.wait_in_flight(200)
        with Worker(settings, "main") as second:
            await second.event("assigned", timeout_s=30)
            stub.set_rules(slow(500))
            asked(bench, history, ids[200:])
            await stub.wait_calls(300)
            first.signal(signal.SIGTERM)
            assert await first.exit_code() == 0
            await bench.finished(ids, timeout_s=60)
            await bench.until_drained(["main"])
            second.signal(signal.SIGTERM)
            assert await second.exit_code() == 0
    bench.read("results", wait_s=1)
    counts = await bench.finished(ids)  # once nothing can come any more
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    repeated = {request_id: count for request_id, count in stub.calls.items() if count > 1}
    assert not repeated, f"{len(repeated)} calls repeated; {_told(first)}; {_told(second)}"
    await audited(bench, stub, history, lanes=("main",))


async def test_redis_frozen_while_a_partition_changes_hands_and_its_old_owner_leaves(
    kafka: str, namespace: str, stub: PatientStub, tmp_path: Path
) -> None:
    """Calls end while their partition has gone and Redis does not answer, and their worker is told to stop: it hands them over all the same."""
    history = History()
    stub.set_rules(slow(5_000))
    ids = [f"r{number:03}" for number in range(100)]
    with own_redis(tmp_path) as redis, closing(Bench(kafka, redis.url, namespace)) as bench:
        asked(bench, history, ids)
        settings = bench.settings(stub.base_url, grace_s=20, timeout_s=20, limits={"concurrency": 100})
        with Worker(settings, "main") as first:
            await stub.wait_in_flight(100)
            with Worker(settings, "main") as second:
                await second.event("assigned", timeout_s=30)
                redis.freeze()
                first.signal(signal.SIGTERM)
                await stub.wait_in_flight(0)
                await asyncio.sleep(HESITANT_S)
                redis.thaw()
                assert await first.exit_code() == 0
                assert first.named("handed_over"), first.account
                await bench.finished(ids, timeout_s=60)
                await bench.until_drained(["main"])
                second.signal(signal.SIGTERM)
                assert await second.exit_code() == 0
        repeated = {request_id: count for request_id, count in stub.calls.items() if count > 1}
        assert not repeated, f"{len(repeated)} calls repeated; {_told(first)}; {_told(second)}"
        await audited(bench, stub, history, lanes=("main",))


async def test_an_answer_handed_over_is_settled_by_the_new_owner_without_a_call(bench: Bench, stub: PatientStub) -> None:
    """Calls that outlive their partition's ownership: their answers go through Redis, and the new owner settles them, calling nobody."""
    history = History()
    stub.set_rules(slow(5_000))
    ids = [f"r{number:02}" for number in range(40)]
    asked(bench, history, ids)
    settings = bench.settings(stub.base_url, grace_s=20, timeout_s=20)
    with Worker(settings, "main") as first, Worker(settings, "main") as second:
        await stub.wait_in_flight(40)
        counts = await bench.finished(ids, timeout_s=60)
        await bench.until_drained(["main"])
        for worker in (first, second):
            worker.signal(signal.SIGTERM)
        assert [await worker.exit_code() for worker in (first, second)] == [0, 0]
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    assert set(stub.calls.values()) == {1}
    await audited(bench, stub, history, lanes=("main",))


async def test_a_rival_of_the_same_name_stops_the_older_with_the_remedy(bench: Bench, stub: PatientStub) -> None:
    """Two processes under one HEADRACE_INSTANCE: the older ends with exit 5 and says what to do; the younger settles everything, once."""
    stub.set_rules(slow(20))
    settings = bench.settings(stub.base_url, instance="same", limits={"concurrency": 4, "unsettled_outcomes": 16})
    history = History()
    ids: list[str] = []
    with Worker(settings, "main") as first:
        await first.event("assigned")
        with Worker(settings, "main") as second:
            await second.event("assigned", timeout_s=30)
            while first.process.poll() is None and second.process.poll() is None and len(ids) < 4_000:
                more = [f"r{len(ids) + number}" for number in range(20)]
                ids += more
                asked(bench, history, more)
                await asyncio.sleep(0.2)
            codes = {worker.process.poll() for worker in (first, second)}
            assert codes == {5, None}, f"{codes}; {first.said[-1500:]}; {second.said[-1500:]}"
            history.killed(calls_in_flight=2 * 4, unsettled=settings.limits.unsettled_outcomes)  # the older cannot settle any more
            loser, winner = (first, second) if second.process.poll() is None else (second, first)
            assert "HEADRACE_INSTANCE" in loser.said
            counts = await bench.finished(ids, timeout_s=60)
            winner.signal(signal.SIGTERM)
            assert await winner.exit_code() == 0
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    await audited(bench, stub, history)


async def test_frozen_beyond_the_transaction_time_out(bench: Bench, stub: PatientStub) -> None:
    """SIGSTOP for longer than the transaction and session time-outs in the middle of settles, then SIGCONT: it heals by itself, nothing doubled."""
    history = History()
    stub.set_rules(slow(10))
    ids = [f"r{number:04}" for number in range(1_500)]
    asked(bench, history, ids)
    settings = bench.settings(
        stub.base_url, timeout_s=40, limits={"concurrency": 16, "settle_interval_ms": 0}, kafka_settings={"transaction_timeout_ms": 3_000}
    )
    with Worker(settings, "main") as worker:
        await stub.wait_calls(300)
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(9)
        worker.signal(signal.SIGCONT)
        counts = await bench.finished(ids, timeout_s=60)
        await bench.until_drained(["main"], timeout_s=30)
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    history.killed(calls_in_flight=16, unsettled=16)
    await audited(bench, stub, history, lanes=("main",))

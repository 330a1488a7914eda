"""Flow control on a real broker: what is read ahead is bounded, a stuck head holds its window, pauses lose nothing, a full lane answers."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from headrace import lane, process
from headrace.flow import Flow
from headrace.lane import RunningLane
from headrace.local.stub import Rule, StubLLM
from headrace.source import BATCH
from tests.support.bench import Bench
from tests.support.engine import Engine
from tests.support.servers import own_redis
from tests.support.worker import Worker

pytest_plugins = ["tests.support.fixtures"]

CLIENT_BYTES = 16_384 << 10  # what the consumer's own queue may hold: it is read at once when the lane has room


def slow(ms: float, **match: object) -> Rule:
    """Calls that take that long."""
    return Rule.model_validate({"name": "slow", "match": match, "action": {"latency": {"fixed_ms": ms}}})


async def quiet(stub: StubLLM, for_s: float = 1.0) -> int:
    """Once no call came for that long: how many there were."""
    deadline, seen = time.monotonic() + 20, -1
    while seen != stub.total_calls:
        assert time.monotonic() < deadline, "calls go on"
        seen = stub.total_calls
        await asyncio.sleep(for_s)
    return seen


class Watched(Flow):
    """Notes the most it ever held."""

    most = (0, 0)

    def take(self, records: int, size: int) -> None:
        super().take(records, size)
        Watched.most = (max(self.records, Watched.most[0]), max(self.bytes, Watched.most[1]))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    """Watch what the lanes hold."""
    monkeypatch.setattr(lane, "Flow", Watched)
    Watched.most = (0, 0)
    return Watched


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> list[RunningLane]:
    """Give the lanes that are built from now on."""
    built: list[RunningLane] = []

    class Noted(RunningLane):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]  # passed on as they come
            built.append(self)

    monkeypatch.setattr(process, "RunningLane", Noted)
    return built


async def test_read_ahead_is_bounded_in_records(bench: Bench, stub: StubLLM, watched: type[Watched]) -> None:
    """3,000 records before a slow model, room for 100: the lane never holds more than its room and one batch, and all complete."""
    ids = [f"r{number:04}" for number in range(3_000)]
    bench.ask(*ids)
    stub.set_rules([slow(50)])
    async with Engine(bench.settings(stub.base_url, limits={"concurrency": 50, "read_ahead_records": 100}), "main") as engine:
        await stub.wait_calls(500)
        stub.heal()
        counts = await bench.finished(ids)
        await bench.until_drained(["main"])
        await engine.stop()
    assert watched.most[0] <= 100 + BATCH
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    assert stub.total_calls == len(ids)


async def test_read_ahead_is_bounded_in_bytes(bench: Bench, stub: StubLLM, watched: type[Watched]) -> None:
    """30 MB of requests, room for 1 MiB: the lane never holds more than that and what the client had fetched; all complete."""
    ids = [f"r{number:03}" for number in range(60)]
    for request_id in ids:
        bench.ask(request_id, prompt="x" * 500_000)
    stub.set_rules([slow(100)])
    settings = bench.settings(stub.base_url, limits={"concurrency": 4, "read_ahead_bytes": 1 << 20})
    async with Engine(settings, "main") as engine:
        await stub.wait_calls(20)
        stub.heal()
        counts = await bench.finished(ids)
        await engine.stop()
    assert watched.most[1] <= (1 << 20) + CLIENT_BYTES + (1 << 20), "a fetch that was under way adds one partition's share"
    assert counts == {(request_id, "completed"): 1 for request_id in ids}


async def test_a_stuck_head_holds_its_window_and_nothing_is_skipped(bench: Bench, stub: StubLLM) -> None:
    """A head that hangs, a window of 100, 500 behind it: the first 99 of them complete, the rest waits; released, each is called once."""
    ids = ["head", *(f"r{number:03}" for number in range(500))]
    bench.ask(*ids, partition=0)
    bench.ask("neighbour", partition=1)
    stub.set_rules([slow(6_000, request_ids=["head"])])
    async with Engine(bench.settings(stub.base_url, timeout_s=20, limits={"window": 100, "read_ahead_records": 1_000}), "main") as engine:
        await bench.finished([*ids[1:100], "neighbour"])
        assert await quiet(stub) == 101
        assert (await asyncio.to_thread(bench.standing, "main"))[0][0] in (-1001, 0), "the offset stays at the head"
        counts = await bench.finished([*ids, "neighbour"])
        await bench.until_drained(["main"])
        await engine.stop()
    assert counts == {(request_id, "completed"): 1 for request_id in [*ids, "neighbour"]}
    assert stub.calls == dict.fromkeys([*ids, "neighbour"], 1)


async def test_behind_a_stuck_head_a_kill_with_redis_empty_repeats_only_the_head(
    kafka: str, namespace: str, stub: StubLLM, tmp_path: Path
) -> None:
    """`kill -9` while the window is held, and Redis emptied: the map alone tells what was done; only the head is called again."""
    ids = ["head", *(f"r{number:03}" for number in range(500))]
    with own_redis(tmp_path) as redis:
        bench = Bench(kafka, redis.url, namespace)
        try:
            bench.ask(*ids, partition=0)
            stub.set_rules([slow(60_000, request_ids=["head"])])
            settings = bench.settings(stub.base_url, timeout_s=90, limits={"window": 100, "read_ahead_records": 1_000})
            with Worker(settings, "main") as first:
                await bench.finished(ids[1:100])
                assert await quiet(stub) == 100
                first.kill()
            redis.flush()
            stub.heal()
            async with Engine(settings, "main") as second:
                counts = await bench.finished(ids)
                await bench.until_drained(["main"])
                await second.stop()
        finally:
            bench.close()
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    assert stub.calls == dict.fromkeys(ids, 1) | {"head": 2}


async def test_fifty_pauses_lose_and_repeat_nothing(bench: Bench, stub: StubLLM, running: list[RunningLane]) -> None:
    """Reading is paused and resumed 50 times at random moments (field case 8) while 4,000 records go through: each is called once."""
    chance = random.Random(8)
    ids = [f"r{number:04}" for number in range(4_000)]
    bench.ask(*ids[:2_000])
    stub.set_rules([slow(20)])
    settings = bench.settings(stub.base_url, limits={"concurrency": 32, "read_ahead_records": 100})
    async with Engine(settings, "main") as engine:
        source = running[0].source
        for number in range(50):
            source.hold("a test")
            await asyncio.sleep(chance.uniform(0.01, 0.12))
            source.unhold("a test")
            await asyncio.sleep(chance.uniform(0.01, 0.12))
            bench.ask(*ids[2_000 + 40 * number : 2_040 + 40 * number])
        stub.heal()
        counts = await bench.finished(ids)
        await bench.until_drained(["main"])
        await engine.stop()
        assert len(engine.named("lane_paused")) >= 50
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    assert stub.calls == dict.fromkeys(ids, 1)


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
async def test_a_lane_whose_read_ahead_is_full_still_answers_a_rebalance(bench: Bench, stub: StubLLM, protocol: str) -> None:
    """Room for 10 records, all taken by slow calls: another worker still gets its partition, nobody is thrown out, no call is repeated."""
    ids = [f"r{number:03}" for number in range(200)]
    bench.ask(*ids)
    stub.set_rules([slow(6_000)])
    settings = bench.settings(
        stub.base_url,
        timeout_s=20,
        limits={"concurrency": 5, "read_ahead_records": 10},
        kafka_settings={"group_protocol": protocol, "max_poll_interval_ms": 10_000},
    )
    async with Engine(settings, "main") as first:
        await stub.wait_in_flight(5)
        async with Engine(settings, "main") as second:
            await second.until(lambda: any(e["partitions"] for e in second.named("assigned")), "partition for the second", 20)
            stub.heal()
            counts = await bench.finished(ids, timeout_s=40)
            await bench.until_drained(["main"])
            await second.stop()
        await first.stop()
        assert not first.named("partition_lost")
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    assert stub.calls == dict.fromkeys(ids, 1)

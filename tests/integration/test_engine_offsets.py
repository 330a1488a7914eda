"""Committed offsets on a real broker: lag reads 0, never beyond the log; resets by an operator and deleted records are taken as they come."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from headrace.local.stub import Rule, StubLLM
from tests.support.bench import Bench, parsed
from tests.support.engine import Engine

pytest_plugins = ["tests.support.fixtures"]

IDS = [f"r{number:03}" for number in range(100)]


def rule(name: str, action: Any, **match: Any) -> Rule:
    """A rule of the stub."""
    return Rule.model_validate({"name": name, "match": match, "action": action})


def reset(bench: Bench, offset: int, metadata: str = "") -> None:
    """What `kafka-consumer-groups --reset-offsets` does to main's partition 0."""
    wanted = [TopicPartition(bench.names.main, 0, offset, metadata)]
    group = f"{bench.namespace}.main"
    future = bench.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])[group]
    assert all(tp.error is None for tp in future.result(10).topic_partitions)


def delete_below(bench: Bench, partition: int, offset: int) -> None:
    """Delete the records below an offset of main."""
    for future in bench.admin.delete_records([TopicPartition(bench.names.main, partition, offset)]).values():
        future.result(10)


async def settle_all(bench: Bench, stub: StubLLM) -> None:
    """One worker handles IDS in partition 0, and stops."""
    bench.ask(*IDS, partition=0)
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        await bench.finished(IDS)
        await bench.until_drained(["main"])
        await engine.stop()


async def test_lag_is_exactly_0_in_all_three_lanes(bench: Bench, stub: StubLLM) -> None:
    """Successes, retries, dead letters and garbage: with everything settled each lane's committed offset is its log's end, markers included."""
    stub.set_rules([rule("again", "server_error", share=0.3, first=2), rule("never", "invalid_request", share=0.2)])
    for number in range(30):
        bench.send(b"\xff\xfe%d" % number)
    bench.ask(*IDS)
    async with Engine(bench.settings(stub.base_url), "main", "retry", "dlq") as engine:
        await bench.finished(IDS)
        await bench.until_drained(["main", "retry", "dlq"])
        assert bench.standing("dlq")[0][2] > 30, "there were dead letters"
        assert sum(end for _, _, end in bench.standing("retry").values()) > 0, "there were retries"
        await engine.stop()
    await bench.until_drained(["main", "retry", "dlq"], timeout_s=0.5)


async def test_idle_partitions_and_rebalances_never_commit_beyond_the_end(bench: Bench, stub: StubLLM) -> None:
    """Four joins and leaves over a topic of which one partition is empty (field case 4): committed stays within the log, nothing is read again."""
    bench.ask(*IDS[:10], partition=0)
    settings = bench.settings(stub.base_url)
    async with Engine(settings, "main") as first:
        await bench.finished(IDS[:10])
        for _ in range(4):
            async with Engine(settings, "main") as second:
                await second.event("assigned")
                await second.stop()
            assert all(at <= end for at, _, end in (await asyncio.to_thread(bench.standing, "main")).values())
        await bench.until_drained(["main"])
        await first.stop()
    assert stub.total_calls == 10


@pytest.mark.parametrize("metadata", ["", "reset by ops, ticket 4711 ✓", "1.AAAAAAAA.1.5.bAAAA.00000000"])
async def test_a_reset_to_the_beginning_repeats_no_call(bench: Bench, stub: StubLLM, metadata: str) -> None:
    """An operator sets the group back to 0, with a string of his own as metadata or a forged map: all is read again, and told as duplicates."""
    await settle_all(bench, stub)
    reset(bench, 0, metadata)
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        seen = await bench.until("results", 200)
        await bench.until_drained(["main"])
        await engine.stop()
    by_status = sorted(parsed(m)["status"] for m in seen)
    assert by_status == ["completed"] * 100 + ["duplicate"] * 100
    assert stub.calls == dict.fromkeys(IDS, 1)


async def test_a_reset_to_the_end_is_honoured(bench: Bench, stub: StubLLM) -> None:
    """An operator skips 100 unread records: none of them is called, what comes after them is."""
    bench.ask(*IDS, partition=0)
    reset(bench, 100, "skipped")
    bench.ask("after", partition=0)
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        await bench.finished(["after"])
        await bench.until_drained(["main"])
        await engine.stop()
    assert stub.calls == {"after": 1}


async def test_a_reset_beyond_the_end_is_told_and_starts_over(bench: Bench, stub: StubLLM) -> None:
    """A committed offset the log does not have: told, read from the beginning, no call repeated, and the lane goes on."""
    await settle_all(bench, stub)
    reset(bench, 5_000)
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        await engine.event("records_lost")
        bench.ask("after", partition=0)
        await bench.finished(["after"])
        await bench.until_drained(["main"])
        await engine.stop()
    assert stub.calls == dict.fromkeys([*IDS, "after"], 1)


async def test_records_deleted_below_the_frontier_while_down_are_told(bench: Bench, stub: StubLLM) -> None:
    """40 of 100 unread records deleted while no worker ran: told with their number; the other 60 complete, lag 0."""
    bench.ask("first", partition=0)
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        await bench.finished(["first"])
        await bench.until_drained(["main"])
        await engine.stop()
    bench.ask(*IDS, partition=0)
    delete_below(bench, 0, 41)
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        lost = await engine.event("records_lost")
        await bench.finished(IDS[40:])
        await bench.until_drained(["main"])
        await engine.stop()
    assert lost["records"] == 40
    assert stub.calls == dict.fromkeys(["first", *IDS[40:]], 1)


async def test_records_deleted_under_a_running_lane_do_not_stop_it(bench: Bench, stub: StubLLM) -> None:
    """Records in flight and read ahead are deleted: they complete all the same, and so does what comes after them."""
    stub.set_rules([rule("slow", {"latency": {"fixed_ms": 1_500}})])
    bench.ask(*IDS[:20], partition=0)
    async with Engine(bench.settings(stub.base_url, limits={"concurrency": 10}), "main") as engine:
        await stub.wait_in_flight(10)
        delete_below(bench, 0, 20)
        bench.ask(*IDS[20:30], partition=0)
        counts = await bench.finished(IDS[:30])
        await bench.until_drained(["main"])
        await engine.stop()
    assert counts == {(request_id, "completed"): 1 for request_id in IDS[:30]}


async def test_records_deleted_unread_under_a_running_lane_are_told(bench: Bench, stub: StubLLM) -> None:
    """A lane held by its window while what it has not read is deleted: it goes on behind the hole, and says how many are lost."""
    stub.set_rules([rule("head", {"latency": {"fixed_ms": 4_000}}, request_ids=["head"])])
    ids = [f"n{number:04}" for number in range(3_000)]
    bench.ask("head", *ids, partition=0)
    async with Engine(bench.settings(stub.base_url, limits={"window": 100}), "main") as engine:
        await bench.finished(ids[:99])
        await asyncio.to_thread(delete_below, bench, 0, 2_500)
        await bench.finished(["head", *ids[2_499:]])
        await bench.until_drained(["main"])
        lost = await engine.event("records_lost", timeout_s=5)
        await engine.stop()
    read = len(stub.calls)
    assert lost["records"] == len(ids) + 1 - read, "what was read before is not lost"
    assert set(stub.calls.values()) == {1}


async def test_of_what_is_deleted_only_the_unsettled_counts_as_lost(bench: Bench, stub: StubLLM) -> None:
    """A stuck head with 99 settled behind it, all of it deleted while no worker runs: one record is lost, not a hundred."""
    stub.set_rules([rule("head", {"latency": {"fixed_ms": 60_000}}, request_ids=["head"])])
    bench.ask("head", *IDS[1:], partition=0)
    settings = bench.settings(stub.base_url, grace_s=0.1, timeout_s=90)
    async with Engine(settings, "main") as engine:
        await bench.finished(IDS[1:])
        await engine.stop()
    delete_below(bench, 0, 100)
    bench.ask("after", partition=0)
    async with Engine(settings, "main") as engine:
        lost = await engine.event("records_lost")
        await bench.finished(["after"])
        await bench.until_drained(["main"])
        await engine.stop()
    assert lost["records"] == 1


async def test_a_topic_gains_partitions_under_a_running_lane(bench: Bench, stub: StubLLM) -> None:
    """Two partitions more while a worker runs: it reads them from their beginning, without a restart."""
    config = {"kafka_settings": {"config": {"topic.metadata.refresh.interval.ms": 1_000}}}
    async with Engine(bench.settings(stub.base_url, **config), "main") as engine:
        bench.ask(*IDS[:10])
        await bench.finished(IDS[:10])
        for future in bench.admin.create_partitions([NewPartitions(bench.names.main, 4)]).values():
            future.result(10)
        bench.producer = Producer({"bootstrap.servers": bench.kafka})  # the old one learns of them only after minutes
        for partition in (2, 3):
            bench.ask(*IDS[10 * partition : 10 * partition + 10], partition=partition)
        await bench.finished(IDS[20:40], timeout_s=45)
        await engine.stop()
    assert set(stub.calls.values()) == {1}

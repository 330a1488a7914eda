"""Faults seen in the field between consumer, transactions and Redis: long calls, a retry topic that refuses, scripts forgotten, eviction."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest
import redis.asyncio as aredis
from confluent_kafka.admin import AclBinding, AclBindingFilter, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from headrace.config import Settings
from headrace.errors import ConfigError
from headrace.instrument.events import LEVELS
from headrace.local.stub import Rule, StubLLM
from tests.support.bench import Bench, parsed
from tests.support.engine import Engine
from tests.support.servers import OwnRedis, own_kafka

pytest_plugins = ["tests.support.fixtures"]

POLL_S = float(os.environ.get("HEADRACE_TEST_POLL_S", "3"))  # max.poll.interval.ms; from 10 on for classic groups too
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PROTOCOLS = ["consumer", "classic"] if POLL_S >= 10 else ["consumer"]


def rule(name: str, action: Any, **match: Any) -> Rule:
    """A rule of the stub."""
    return Rule.model_validate({"name": name, "match": match, "action": action})


def polled_within(settings: Settings, seconds: float) -> Settings:
    """A shorter max.poll.interval.ms than users may have."""
    return settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"max_poll_interval_ms": int(seconds * 1000)})})


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_field_01_calls_longer_than_the_poll_interval(bench: Bench, stub: StubLLM, protocol: str) -> None:
    """Calls of three times max.poll.interval.ms under two workers: nobody is thrown out, no rebalance, one call and one result an id."""
    stub.set_rules([rule("slow", {"latency": {"fixed_ms": 3_000 * POLL_S}})])
    settings = bench.settings(
        stub.base_url,
        timeout_s=6 * POLL_S,
        grace_s=6 * POLL_S,
        limits={"concurrency": 5, "read_ahead_records": 10},
        kafka_settings={"group_protocol": protocol},
    )
    settings = polled_within(settings, POLL_S)
    ids = [f"r{number}" for number in range(10)]
    async with Engine(settings, "main") as first:
        await first.event("reading", timeout_s=60)
        async with Engine(settings, "main") as second:
            await second.event("reading", timeout_s=60)
            await first.until(lambda: any(event["partitions"] for event in first.named("revoked")), "partition that moves", 60)
            before = [_changes(engine) for engine in (first, second)]
            for partition in (0, 1):
                bench.ask(*ids[5 * partition : 5 * partition + 5], partition=partition)
            await stub.wait_in_flight(10)
            counts = await bench.finished(ids, timeout_s=60 + 3 * POLL_S)
            await bench.until_drained(["main"])
            assert [_changes(engine) for engine in (first, second)] == before, "no rebalance"
            await second.stop()
        await first.stop()
        assert not first.named("source_error")
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    assert stub.calls == dict.fromkeys(ids, 1)


def _changes(engine: Engine) -> int:
    """How often this worker's partitions changed."""
    return sum(bool(event["partitions"]) for name in ("assigned", "revoked", "partition_lost") for event in engine.named(name))


def _writing_denied(bench: Bench, topic: str) -> list[AclBinding]:
    """Everything else stays allowed: one rule for a topic ends what is allowed where there is none."""
    who = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*")
    return [AclBinding(*who, AclOperation.ALL, AclPermissionType.ALLOW), AclBinding(*who, AclOperation.WRITE, AclPermissionType.DENY)]


async def test_field_17_a_retry_topic_that_refuses(redis_url: str, namespace: str, stub: StubLLM) -> None:
    """Writing to the retry topic is denied: the failed call's offset stays and it is told, others complete; allowed again, it is settled without a call."""
    stub.set_rules([rule("fails", "server_error", request_ids=["bad"], first=1)])
    with own_kafka(authorizer_class_name=AUTHORIZER, allow_everyone_if_no_acl_found="true") as broker:
        bench = Bench(broker.bootstrap, redis_url, namespace)
        denied = _writing_denied(bench, bench.names.retry)
        async with Engine(bench.settings(stub.base_url), "main") as engine:
            bench.ask("before", partition=0)
            await bench.finished(["before"])
            _all_done(bench.admin.create_acls(denied))
            bench.ask("bad", "good", partition=0)
            bench.ask("other", partition=1)
            blocked = await engine.event("settle_blocked", timeout_s=60)
            await bench.finished(["good", "other"], timeout_s=60)
            assert str(blocked["position"]) == f"{bench.names.main}/0/1"
            assert (await asyncio.to_thread(bench.standing, "main"))[0][0] == 1, "the offset stays at the one held back"
            assert LEVELS["settle_blocked"] == "error", "loud enough to be an alert"
            _all_done(bench.admin.delete_acls([AclBindingFilter(*_fields(rule)) for rule in denied]))
            await bench.until_drained(["main"], timeout_s=40)
            await engine.stop()
        (retry,) = bench.read("retry", wait_s=1)
        bench.close()
    assert parsed(retry)["request_id"] == "bad"
    assert stub.calls == dict.fromkeys(["before", "bad", "good", "other"], 1)


def _fields(found: AclBinding) -> tuple[Any, ...]:
    return (found.restype, found.name, found.resource_pattern_type, found.principal, found.host, found.operation, found.permission_type)


def _all_done(futures: Mapping[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(10)


async def test_field_23_scripts_flushed_under_load(mine: Bench, redis: OwnRedis, stub: StubLLM) -> None:
    """SCRIPT FLUSH over and over while claims are made, kept, marked and shared: no request fails, none waits for a Redis that is there."""
    ids = [f"r{number:04}" for number in range(1_500)]
    stub.set_rules([rule("again", "server_error", share=0.1, first=1), rule("slow", {"latency": {"uniform_ms": [5, 100]}})])
    flushes, done = 0, asyncio.Event()

    async def flush() -> None:
        nonlocal flushes
        async with aredis.Redis.from_url(redis.url) as client:
            while not done.is_set():
                await client.script_flush()
                flushes += 1
                await asyncio.sleep(0.003)

    flusher = asyncio.create_task(flush())
    async with Engine(mine.settings(stub.base_url)) as engine:
        mine.ask(*ids)
        counts = await mine.finished(ids, timeout_s=60)
        await mine.until_drained(timeout_s=30)
        mine.ask(*ids[:100])
        seen = await mine.until("results", lambda seen: len(seen) >= len(ids) + 100)
        done.set()
        await flusher
        await engine.stop()
        trouble = [name for name, _ in engine.told if name.startswith(("store_", "mark_failed", "marks_", "claim_lost", "pauses_not"))]
    assert flushes > 50, "there was something to forget"
    assert trouble == []
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    failures = sum(entry.status == 500 for entry in stub.log)
    assert Counter(r["status"] for r in map(parsed, seen)) == {"completed": len(ids), "duplicate": 100}, "each mark was made"
    assert 0 < failures == stub.total_calls - len(ids)


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-ttl"])
async def test_field_24_a_redis_that_evicts_is_refused(mine: Bench, redis: OwnRedis, stub: StubLLM, policy: str) -> None:
    """A real Redis that may evict claims: the worker does not start, reads nothing, and says what to set."""
    async with aredis.Redis.from_url(redis.url) as client:
        await client.config_set("maxmemory-policy", policy)
    mine.ask("r")
    with pytest.raises(ConfigError) as refused:
        async with Engine(mine.settings(stub.base_url), "main"):
            raise AssertionError("it started")
    assert "noeviction" in str(refused.value)
    assert policy in str(refused.value)
    assert stub.total_calls == 0
    assert (await asyncio.to_thread(mine.standing, "main"))[0][0] < 0, "nothing was committed"

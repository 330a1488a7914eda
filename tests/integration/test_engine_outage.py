"""Refused outputs, topics that vanish, a broker that is cut off, targets that are shut: what waits, what ends, what heals."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import replace

import orjson
import pytest

from headrace import topics
from headrace.local.stub import Rule, StubLLM
from headrace.topics.drift import fit
from tests.support.bench import Bench, headers_of, parsed
from tests.support.engine import Engine
from tests.support.proxy import END_TXN, Proxy

pytest_plugins = ["tests.support.fixtures"]

MAIN, WIDER, RESULTS = 150_000, 150_000 + 65_536, 250_000


@pytest.fixture
def small(kafka: str, redis_url: str, namespace: str) -> object:
    """Give a bench whose topics take little."""
    made = Bench(kafka, redis_url, namespace, sizes={"main": MAIN, "retry": WIDER, "later": WIDER, "dlq": WIDER, "results": RESULTS})
    yield made
    made.close()


def rule(name: str, action: object, **match: object) -> Rule:
    """A rule of the stub."""
    return Rule.model_validate({"name": name, "match": match, "action": action})


async def test_an_answer_larger_than_its_topic_is_one_dead_letter(small: Bench, stub: StubLLM) -> None:
    """An answer over the results topic's limit among forty small ones of the same batches: dead as too_large, called once; the others complete."""
    stub.set_rules([rule("big", {"body": orjson.dumps(_chat(random.Random(3).randbytes(400_000).hex())).decode()}, request_ids=["big"])])
    ids = [f"r{number}" for number in range(40)]
    small.ask(*ids[:20], "big", *ids[20:], partition=0)
    async with Engine(small.settings(stub.base_url), "main") as engine:
        counts = await small.finished(["big", *ids])
        await small.until_drained(["main"])
        await engine.stop()
    assert counts == {(request_id, "completed"): 1 for request_id in ids} | {("big", "failed"): 1}
    (dead,) = small.read("dlq")
    assert headers_of(dead)["headrace_error_class"] == "too_large"
    assert stub.calls == dict.fromkeys(["big", *ids], 1)


async def test_an_answer_that_only_compression_lets_through_is_a_result(small: Bench, stub: StubLLM) -> None:
    """An answer over the limit as it is, and under it compressed: the broker decides, it is completed."""
    stub.set_rules([rule("wide", {"body": orjson.dumps(_chat("x" * 400_000)).decode()}, request_ids=["wide"])])
    small.ask("wide", "r")
    async with Engine(small.settings(stub.base_url), "main") as engine:
        counts = await small.finished(["wide", "r"])
        await engine.stop()
    assert counts == {("wide", "completed"): 1, ("r", "completed"): 1}


def _chat(text: str) -> dict[str, object]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


async def test_a_request_at_the_limit_fits_the_dead_letters_whole(small: Bench, stub: StubLLM) -> None:
    """Random bytes that fill main's limit: the dead letter has them all, and its headers besides."""
    value = random.Random(1).randbytes(MAIN - 200)
    small.send(value, key=b"k")
    small.flush()
    async with Engine(small.settings(stub.base_url), "main") as engine:
        (dead,) = await small.until("dlq", 1)
        await engine.stop()
    assert dead.value() == value


async def test_a_dead_letter_that_fits_no_topic_is_cut_and_flagged(small: Bench, stub: StubLLM) -> None:
    """Main takes more than the dead letters do (someone raised it while the worker ran): the value is cut, flagged, its origin named; neighbours go on."""
    async with Engine(small.settings(stub.base_url), "main") as engine:
        _limit(small, small.names.main, 1_000_000)
        value = random.Random(2).randbytes(600_000)
        small.send(value, key=b"k" * 2_000, headers=[("h", b"v" * 1_000)], partition=0)
        small.ask("next", partition=0)
        (dead,) = await small.until("dlq", 1)
        await small.finished(["next"])
        await small.until_drained(["main"])
        await engine.stop()
    said = headers_of(dead)
    assert value.startswith(dead.value() or b"-")
    assert len(dead.value() or b"") > 100_000
    assert said["headrace_cut"].startswith("value 600000 bytes")
    assert said["headrace_origin"] == f"{small.names.main}/0/0"


def _limit(bench: Bench, topic: str, size: int) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    for future in bench.admin.incremental_alter_configs([resource]).values():
        future.result(10)


async def test_a_retry_topic_that_vanishes_holds_only_what_it_would_get(bench: Bench, stub: StubLLM) -> None:
    """The retry topic is deleted under a running worker: the offset of a failed call stays and it is told; others complete; it heals with the topic."""
    stub.set_rules([rule("fails", "server_error", request_ids=["bad"], first=1)])
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        bench.ask("before", partition=0)
        await bench.finished(["before"])
        bench.delete(bench.names.retry)
        bench.ask("bad", partition=0)
        bench.ask("good", partition=0)
        bench.ask("other", partition=1)
        blocked = await engine.event("settle_blocked")
        counts = await bench.finished(["good", "other"])
        assert counts["good", "completed"] == counts["other", "completed"] == 1
        assert bench.standing("main")[0][0] == int(str(blocked["position"]).rsplit("/", 1)[1]), "the offset stays at the one held back"
        bench.create(replace(fit(topics.wanted(bench.settings(stub.base_url)), 1, None)["retry"], partitions=2))
        await bench.until_drained(["main"])
        await engine.stop()
    (retry,) = bench.read("retry", wait_s=1)
    assert parsed(retry)["request_id"] == "bad"
    assert stub.calls["bad"] == 1


@pytest.mark.parametrize("round_", range(3))
async def test_an_ambiguous_commit_neither_loses_nor_doubles(bench: Bench, stub: StubLLM, round_: int) -> None:
    """The connection is cut after the broker took every third EndTxn, before it could say so: each id once, each call once, and lag 0."""
    del round_
    ids = [f"r{number:03}" for number in range(200)]
    stub.set_rules([rule("slow", {"latency": {"uniform_ms": [5, 60]}})])
    async with Proxy(bench.kafka) as proxy:
        seen = Counter[str]()

        def every_third(api: int) -> bool:
            seen["end"] += api == END_TXN
            return api == END_TXN and seen["end"] % 3 == 0

        proxy.cut_after = every_third
        async with Engine(bench.settings(stub.base_url, kafka=proxy.bootstrap, limits={"concurrency": 8}), "main") as engine:
            bench.ask(*ids)
            counts = await bench.finished(ids, timeout_s=60)
            await bench.until_drained(["main"], timeout_s=30)
            proxy.cut_after = None
            await engine.stop()
        assert proxy.cuts > 3, "nothing was cut"
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    assert stub.calls == dict.fromkeys(ids, 1)


async def test_cuts_at_random_moments_neither_lose_nor_double(bench: Bench, stub: StubLLM) -> None:
    """Twenty cuts of every connection while settling, some with the broker away for longer: each id once, each call once, lag 0."""
    ids = [f"r{number:04}" for number in range(1_000)]
    stub.set_rules(
        [
            rule("slow", {"latency": {"uniform_ms": [5, 60]}}),
        ]
    )
    chance = random.Random(7)
    async with Proxy(bench.kafka) as proxy:
        settings = bench.settings(stub.base_url, kafka=proxy.bootstrap, limits={"concurrency": 8, "settle_interval_ms": 0})
        async with Engine(settings, "main") as engine:
            bench.ask(*ids)
            for number in range(20):
                await asyncio.sleep(chance.uniform(0.05, 0.4))
                proxy.refusing = number % 5 == 4
                proxy.cut()
                if proxy.refusing:
                    await asyncio.sleep(0.5)
                    proxy.refusing = False
            counts = await bench.finished(ids, timeout_s=60)
            await bench.until_drained(["main"], timeout_s=30)
            await engine.stop()
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    assert sum(stub.calls.values()) == len(ids)


async def test_outcomes_that_cannot_be_settled_stop_new_calls(bench: Bench, stub: StubLLM) -> None:
    """The broker is cut off: calls go on until the bound on unsettled outcomes, then stop; when it is back all is settled, no call repeated."""
    ids = [f"r{number:03}" for number in range(300)]
    async with Proxy(bench.kafka) as proxy:
        settings = bench.settings(stub.base_url, kafka=proxy.bootstrap, limits={"concurrency": 8, "unsettled_outcomes": 30})
        async with Engine(settings, "main") as engine:
            stub.set_rules([rule("slow", {"latency": {"fixed_ms": 20}})])
            bench.ask(*ids)
            await stub.wait_calls(20)
            proxy.refusing = True
            proxy.cut()
            at_cut = stub.total_calls
            await _quiet(stub)
            assert stub.total_calls - at_cut <= 30 + 2 * 8 + 50, "the bound, a settle that was under way, and the calls in flight"
            assert stub.total_calls < len(ids)
            proxy.refusing = False
            counts = await bench.finished(ids, timeout_s=40)
            await bench.until_drained(["main"])
            await engine.stop()
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    assert sum(stub.calls.values()) == len(ids)


async def _quiet(stub: StubLLM) -> None:
    """Until no call came for half a second."""
    deadline, seen = time.monotonic() + 15, -1
    while seen != stub.total_calls:
        assert time.monotonic() < deadline, "calls go on"
        seen = stub.total_calls
        await asyncio.sleep(0.5)


async def test_a_refused_key_shuts_the_target_and_spends_nothing(bench: Bench, stub: StubLLM) -> None:
    """401: no attempt is spent, one alert, the lane stops calling; at the reopening one probe goes out, and when the key works all complete."""
    stub.set_rules([rule("auth", "invalid_api_key")])
    ids = [f"r{number:02}" for number in range(60)]
    bench.ask(*ids)
    settings = bench.settings(stub.base_url, pause={"first_s": 1.5, "cap_s": 1.5}, limits={"concurrency": 8})
    async with Engine(settings) as engine:
        await engine.event("target_shut", count=2)
        assert stub.total_calls <= 8 + 1, "those in flight, and one probe"
        stub.heal()
        counts = await bench.finished(ids)
        await bench.until_drained()
        await engine.stop()
        alerts = engine.named("alert")
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    assert len(alerts) == 1
    assert {r["attempts"]["count"] for r in map(parsed, bench.read("results"))} == {1}
    assert bench.read("dlq") == []


async def test_quota_is_told_once_and_costs_no_attempt(bench: Bench, stub: StubLLM) -> None:
    """insufficient_quota on one call (field case 19): deferred with its count unchanged, called again after the pause with attempt number 1."""
    stub.set_rules([rule("quota", "insufficient_quota", first=1)])
    bench.ask("r")
    async with Engine(bench.settings(stub.base_url, pause={"first_s": 0.5})) as engine:
        await bench.finished(["r"])
        await engine.stop()
    assert [entry.attempt for entry in stub.log] == [1, 1]
    (parked,) = bench.read("retry")
    assert headers_of(parked)["headrace_retry_count"] == "0"

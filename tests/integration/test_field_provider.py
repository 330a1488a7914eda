"""Faults seen in the field at the model's side: back-off, quotas, layers of retries, pools, and names that callers choose."""

from __future__ import annotations

import asyncio
import gc
import os
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any, Literal

import orjson
import pytest
import redis.asyncio as aredis
from confluent_kafka import Message
from pydantic import SecretStr

from headrace import build
from headrace.config import ClassPolicy, ProviderSettings
from headrace.dlq.outlet import Pace
from headrace.errors import ErrorClass
from headrace.instrument.events import LEVELS, QUIET
from headrace.llm import Llm
from headrace.local.stub import Rule, StubLLM
from headrace.pauses import MODELS
from headrace.policy import SPREAD, window_s
from tests.support.bench import Bench, headers_of, parsed, quick_policy
from tests.support.engine import Engine
from tests.support.metrics import Page

pytest_plugins = ["tests.support.fixtures"]

NAMES = int(os.environ.get("HEADRACE_TEST_NAMES", "2000"))  # of models and agents, each another
LATE_MS = 10_000  # a machine at its limit, not a rule: lateness is measured elsewhere


def rule(name: str, action: Any, **match: Any) -> Rule:
    """A rule of the stub."""
    return Rule.model_validate({"name": name, "match": match, "action": action})


def retries_by_id(retries: Sequence[Message]) -> dict[str, list[dict[str, str]]]:
    """The trail of each id's retries, in their order; one that came back from a wheel counts once."""
    found: dict[str, dict[int, dict[str, str]]] = defaultdict(dict)
    for message in retries:
        trail = headers_of(message)
        found[str(parsed(message)["request_id"])][int(trail["headrace_retry_count"])] = trail
    return {request_id: [trails[number] for number in sorted(trails)] for request_id, trails in found.items()}


async def test_field_09_each_retry_waits_its_own_delay(bench: Bench, stub: StubLLM) -> None:
    """Delays of 1, 2 and 4 s in three orders, side by side: each record waits its own, never the one of another or of another attempt."""
    orders = {"a": (1, 2, 4), "b": (4, 1, 2), "c": (2, 4, 1)}
    groups = {name: [f"{name}{number}" for number in range(5)] for name in orders}
    stub.set_rules(
        [
            rule(f"{name}{number}", {"signal": "rate_limited", "retry_after_s": delay_s}, request_ids=groups[name], attempts=[number])
            for name, delays in orders.items()
            for number, delay_s in enumerate(delays, 1)
        ]
    )
    ids = [request_id for members in zip(*groups.values(), strict=True) for request_id in members]
    bench.ask(*ids)
    async with Engine(bench.settings(stub.base_url)) as engine:
        counts = await bench.finished(ids, timeout_s=60)
        await bench.until_drained(timeout_s=30)
        await engine.stop()
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    trails = retries_by_id(bench.read("retry"))
    for request_id in ids:
        calls = [entry.wall_ms for entry in stub.log if entry.request_id == request_id]
        dues = [int(trail["headrace_next_retry_at"]) for trail in trails[request_id]]
        assert (len(calls), len(dues)) == (4, 3)
        for delay_s, failed, due, called in zip(orders[request_id[0]], calls, dues, calls[1:], strict=False):
            assert delay_s * 1000 <= due - failed <= delay_s * (1 + SPREAD) * 1000 + 900, "its own delay and its spread, not the next one"
            assert due - 2 <= called < due + LATE_MS


async def test_field_10_constant_429_follows_the_backoff_curve(bench: Bench, stub: StubLLM) -> None:
    """429 without a hint until the time allowed is spent: each call waits for its due time, each wait is drawn from its own window, all end dead."""
    ids = [f"r{number:02}" for number in range(40)]
    policy = ClassPolicy(in_all_s=4, base_s=0.1, cap_s=0.8)
    stub.set_rules([rule("limit", {"signal": "rate_limited", "retry_after": "none"})])
    bench.ask(*ids)
    async with Engine(bench.settings(stub.base_url, policy={ErrorClass.RATE_LIMITED: policy})) as engine:
        counts = await bench.finished(ids, timeout_s=60)
        await bench.until_drained(timeout_s=30)
        await engine.stop()
    assert counts == {(request_id, "failed"): 1 for request_id in ids}
    trails = retries_by_id(bench.read("retry"))
    shares = []
    for request_id in ids:
        calls = [entry.wall_ms for entry in stub.log if entry.request_id == request_id]
        own = trails.get(request_id, [])
        assert len(calls) == len(own) + 1, "one call for the record itself and each of its retries, no other"
        assert all(called >= int(trail["headrace_next_retry_at"]) - 2 for called, trail in zip(calls[1:], own, strict=True)), "never early"
        shares += _shares_of_windows(own, policy)
    assert all(0 <= share <= 1.001 for share in shares), "within its window"
    assert 0.4 < sum(shares) / len(shares) < 0.6, "full jitter: half a window on the average"
    assert {headers_of(dead)["headrace_error_class"] for dead in bench.read("dlq")} == {"rate_limited"}


def _shares_of_windows(trails: list[dict[str, str]], policy: ClassPolicy) -> list[float]:
    """Of each wait, which share it was of the window of its attempt."""
    latencies = [orjson.loads(trail["headrace_attempts"])[-1]["latency_ms"] for trail in trails]
    sums = [0, *(int(trail["headrace_elapsed_ms"]) for trail in trails)]
    waits = [after - before - latency for (before, after), latency in zip(pairwise(sums), latencies, strict=True)]
    return [(wait - 1) / (window_s(policy, number) * 1000) if wait else 0.0 for number, wait in enumerate(waits, 1)]


async def test_field_19_insufficient_quota_is_one_call_one_pause_one_alert(bench: Bench, stub: StubLLM) -> None:
    """`insufficient_quota` for everybody: one call, then the provider is paused and one alert told; topped up, all complete with one attempt each."""
    stub.set_rules([rule("quota", "insufficient_quota")])
    ids = [f"r{number:02}" for number in range(30)]
    bench.ask(*ids)
    async with Engine(bench.settings(stub.base_url, pause={"first_s": 3, "cap_s": 3}, limits={"concurrency": 1})) as engine:
        await engine.event("alert", timeout_s=60)
        await engine.event("lane_paused", timeout_s=60)
        assert stub.total_calls == len(engine.named("target_shut")), "one call a pause, however many wait"
        stub.heal()
        counts = await bench.finished(ids, timeout_s=60)
        await bench.until_drained(timeout_s=30)
        await engine.stop()
        shut, alerts = engine.named("target_shut"), engine.named("alert")
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    assert stub.total_calls == len(ids) + len(shut)
    assert len(alerts) == 1
    assert {r["attempts"]["count"] for r in map(parsed, bench.read("results"))} == {1}, "waiting spent no attempt"
    assert bench.read("dlq") == []


@pytest.mark.parametrize("transport", ["direct", "sdk"])
async def test_field_20_layers_of_retries_do_not_multiply(bench: Bench, stub: StubLLM, transport: Literal["direct", "sdk"]) -> None:
    """A server that always says 500, and asks to be tried again: the HTTP calls are the configured attempts, whichever transport carries them."""
    stub.set_rules([rule("always", {"signal": "server_error", "should_retry": True})])
    ids = [f"r{number}" for number in range(8)]
    bench.ask(*ids)
    provider = ProviderSettings(name="stub", base_url=stub.base_url, api_key=SecretStr("sk-test"), default_model="m", transport=transport)
    settings = bench.settings(stub.base_url, providers=(provider,), policy=quick_policy(server_error=4))
    async with Engine(settings) as engine:
        counts = await bench.finished(ids, timeout_s=60)
        await bench.until_drained(timeout_s=30)
        await engine.stop()
    assert counts == {(request_id, "failed"): 1 for request_id in ids}
    assert stub.calls == dict.fromkeys(ids, 4)
    assert all([entry.attempt for entry in stub.log if entry.request_id == request_id] == [1, 2, 3, 4] for request_id in ids)
    assert [headers_of(dead)["headrace_retry_count"] for dead in bench.read("dlq")] == ["4"] * len(ids)


async def test_field_22_an_exhausted_pool_is_a_queue(bench: Bench, stub: StubLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 calls at once over 50 connections, which takes longer than a call may: all are answered at the first attempt, nothing is shut."""
    monkeypatch.setattr(build, "Llm", lambda providers, *, pool, **rest: Llm(providers, pool=min(pool, 50), **rest))
    stub.set_rules([rule("slow", {"latency": {"fixed_ms": 400}})])
    ids = [f"r{number:03}" for number in range(500)]
    bench.ask(*ids)
    async with Engine(bench.settings(stub.base_url, timeout_s=3.0, limits={"concurrency": 500})) as engine:
        counts = await bench.finished(ids, timeout_s=60)
        await bench.until_drained(timeout_s=30)
        await engine.stop()
        assert not engine.named("target_shut")
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    assert stub.calls == dict.fromkeys(ids, 1)
    assert {entry.attempt for entry in stub.log} == {1}
    assert stub.stats()["peak_in_flight"] == 50, "it was the pool that made them wait"
    assert bench.read("retry") == bench.read("dlq") == []


async def test_field_27_names_that_callers_choose_keep_nothing_growing(bench: Bench, stub: StubLLM) -> None:
    """Thousands of models and agents, each called once, answered, forbidden or dead: no name is kept in memory or in Redis beyond a fixed number.

    What is logged names hardly any either. The quiet events, one a settle, are not logged: their tally goes by the names as they came, and
    whoever counts it folds them (`tests/unit/metrics/test_meters.py`); here the page is asked.
    """
    stub.set_rules([rule("forbidden", "forbidden", share=0.5), rule("dead", "invalid_request", share=0.2)])
    for number in range(NAMES):
        request = {"request_id": f"r{number}", "agent_id": f"caller-a{number}", "channel": f"caller-c{number}"}
        body = {"model": f"caller-m{number}", "messages": [{"role": "user", "content": "x"}]}
        bench.send(orjson.dumps(request | {"body": body}))
        bench.producer.poll(0)
    bench.flush()
    settings = bench.settings(stub.base_url, pause={"first_s": 600, "cap_s": 600}, sentry_dsn=SecretStr("http://key@127.0.0.1:1/1"))
    async with Engine(settings, "main", "retry", "dlq") as engine:
        await stub.wait_calls(NAMES)
        await bench.until_drained(["main", "retry", "dlq"], timeout_s=60)
        await engine.event("alert", timeout_s=60)
        kept = _kept_names()
        in_redis = await _names_in_redis(bench)
        told = [(name, fields) for name, fields in engine.told if LEVELS[name] != QUIET and "caller-" in repr(fields)]
        page = (await asyncio.to_thread(Page.ask, engine)).text
        series = len(engine.counters.events) + len(engine.counters.outcomes)
        await engine.stop()
    assert stub.total_calls == NAMES
    remembered = 3 * 64  # models whose chain, label or place in a trail was looked up last
    bound = 2 * MODELS + Pace().fingerprints + 3 * settings.limits.concurrency + remembered + 10
    assert len(kept) <= bound, f"{len(kept)} names are kept, of {3 * NAMES}"
    assert in_redis <= MODELS, "one process shares no more"
    assert len(told) <= 2, "shut models are told of with their number, not one by one"
    assert "caller-" not in page, "no label is a caller's"
    assert series < 60, "event names, lanes, outcomes and classes: closed sets all"


def _kept_names() -> set[str]:
    """Every name of a caller that anything alive refers to, this test's own bytes apart."""
    gc.collect()
    names = set[str]()
    for thing in gc.get_objects():
        if not isinstance(thing, (type, ModuleType)):
            names.update(found for found in gc.get_referents(thing) if type(found) is str and found.startswith("caller-"))
    return names


async def _names_in_redis(bench: Bench) -> int:
    """How many fields of hashes name a model; that no key does is asserted."""
    async with aredis.Redis.from_url(bench.redis_url) as client:
        keys = [key async for key in client.scan_iter(match=f"*{bench.namespace}*", count=1_000)]
        assert not [key for key in keys if b"caller-" in key]
        hashes = [key for key in keys if key.endswith(b":pauses")]
        return sum([len([field for field in await client.hkeys(key) if b"caller-" in field]) for key in hashes])

"""Chains of providers on a real broker: a dead one, a spent key, a rotated key, and endpoints that keep failing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.config import EndpointSettings, LinkSettings, ProviderSettings
from headrace.local.stub import Rule
from tests.support.bench import Bench, headers_of, parsed, quick_policy
from tests.support.engine import Engine
from tests.support.stub import PatientStub

pytest_plugins = ["tests.support.fixtures"]

NOBODY = "http://127.0.0.1:9/v1"  # the port of `discard`: nobody listens
IDS = [f"r{number:02}" for number in range(20)]


@pytest.fixture
async def two() -> AsyncIterator[tuple[PatientStub, PatientStub]]:
    """Two providers that answer."""
    async with AsyncExitStack() as opened:
        yield await opened.enter_async_context(PatientStub(seed=1)), await opened.enter_async_context(PatientStub(seed=2))


def always(action: Any) -> list[Rule]:
    return [Rule.model_validate({"name": "always", "action": action})]


def provider(name: str, base_url: str, **fields: Any) -> ProviderSettings:
    return ProviderSettings(
        **({"name": name, "base_url": base_url, "api_key": f"sk-test-{name}", "default_model": "m", "timeout_s": 20} | fields)
    )


async def test_a_dead_provider_is_followed_by_the_next(bench: Bench, two: tuple[PatientStub, PatientStub]) -> None:
    """Two calls at the dead one, one at the other: each request has one result that names who answered, and a trail that names whom it left."""
    stub, _ = two
    bench.ask(*IDS)
    models = {"m": (LinkSettings(provider="dead"), LinkSettings(provider="alive", model="other"))}
    settings = bench.settings(
        NOBODY, providers=(provider("dead", NOBODY), provider("alive", stub.base_url)), models=models, policy=quick_policy(connection=2)
    )
    async with Engine(settings) as engine:
        counts = await bench.finished(IDS, timeout_s=60)
        await bench.until_drained(timeout_s=40)
        await engine.stop()
    assert counts == {(request_id, "completed"): 1 for request_id in IDS}
    assert stub.calls == dict.fromkeys(IDS, 1)
    for result in map(parsed, bench.read("results")):
        assert result["provider"] == "alive"
        assert [(row["provider"], row["model"], row.get("left", False)) for row in result["attempts"]["each"][:2]] == [
            ("dead", "m", False),
            ("dead", "m", True),
        ]
        assert result["attempts"]["count"] == 3


async def test_a_chain_without_an_end_that_answers_is_one_dead_letter(bench: Bench, two: tuple[PatientStub, PatientStub]) -> None:
    """Every link has its calls and no more; the letter names the last."""
    first, second = two
    first.set_rules(always({"signal": "server_error"}))
    second.set_rules(always({"signal": "model_not_found"}))
    bench.ask(*IDS[:5])
    listed = (provider("a", first.base_url), provider("b", second.base_url))
    async with Engine(bench.settings(NOBODY, providers=listed, policy=quick_policy(server_error=3))) as engine:
        counts = await bench.finished(IDS[:5], timeout_s=60)
        await bench.until_drained(timeout_s=40)
        await engine.stop()
    assert counts == {(request_id, "failed"): 1 for request_id in IDS[:5]}
    assert (first.calls, second.calls) == (dict.fromkeys(IDS[:5], 3), dict.fromkeys(IDS[:5], 1))
    letters = [headers_of(letter) for letter in bench.read("dlq")]
    assert [(one["headrace_provider"], one["headrace_error_class"], one["headrace_retry_count"]) for one in letters] == [
        ("b", "not_found", "4")
    ] * 5


async def test_a_spent_key_is_passed_by_and_a_rotated_one_is_no_pause(
    bench: Bench, two: tuple[PatientStub, PatientStub], tmp_path: Path
) -> None:
    """The first provider's quota is gone: nothing waits, nothing is spent. The second's key is replaced in its file: nothing is shut."""
    first, second = two
    key = tmp_path / "key"
    key.write_text("sk-test-old")
    first.set_rules(always({"signal": "insufficient_quota"}))
    bench.ask(*IDS)
    listed = (provider("spent", first.base_url), provider("kept", second.base_url, api_key="sk-test-old", api_key_file=key))
    async with Engine(bench.settings(NOBODY, providers=listed)) as engine:
        await bench.finished(IDS, timeout_s=60)
        refused = {"signal": "invalid_api_key", "latency": {"fixed_ms": 300}}
        second.set_rules([Rule.model_validate({"name": "old", "match": {"request_ids": ["s"], "first": 1}, "action": refused})])
        bench.ask("s")
        await second.wait_in_flight(1)
        key.write_text("sk-test-new")
        counts = await bench.finished([*IDS, "s"], timeout_s=60)
        await bench.until_drained(timeout_s=40)
        await engine.stop()
        shut = engine.named("target_shut")
        assert [fields["provider"] for fields in shut] == ["spent"]
        assert [fields["error_class"] for fields in shut] == ["quota_exhausted"]
        assert len(engine.named("key_changed")) == 1
    assert set(counts.values()) == {1}
    assert {result["provider"] for result in map(parsed, bench.read("results"))} == {"kept"}
    assert {result["attempts"]["count"] for result in map(parsed, bench.read("results"))} == {1}


async def test_an_endpoint_that_keeps_failing_is_left_out_and_comes_back(bench: Bench, two: tuple[PatientStub, PatientStub]) -> None:
    """Told, and asked no more than a few times while it is out; its health check takes another out, and brings it back."""
    first, second = two
    first.set_rules(always({"signal": "server_error"}))
    listed = tuple(EndpointSettings(base_url=one.base_url) for one in (first, second))
    one = provider("p", NOBODY, endpoints=listed, ejection={"failures": 3, "for_s": 0.5})
    bench.ask(*IDS)
    settings = bench.settings(
        NOBODY, providers=(ProviderSettings.model_validate(one.model_dump(exclude={"base_url"})),), limits={"concurrency": 4}
    )
    async with Engine(settings) as engine:
        await engine.event("endpoint_ejected", timeout_s=60)
        counts = await bench.finished(IDS, timeout_s=60)
        first.set_rules([])
        number = 0
        async with asyncio.timeout(60):
            while not engine.named("endpoint_returned"):
                number += 1
                bench.ask(f"t{number}")
                await bench.finished([f"t{number}"], timeout_s=60)
        await engine.stop()
        ejected = engine.named("endpoint_ejected")
    assert counts == {(request_id, "completed"): 1 for request_id in IDS}
    assert {(fields["provider"], fields["endpoint"], fields["why"]) for fields in ejected} == {("p", first.base_url, "server_error")}
    assert Counter(result["status"] for result in map(parsed, bench.read("results"))) == {"completed": len(IDS) + number}

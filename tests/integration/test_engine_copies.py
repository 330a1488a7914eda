"""Copies of a request on a real broker and a real Redis: one call, one completed result, a notice for each of the others."""

from __future__ import annotations

import asyncio
from collections import Counter

import orjson
import pytest
import redis.asyncio

from headrace.local.stub import Latency, Rule, StubLLM
from tests.support.bench import Bench, headers_of, parsed
from tests.support.engine import Engine

pytest_plugins = ["tests.support.fixtures"]

SLOW = Rule.model_validate({"name": "slow", "action": {"latency": Latency(fixed_ms=700).model_dump()}})


@pytest.mark.parametrize("partitions", [(0, 0), (0, 1)], ids=["same partition", "another partition"])
async def test_a_copy_after_the_answer_is_a_duplicate(bench: Bench, stub: StubLLM, partitions: tuple[int, int]) -> None:
    """The same id again after its result: no call, one notice that says of what it is a duplicate and since when."""
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        bench.ask("r", partition=partitions[0])
        await bench.results(1)
        bench.ask("r", partition=partitions[1])
        first, notice = await bench.results(2)
        await bench.until_drained(["main"])
        await engine.stop()
    assert (first["status"], notice["status"], notice["of"]) == ("completed", "duplicate", "completed")
    assert notice["since"] >= first["completed_at"]
    assert stub.calls == {"r": 1}


async def test_copies_in_flight_wait_and_become_duplicates(bench: Bench, stub: StubLLM) -> None:
    """Ten copies of three ids over both partitions while the calls are under way: three calls, three results, 27 notices."""
    stub.set_rules([SLOW])
    ids = ["a", "b", "c"]
    for number in range(10):
        bench.ask(*ids, partition=number % 2)
    async with Engine(bench.settings(stub.base_url), "main", "retry") as engine:  # a copy that waits longer than 5 s goes there
        results = await bench.results(30)
        await bench.until_drained(["main"])
        await engine.stop()
    assert Counter(r["status"] for r in results) == {"completed": 3, "duplicate": 27}
    assert stub.calls == dict.fromkeys(ids, 1)


async def test_the_same_id_with_another_content_is_a_conflict(bench: Bench, stub: StubLLM) -> None:
    """One id, two prompts: one completed; the other is dead as id_conflict, with a notice `of: conflict`; metadata does not count as content."""
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        bench.ask("r", prompt="one")
        await bench.results(1)
        bench.ask("r", prompt="two")
        bench.ask("r", prompt="one", metadata={"try": "2"})
        results = await bench.results(3)
        (dead,) = await bench.until("dlq", 1)
        await engine.stop()
    assert Counter((r["status"], r.get("of")) for r in results) == {
        ("completed", None): 1,
        ("duplicate", "conflict"): 1,
        ("duplicate", "completed"): 1,
    }
    assert headers_of(dead)["headrace_error_class"] == "id_conflict"
    assert stub.calls == {"r": 1}


async def test_a_copy_of_a_request_that_waits_for_its_retry_is_a_duplicate_of_it(bench: Bench, stub: StubLLM) -> None:
    """A copy arrives while the first is parked for its retry: a notice `of: waiting`; the first completes by itself."""
    stub.set_rules([Rule.model_validate({"name": "once", "match": {"first": 1}, "action": {"signal": "rate_limited", "retry_after_s": 2}})])
    async with Engine(bench.settings(stub.base_url)) as engine:
        bench.ask("r")
        await bench.until("retry", 1)
        bench.ask("r", partition=1)
        results = await bench.results(2)
        await engine.stop()
    assert Counter((r["status"], r.get("of")) for r in results) == {("duplicate", "waiting"): 1, ("completed", None): 1}
    assert stub.calls == {"r": 2}


async def test_a_dead_request_that_was_never_called_leaves_its_id_free(bench: Bench, stub: StubLLM) -> None:
    """A request refused for its form, then the corrected one under the same id: completed."""
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        bench.send(orjson.dumps({"request_id": "r", "prompt": "x", "body": {}}))
        bench.flush()
        await bench.results(1)
        await asyncio.sleep(0.3)  # the claim is given back after the settle, best effort, and nothing tells when
        bench.ask("r")
        results = await bench.results(2)
        await engine.stop()
    assert [r["status"] for r in results] == ["failed", "completed"]


async def test_no_notices_where_they_are_off(bench: Bench, stub: StubLLM) -> None:
    """`duplicate_notices: false`: copies leave nothing but their offset."""
    async with Engine(bench.settings(stub.base_url, duplicate_notices=False), "main") as engine:
        bench.ask("r", "r", "r", "r")
        await bench.until_drained(["main"])
        await engine.stop()
    assert [parsed(m)["status"] for m in bench.read("results")] == ["completed"]


async def test_a_restart_without_redis_calls_only_what_was_unfinished(bench: Bench, stub: StubLLM) -> None:
    """One call hangs at the head with 60 answered behind it; stop, empty Redis, start: only the head is called again (the map travels with the offset)."""
    stub.set_rules([Rule.model_validate({"name": "hang", "match": {"request_ids": ["head"]}, "action": "hang"})])
    ids = [f"r{number}" for number in range(60)]
    bench.ask("head", *ids, partition=0)
    settings = bench.settings(stub.base_url, grace_s=0.1, timeout_s=60)
    async with Engine(settings, "main") as engine:
        await bench.results(60)
        await engine.stop()
    assert max(bench.standing("main")[0][0], 0) == 0, "the head holds the offset"
    client = redis.asyncio.from_url(bench.redis_url)
    async for key in client.scan_iter(match=f"*{bench.namespace}*"):
        await client.delete(key)
    await client.aclose()
    stub.heal()
    async with Engine(settings, "main") as engine:
        counts = await bench.finished(["head", *ids])
        await bench.until_drained(["main"])
        await engine.stop()
    assert stub.calls == {"head": 2} | dict.fromkeys(ids, 1)
    assert counts == {(request_id, "completed"): 1 for request_id in ("head", *ids)}

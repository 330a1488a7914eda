"""The retry path on a real broker: what a retry record says, when it is called, when it ends."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from headrace.config import ClassPolicy
from headrace.errors import ErrorClass
from headrace.local.stub import Rule, StubLLM
from tests.support.bench import Bench, headers_of, parsed, quick_policy, raw_headers
from tests.support.engine import Engine

pytest_plugins = ["tests.support.fixtures"]

CALLS = {
    "server_error": 5, "unavailable": 5, "server_is_overloaded": 5, "error_in_200": 3, "no_choices": 3, "html_200": 3, "finish_abort": 3,
    "model_not_found": 1, "context_length_exceeded": 1, "content_policy_violation": 1, "invalid_request": 1, "too_large": 1,
}  # fmt: skip


def rule(name: str, action: Any, **match: Any) -> Rule:
    """A rule of the stub."""
    return Rule.model_validate({"name": name, "match": match, "action": action})


async def test_a_failure_that_passes_leaves_one_result_and_a_trail(bench: Bench, stub: StubLLM) -> None:
    """500 twice, then an answer: three calls with attempt numbers, none before its due time, two retry records with the whole trail, one result."""
    stub.set_rules([rule("twice", "server_error", first=2)])
    bench.send(b'{"request_id":"r","prompt":"x"}', key=b"\xa2", headers=[("mine", b"\xff"), ("headrace_hop", b"7")])
    bench.flush()
    async with Engine(
        bench.settings(stub.base_url, policy=quick_policy() | {ErrorClass.SERVER_ERROR: ClassPolicy(calls=5, base_s=0.3)})
    ) as engine:
        (result,) = await bench.results(1)
        await bench.until_drained()
        await engine.stop()
    retries = bench.read("retry")
    calls = [entry for entry in stub.log if entry.request_id == "r"]
    assert [entry.attempt for entry in calls] == [1, 2, 3]
    assert [(m.key(), m.value(), raw_headers(m)[0]) for m in retries] == [
        (b"\xa2", b'{"request_id":"r","prompt":"x"}', ("mine", b"\xff"))
    ] * 2
    trails = [headers_of(m) for m in retries]
    assert [(t["headrace_retry_count"], t["headrace_hop"], t["headrace_error_class"]) for t in trails] == [
        ("1", "1", "server_error"),
        ("2", "2", "server_error"),
    ]
    assert len({t["headrace_origin"] for t in trails}) == 1
    assert trails[0]["headrace_origin"].startswith(bench.names.main)
    assert all(call.wall_ms >= int(t["headrace_next_retry_at"]) - 2 for call, t in zip(calls[1:], trails, strict=True)), "never early"
    assert [len(orjson.loads(t["headrace_attempts"])) for t in trails] == [1, 2]
    assert result["status"] == "completed"
    assert result["attempts"]["count"] == 3
    assert [a["class"] for a in result["attempts"]["each"]] == ["server_error", "server_error", None]
    assert bench.read("dlq") == []


async def test_the_policy_table_holds_end_to_end(bench: Bench, stub: StubLLM) -> None:
    """One request for each class of failure: exactly as many calls as its class allows, one dead letter, one failed notice."""
    ids = [name.replace("_", "-") for name in CALLS]
    stub.set_rules(
        [rule(name, name, request_ids=[request_id]) for name, request_id in zip(CALLS, ids, strict=True)]
        + [rule("hang", "hang", request_ids=["hang"])]
    )
    bench.ask(*ids, "hang")
    async with Engine(bench.settings(stub.base_url, timeout_s=0.3)) as engine:
        counts = await bench.finished([*ids, "hang"], timeout_s=30)
        await bench.until_drained()
        await engine.stop()
    assert stub.calls == {request_id: CALLS[name] for request_id, name in zip(ids, CALLS, strict=True)} | {"hang": 3}
    assert set(counts) == {(request_id, "failed") for request_id in (*ids, "hang")}
    assert set(counts.values()) == {1}
    dead = {orjson.loads(m.value() or b"")["request_id"]: headers_of(m) for m in bench.read("dlq")}
    assert len(bench.read("dlq")) == len(ids) + 1
    assert {i: int(h["headrace_retry_count"]) for i, h in dead.items()} == stub.calls
    assert dead["hang"]["headrace_error_class"] == "timeout"
    assert all("headrace_next_retry_at" not in h and int(h["headrace_dead_at"]) > 0 for h in dead.values())


async def test_retry_after_is_never_undercut(bench: Bench, stub: StubLLM) -> None:
    """429 that asks for 1.5 s: the next call comes no sooner, and the limit spends no bound on calls."""
    stub.set_rules([rule("limit", {"signal": "rate_limited", "retry_after_s": 1.5}, first=1)])
    bench.ask("r")
    async with Engine(bench.settings(stub.base_url)) as engine:
        await bench.finished(["r"])
        await engine.stop()
    first, second = (entry.t_ms for entry in stub.log)
    assert 1_500 <= second - first < 2_400


@pytest.mark.parametrize("how", ["body", "header"])
async def test_a_deadline_that_has_passed_costs_no_call(bench: Bench, stub: StubLLM, how: str) -> None:
    """A deadline in the past, in the JSON or in a header that overrides it: expired, never called."""
    past = datetime.now(UTC) - timedelta(seconds=5)
    if how == "body":
        bench.ask("late", deadline_at=past.isoformat())
    else:
        value = orjson.dumps({"request_id": "late", "prompt": "x", "deadline_at": (past + timedelta(hours=2)).isoformat()})
        bench.send(value, headers=[("headrace_deadline_at", str(int(past.timestamp() * 1000)).encode())])
        bench.flush()
    async with Engine(bench.settings(stub.base_url), "main") as engine:
        (result,) = await bench.results(1)
        await engine.stop()
    assert (result["status"], result["error"]["class"], stub.total_calls) == ("failed", "expired", 0)


async def test_a_deadline_ends_the_retries(bench: Bench, stub: StubLLM) -> None:
    """Failures that would be retried beyond the deadline: dead once the next call would come after it, with the class of the failure."""
    stub.set_rules([rule("always", "server_error")])
    bench.ask("r", deadline_at=(datetime.now(UTC) + timedelta(seconds=2)).isoformat())
    policy = {ErrorClass.SERVER_ERROR: ClassPolicy(calls=500, base_s=0.5, cap_s=0.5)}
    async with Engine(bench.settings(stub.base_url, policy=policy)) as engine:
        (result,) = await bench.results(1)
        await engine.stop()
    assert (result["status"], result["error"]["class"]) == ("failed", "server_error")
    assert "deadline" in result["error"]["message"]
    assert stub.total_calls < 30


async def test_a_far_due_time_goes_by_the_wheels_and_comes_back_in_time(bench: Bench, stub: StubLLM) -> None:
    """Due in 6 s, written to main: waits in the retry topics, not in memory; called once, not early, at most a second late."""
    due = time.time() + 6
    bench.ask("far", next_retry_at=due)
    async with Engine(bench.settings(stub.base_url)) as engine:
        await bench.until("later", 1)
        await bench.finished(["far"])
        await bench.until_drained()
        await engine.stop()
    (call,) = stub.log
    assert 0 <= call.wall_ms - due * 1000 < 1_000


async def test_a_due_time_beyond_the_longest_delay_is_refused(bench: Bench, stub: StubLLM) -> None:
    """Due in 100 days: dead as invalid_request from main and from retry alike, never clamped, never called."""
    due = time.time() + 100 * 86_400
    bench.ask("main", next_retry_at=due)
    bench.send(b'{"request_id":"retry","prompt":"x"}', headers=[("headrace_next_retry_at", b"%d" % (due * 1000))], role="retry")
    bench.flush()
    async with Engine(bench.settings(stub.base_url)) as engine:
        results = await bench.results(2)
        await bench.until_drained()
        await engine.stop()
    assert {(r["request_id"], r["error"]["class"]) for r in results} == {("main", "invalid_request"), ("retry", "invalid_request")}
    assert stub.total_calls == 0
    assert bench.read("later") == []


async def test_what_came_due_while_the_lane_was_down_goes_at_once_in_due_order(bench: Bench, stub: StubLLM) -> None:
    """Thirty records of the past, shuffled: all called within a moment, the one due first before the one due last."""
    now = time.time()
    order = [(number * 7) % 30 for number in range(30)]
    for number in order:
        value = orjson.dumps({"request_id": f"r{number:02}", "prompt": "x", "next_retry_at": now - 100 + number, "retry_count": 2})
        bench.send(value, role="retry", partition=0)
    bench.flush()
    async with Engine(bench.settings(stub.base_url, limits={"concurrency": 1}), "retry") as engine:
        await bench.finished([f"r{number:02}" for number in range(30)])
        await engine.stop()
    assert [entry.request_id for entry in stub.log] == sorted(entry.request_id or "" for entry in stub.log)
    assert {entry.attempt for entry in stub.log} == {3}, "the count in the JSON is honoured"


async def test_headers_beat_the_json(bench: Bench, stub: StubLLM) -> None:
    """A count and a due time in headers, others in the JSON: the headers count."""
    value = orjson.dumps({"request_id": "r", "prompt": "x", "retry_count": 4, "next_retry_at": "2099-01-01T00:00:00Z"})
    bench.send(value, role="retry", headers=[("headrace_retry_count", b"1"), ("headrace_next_retry_at", b"1000")])
    bench.flush()
    async with Engine(bench.settings(stub.base_url), "retry") as engine:
        (result,) = await bench.results(1)
        await engine.stop()
    assert result["attempts"]["count"] == 2
    assert [parsed(m)["status"] for m in bench.read("results")] == ["completed"]

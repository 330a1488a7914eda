"""`pause`, `resume`, `cancel` and `status` against a real broker and Redis: what operators order, the whole fleet does, and nothing is spent."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from headrace.config import ProviderSettings
from headrace.controls import Entry, Scope, pace
from headrace.lane import groups
from headrace.llm.standing import address_of
from headrace.local.stub import Rule
from headrace.status import Gather
from headrace.status.lines import lines
from headrace.store import Store
from tests.support.bench import Bench, headers_of, parsed
from tests.support.cli import environment, headrace
from tests.support.engine import Engine
from tests.support.stub import PatientStub

pytest_plugins = ["tests.support.fixtures"]

WAIT_S = 60.0


class Desk:
    """The command line, with the provider of the bench in its configuration."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        config = folder / "headrace.yaml"
        config.write_text("providers: [{name: stub, base_url: 'http://127.0.0.1:1/v1', api_key: k, default_model: m}]\n", "utf-8")
        self._variables = environment(bench, folder, HEADRACE_CONFIG=str(config))

    async def run(self, *arguments: str, code: int = 0, given: bytes = b"") -> tuple[str, str]:
        """What it says on stdout and stderr; its exit code must be this one."""
        done = await headrace(self._variables, *arguments, given=given, timeout_s=WAIT_S)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def desk(bench: Bench, tmp_path: Path) -> Desk:
    """Give the command line."""
    return Desk(bench, tmp_path)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What meets a pause looks again after half a second instead of five."""
    monkeypatch.setattr(pace, "LOOK_FIRST_MS", 500)
    monkeypatch.setattr(pace, "LOOK_MOST_MS", 1_000)


def dead(bench: Bench) -> dict[str, dict[str, str]]:
    """The headers of every dead letter, by request id."""
    return {parsed(message)["request_id"]: headers_of(message) for message in bench.read("dlq")}


async def test_a_paused_provider_is_called_by_nobody(bench: Bench, stub: PatientStub, desk: Desk) -> None:
    """Two workers see the pause; both stop, say who and why, and call nothing. After the resume each request is called once, at its first attempt."""
    settings = bench.settings(stub.base_url)
    ids = [f"r{n:02}" for n in range(40)]
    async with Engine(settings) as one, Engine(settings) as two:
        said, log = await desk.run("pause", "--provider", "stub", "--reason", "the invoice is due", "--by", "ada")
        assert "paused: provider stub, until it is resumed, by ada: the invoice is due" in said
        assert "paused_by_operator" in log
        for engine in (one, two):
            told = await engine.event("paused_by_operator", timeout_s=WAIT_S)
            assert (told["about"], told["by"], told["reason"]) == ("provider stub", "ada", "the invoice is due")
        bench.ask(*ids)
        for engine in (one, two):
            await engine.event("lane_paused", timeout_s=WAIT_S)
            assert {fields["reason"] for fields in engine.named("lane_paused")} == {"paused by an operator"}
        assert stub.total_calls == 0
        await desk.run("resume", "--provider", "stub")
        counts = await bench.finished(ids, timeout_s=WAIT_S)
        assert [len(engine.named("resumed_by_operator")) for engine in (one, two)] == [1, 1]
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    assert stub.calls == dict.fromkeys(ids, 1)
    assert all(parsed(m)["attempts"]["count"] == 1 for m in bench.read("results")), "a pause spends no attempt"


async def test_a_paused_provider_is_passed_by(bench: Bench, stub: PatientStub, desk: Desk) -> None:
    """Where its chain has another link, a request goes there at once; nothing waits."""
    async with PatientStub() as other:
        one, two = (
            ProviderSettings(name=name, base_url=at.base_url, api_key="k", default_model="m")
            for name, at in (("stub", stub), ("two", other))
        )
        settings = bench.settings(stub.base_url, providers=(one, two), models={"*": [{"provider": "stub"}, {"provider": "two"}]})
        await desk.run("pause", "--provider", "stub")
        async with Engine(settings):
            bench.ask("r1", "r2", "r3")
            await bench.finished(["r1", "r2", "r3"], timeout_s=WAIT_S)
        assert (stub.total_calls, other.calls) == (0, {"r1": 1, "r2": 1, "r3": 1})
        assert bench.read("retry") == []


async def test_a_paused_agent_holds_nobody_up(bench: Bench, stub: PatientStub, desk: Desk) -> None:
    """A paused agent's backlog before and between another's: the other's is answered, the paused one waits in retry unspent, and is called once after the resume."""
    await desk.run("pause", "--agent", "greedy", "--for", "1h")
    held, free = [f"g{n:03}" for n in range(300)], [f"b{n:03}" for n in range(60)]
    bench.ask(*held[:200], agent_id="greedy")
    bench.ask(*free, agent_id="modest")
    bench.ask(*held[200:], agent_id="greedy")
    async with Engine(bench.settings(stub.base_url, limits={"concurrency": 4})):
        await bench.finished(free, timeout_s=WAIT_S)
        deferred = await bench.until("retry", len(held), WAIT_S)
        assert set(stub.calls) == set(free)
        assert {headers_of(m)["headrace_retry_count"] for m in deferred} == {"0"}
        await desk.run("resume", "--agent", "greedy")
        counts = await bench.finished([*held, *free], timeout_s=WAIT_S)
    assert counts == {(request_id, "completed"): 1 for request_id in (*held, *free)}
    assert stub.calls == dict.fromkeys([*held, *free], 1)


async def test_a_paused_model_waits_and_another_goes_on(bench: Bench, stub: PatientStub, desk: Desk) -> None:
    """A pause of one model, the default one included, defers what would call it; requests for another are answered."""
    await desk.run("pause", "--model", "m", "--reason", "it hallucinates")
    bench.ask("default-1")
    bench.ask("other-1", body={"model": "n", "messages": []}, prompt=None)  # type: ignore[arg-type]
    async with Engine(bench.settings(stub.base_url)):
        await bench.finished(["other-1"], timeout_s=WAIT_S)
        await bench.until("retry", 1, WAIT_S)
        assert stub.calls == {"other-1": 1}
        await desk.run("resume", "--all")
        assert (await bench.finished(["default-1"], timeout_s=WAIT_S))["default-1", "completed"] == 1
    assert stub.calls == {"other-1": 1, "default-1": 1}


async def test_cancelled_ids_die_wherever_a_lane_meets_them(bench: Bench, stub: PatientStub, desk: Desk) -> None:
    """In the backlog: dead without a call. In its retry wait: dead when it is due, with no further call. Completed: no effect."""
    settings = bench.settings(stub.base_url)
    bench.ask("backlog-1", "backlog-2", "kept-1")
    said, log = await desk.run("cancel", "backlog-1", "--file", "-", "--reason", "sent by mistake", "--by", "ada", given=b"backlog-2\n")
    assert "2  not met by a lane yet" in said
    assert "dry run" in log
    await desk.run("cancel", "backlog-1", "backlog-2", "--reason", "sent by mistake", "--by", "ada", "--execute")
    async with Engine(settings) as engine:
        assert await bench.finished(["backlog-1", "backlog-2", "kept-1"], timeout_s=WAIT_S) == {
            ("backlog-1", "failed"): 1, ("backlog-2", "failed"): 1, ("kept-1", "completed"): 1,
        }  # fmt: skip
        stub.set_rules([Rule.model_validate({"name": "busy", "action": {"status": 503, "headers": {"retry-after": "4"}}})])
        bench.ask("waiting-1")
        await bench.until("retry", 1, WAIT_S)
        said, _ = await desk.run("cancel", "waiting-1", "kept-1", "--execute")
        assert "1  completed: no effect" in said
        await engine.until(lambda: len(engine.named("cancelled_by_operator")) >= 2, "the second order", WAIT_S)
        await bench.finished(["waiting-1"], timeout_s=WAIT_S)
        await desk.run("cancel", "kept-1", "--execute", code=3)
    assert set(stub.calls) == {"kept-1", "waiting-1"}
    assert stub.calls["kept-1"] == 1
    letters = dead(bench)
    assert {i: (h["headrace_error_class"], int(h["headrace_retry_count"])) for i, h in letters.items()} == {
        "backlog-1": ("cancelled", 0), "backlog-2": ("cancelled", 0),
        "waiting-1": ("cancelled", stub.calls["waiting-1"]),  # one, unless the command came late
    }  # fmt: skip
    assert letters["backlog-1"]["headrace_error_message"] == "cancelled by ada: sent by mistake"


async def test_a_cancelled_id_stays_so_until_it_is_taken_back(bench: Bench, stub: PatientStub, desk: Desk) -> None:
    """Sent again it dies again; after `resume --cancelled` the same id is answered."""
    await desk.run("cancel", "again-1", "--execute")
    async with Engine(bench.settings(stub.base_url)) as engine:
        bench.ask("again-1")
        await bench.until("dlq", 1, WAIT_S)
        bench.ask("again-1")
        await bench.until("dlq", 2, WAIT_S)
        await desk.run("resume", "--cancelled", "again-1")
        await engine.event("cancellation_ended", timeout_s=WAIT_S)
        bench.ask("again-1")
        counts = await bench.finished(["again-1"], timeout_s=WAIT_S)
        await bench.until("results", lambda seen: Counter(parsed(m)["status"] for m in seen)["completed"] == 1, WAIT_S)
    assert counts["again-1", "failed"] == 2
    assert stub.calls == {"again-1": 1}


async def test_an_agents_cancellation_ends_what_it_had_sent_and_nothing_later(bench: Bench, stub: PatientStub, desk: Desk) -> None:
    """Of one agent, in the backlog and in its retry wait, but not what it sends afterwards, and of nobody else."""
    stub.set_rules([Rule.model_validate({"name": "busy", "action": {"status": 503, "headers": {"retry-after": "4"}}})])
    settings = bench.settings(stub.base_url)
    async with Engine(settings) as engine:
        bench.ask("waits-1", agent_id="a")
        await bench.until("retry", 1, WAIT_S)
        await engine.stop()
    stub.set_rules([])
    bench.ask("before-1", "before-2", agent_id="a")
    bench.ask("other-1", agent_id="b")
    await desk.run("cancel", "--agent", "a", "--reason", "runaway", code=0)
    await desk.run("cancel", "--agent", "a", "--reason", "runaway", "--execute")
    bench.ask("after-1", agent_id="a")
    async with Engine(settings):
        counts = await bench.finished(["waits-1", "before-1", "before-2", "other-1", "after-1"], timeout_s=WAIT_S)
    dead, answered = ("waits-1", "before-1", "before-2"), ("other-1", "after-1")
    assert counts == dict.fromkeys([*((i, "failed") for i in dead), *((i, "completed") for i in answered)], 1)
    assert stub.calls == {"waits-1": 1, "other-1": 1, "after-1": 1}


async def test_orders_outlive_what_redis_loses(mine: Bench, stub: PatientStub, redis: Any) -> None:
    """Emptied under a running worker: the worker still holds back what was paused, and writes the order again for everybody."""
    settings = mine.settings(stub.base_url)
    store = Store(redis.url, mine.namespace)
    await store.open()
    entry = Entry("pause", Scope(agent="a"), "ada", "why", await store.time_ms())
    assert await store.orders.put(entry)
    async with Engine(settings) as engine:
        redis.flush()
        told = await engine.event("controls_restored", timeout_s=WAIT_S)
        assert told["orders"] == 1
        assert await store.orders.entries() == [entry]
        assert engine.named("resumed_by_operator") == []
    await store.close()


async def test_status_tells_who_works_what_waits_and_who_paused_it(bench: Bench, stub: PatientStub, desk: Desk) -> None:
    """Against a running worker: its lanes, what waits behind a pause with who and why, an open dead letter, Redis; and on a screen the same."""
    settings = bench.settings(stub.base_url, instance="w-1")
    async with Engine(settings, "main", "retry", "dlq") as engine:
        bench.send(b"not json", key=b"k")
        bench.flush()
        await bench.until("dlq", 1, WAIT_S)
        await desk.run("pause", "--all", "--reason", "night", "--by", "ada", "--for", "30m")
        await engine.event("paused_by_operator", timeout_s=WAIT_S)
        bench.ask("waits-1", "waits-2")
        await engine.event("lane_paused", timeout_s=WAIT_S)
        told = await status_until(bench, settings, counted_by_a_worker)
        lanes = {line["lane"]: line for line in told["lane"]}
        assert lanes["main"]["lag"] == 2
        assert {lane: line["workers"] for lane, line in lanes.items()} == {"main": 1, "retry": 1, "wheels": 1, "dlq": 1}
        (worker,) = told["worker"]
        assert (worker["instance"], worker["silent"], set(worker["lanes"])) == ("w-1", False, {"main", "retry", "dlq"})
        (order,) = told["order"]
        assert (order["action"], order["scope"], order["by"], order["reason"]) == ("pause", {}, "ada", "night")
        assert told["redis"][0]["admission"] == "open"
        assert (told["dead_letters"][0]["open"], told["dead_letters"][0]["by_class"]) == (1, {"undecodable": 1})
        (endpoint,) = told["endpoint"]
        assert endpoint == {
            "kind": "endpoint", "provider": "stub", "endpoint": address_of(stub.base_url), "in_flight": 0, "workers": 1, "out": {}, "unhealthy": 0,
        }  # fmt: skip
        said, _ = await desk.run("status")
        for text in ("main", "w-1", endpoint["endpoint"], "everything", "ada", "night", "1 open (undecodable 1)", "admission open"):
            assert text in said, said
    rest = await status_until(bench, settings, lambda found: "summary" in found)
    assert "worker" not in rest, "who stops says that he leaves"
    counts = rest["dead_letters"][0]
    assert (counts["open"], counts["total"]) == (1, 1), "nobody counts any more, so the topic is read"


def counted_by_a_worker(found: dict[str, list[dict[str, Any]]]) -> bool:
    """Its word has come, with the dead letter in it."""
    letters = found["dead_letters"][0]
    return "endpoint" in found and (letters["total"], letters["open"]) == (None, 1)


async def status_until(bench: Bench, settings: Any, enough: Any) -> dict[str, list[dict[str, Any]]]:
    """The status by kind of line, once it is as wanted: a worker speaks every three seconds."""
    store = Store(bench.redis_url, bench.namespace)
    gather = Gather(settings, groups(settings), store)
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                by_kind: dict[str, list[dict[str, Any]]] = {}
                for line in lines(await gather.picture()):
                    by_kind.setdefault(str(line["kind"]), []).append(orjson.loads(orjson.dumps(line)))
                if enough(by_kind):
                    return by_kind
                await asyncio.sleep(0.2)
    finally:
        await store.close()


async def test_status_goes_on_without_redis_or_kafka(bench: Bench, tmp_path: Path) -> None:
    """What cannot be asked is named, the rest is there: exit 4 for one of them, 1 for both."""
    variables = environment(bench, tmp_path)
    no_redis = variables | {"HEADRACE_REDIS_URL": "redis://127.0.0.1:1/0"}
    no_kafka = variables | {"HEADRACE_KAFKA_BOOTSTRAP": "127.0.0.1:1"}
    nothing = no_redis | {"HEADRACE_KAFKA_BOOTSTRAP": "127.0.0.1:1"}
    done = await asyncio.gather(*(headrace(given, "status", "--json", timeout_s=WAIT_S) for given in (no_redis, no_kafka, nothing)))
    assert [one.returncode for one in done] == [4, 4, 1], [one.stderr for one in done]
    kinds = [Counter(orjson.loads(line)["kind"] for line in one.stdout.splitlines()) for one in done]
    assert kinds[0]["lane"] == 4
    assert kinds[1]["redis"] == 1
    assert kinds[2] == {"warning": 2, "summary": 1}


async def test_mistakes_are_named_before_anything_is_ordered(desk: Desk) -> None:
    """A provider nobody configured, with the one that was meant; a cancellation of nothing; a resume of what is not paused."""
    for arguments, code, said in (
        (("pause", "--provider", "stubb"), 2, "did you mean stub?"),
        (("pause",), 2, "say what"),
        (("cancel", "--execute"), 2, "say which"),
        (("resume", "--agent", "nobody"), 3, "nothing of that is paused"),
    ):
        _, log = await desk.run(*arguments, code=code)
        assert said in " ".join(log.replace("│", " ").split()), log

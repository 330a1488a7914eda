"""The client of an event loop, against a real broker, a real worker and the stub LLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from headrace.client import AsyncClient, Client
from headrace.errors import ClientClosed, KafkaUnavailable, RequestRefused, ResultConflict, ResultError, ResultFailed, ResultTimeout
from headrace.local.stub import Rule
from tests.support.bench import Bench
from tests.support.cli import environment, headrace
from tests.support.engine import Engine
from tests.support.fixtures import bench, stub  # noqa: F401  fixtures
from tests.support.proxy import Proxy
from tests.support.stub import PatientStub

PATIENT_S = 40.0
BROKEN = Rule.model_validate({"name": "broken", "match": {"prompt_contains": "[broken]"}, "action": "invalid_request"})
SLOW = Rule.model_validate({"name": "slow", "match": {"prompt_contains": "[slow]"}, "action": {"latency": {"fixed_ms": 700}}})
HANG = Rule.model_validate({"name": "hang", "match": {"prompt_contains": "[hang]"}, "action": "hang"})


def request(request_id: str, prompt: str = "hello") -> dict[str, str]:
    return {"request_id": request_id, "prompt": prompt}


@pytest.fixture
async def engine(bench: Bench, stub: PatientStub) -> AsyncIterator[Engine]:  # noqa: F811
    """Give a worker, and a model that breaks, hangs or dawdles where the prompt says so."""
    stub.set_rules((BROKEN, SLOW, HANG))
    async with Engine(bench.settings(stub.base_url)) as running:
        yield running


async def test_asked_answered_and_nothing_kept(bench: Bench, stub: PatientStub, engine: Engine) -> None:  # noqa: F811
    """Each of many requests gets its own answer for one call, alone and as they come; afterwards the client holds nothing."""
    async with AsyncClient(engine.settings) as client:
        one = await client.ask(request("one"), timeout=PATIENT_S)
        assert (one.request_id, one.status, bool(one.text())) == ("one", "completed", True)
        ids = await client.submit_many(request(f"many-{n}") for n in range(300))
        results = [result async for result in client.as_completed(ids, timeout=PATIENT_S)]
        assert sorted(result.request_id for result in results) == sorted(ids)
        assert {result.data()["request_id"] for result in results if result.ok} == set(ids)
        assert not client._registry.entries
        assert client._registry.room._value == 10_000
    assert stub.calls == dict.fromkeys(["one", *ids], 1)


async def test_what_was_answered_before_is_found_by_time(bench: Bench, stub: PatientStub, engine: Engine) -> None:  # noqa: F811
    """A client opened afterwards gets the same answer, and the same failure, without a call; a changed request is a conflict."""
    async with AsyncClient(engine.settings) as client:
        first = await client.ask(request("a"), timeout=PATIENT_S)
        with pytest.raises(ResultFailed) as failed:
            await client.ask(request("b", "[broken]"), timeout=PATIENT_S)
        assert failed.value.error_class == "invalid_request"
    async with AsyncClient(engine.settings) as client:
        again = await client.ask(request("a"), timeout=PATIENT_S)
        assert again.value == first.value
        with pytest.raises(ResultFailed) as failed:
            await client.ask(request("b", "[broken]"), timeout=PATIENT_S)
        assert failed.value.error_class == "invalid_request"
        with pytest.raises(ResultConflict):
            await client.ask(request("a", "another"), timeout=PATIENT_S)
        since = datetime.now(UTC) - timedelta(minutes=5)
        assert (await client.result("a", since=since, timeout=PATIENT_S)).value == first.value
        with pytest.raises(RequestRefused, match="since"):
            await client.result("a", timeout=1)
    assert stub.calls == {"a": 1, "b": 1}


async def test_a_replay_answers_what_had_failed(bench: Bench, stub: PatientStub, engine: Engine, tmp_path: Path) -> None:  # noqa: F811
    """The failure ends the wait; after a replay against a healed model the answer is there for who asks since then."""
    began = datetime.now(UTC)
    async with AsyncClient(engine.settings) as client:
        with pytest.raises(ResultFailed):
            await client.ask(request("d", "[broken]"), timeout=PATIENT_S)
        stub.heal()
        replayed = await headrace(environment(bench, tmp_path), "dlq", "replay", "--class", "invalid_request", "--execute")
        assert replayed.returncode == 0, replayed.stderr
        await bench.finished(["d"])
        await bench.until("results", lambda seen: any(message.value() and b'"completed"' in message.value() for message in seen))
        assert (await client.result("d", since=began, timeout=PATIENT_S)).ok
        assert (await client.ask(request("d", "[broken]"), timeout=PATIENT_S)).ok
    assert stub.calls == {"d": 2}


async def test_a_copy_of_one_under_way_gets_its_answer(bench: Bench, stub: PatientStub, engine: Engine) -> None:  # noqa: F811
    """Two clients with one request: both get the one answer."""
    async with AsyncClient(engine.settings) as left, AsyncClient(engine.settings) as right:
        both = await asyncio.gather(*(client.ask(request("s", "[slow]"), timeout=PATIENT_S) for client in (left, right)))
        assert both[0].value == both[1].value
    assert stub.calls == {"s": 1}


async def test_a_wait_that_ends_early_leaves_nothing(bench: Bench, stub: PatientStub, engine: Engine) -> None:  # noqa: F811
    """Too late is ResultTimeout, cancelled is cancelled; a submitted one may be asked for again, one that was asked at once is forgotten."""
    async with AsyncClient(engine.settings, max_outstanding=2) as client:
        with pytest.raises(ResultTimeout):
            await client.ask(request("h", "[hang]"), timeout=0.5)
        asked = asyncio.create_task(client.ask(request("c", "[hang]")))
        await stub.wait_calls(2)
        asked.cancel()
        await asyncio.wait({asked})
        assert asked.cancelled()
        assert (client._registry.entries, client._registry.room._value) == ({}, 2)
        slow = await client.submit(request("s", "[slow]"))
        with pytest.raises(ResultTimeout):
            await client.result(slow, timeout=0.2)
        assert (await client.result(slow, timeout=PATIENT_S)).ok


async def test_full_is_waited_for(bench: Bench, stub: PatientStub, engine: Engine) -> None:  # noqa: F811
    """With room for two, a third is sent when one of them has ended."""
    async with AsyncClient(engine.settings, max_outstanding=2) as client:
        await client.submit_many([request("h1", "[slow]"), request("h2", "[slow]")])
        third = asyncio.create_task(client.submit(request("third")))
        await stub.wait_calls(2)
        assert not third.done()
        async with asyncio.timeout(PATIENT_S):
            await third
        assert (await client.result("third", timeout=PATIENT_S)).ok


async def test_a_worker_that_starts_again_answers_what_waits(bench: Bench, stub: PatientStub) -> None:  # noqa: F811
    """Requests submitted while no worker runs, and in the middle of its end, are answered once by the next."""
    settings = bench.settings(stub.base_url)
    async with AsyncClient(settings) as client:
        ids = await client.submit_many(request(f"w{n}") for n in range(100))
        async with Engine(settings) as engine:
            await stub.wait_calls(20)
            assert await engine.stop() == 0
        async with Engine(settings):
            results = [result async for result in client.as_completed(ids, timeout=PATIENT_S)]
    assert len(results) == 100
    assert all(result.ok for result in results)
    assert stub.calls == dict.fromkeys(ids, 1)


async def test_what_is_refused_is_never_sent(bench: Bench) -> None:  # noqa: F811
    """What no lane would take is refused with the field, and its content is not repeated; so is an id with two contents."""
    async with AsyncClient(bench.settings("http://127.0.0.1:1/v1")) as client:
        for bad in ({"prompt": "secret"}, {"request_id": "a", "promt": "secret"}, {"request_id": "a", "body": {"stream": True}}, b"secret"):
            with pytest.raises(RequestRefused) as refused:
                await client.submit(bad)  # type: ignore[arg-type]
            assert "secret" not in str(refused.value)
        with pytest.raises(RequestRefused, match="request 1"):
            await client.submit_many([request("good"), {"request_id": "x"}])
        with pytest.raises(RequestRefused, match="shorten"):
            await client.submit(request("large", "x" * 2_000_000))
        await client.submit(request("a"))
        with pytest.raises(RequestRefused, match="another content"):
            await client.submit(request("a", "other"))
    assert len(await bench.until("main", 1)) == 1


async def test_an_outage_of_the_broker_is_waited_through(bench: Bench, stub: PatientStub, engine: Engine) -> None:  # noqa: F811
    """Connections cut and refused for a while: what was submitted before is answered, what is submitted meanwhile goes out afterwards."""
    async with Proxy(bench.kafka) as proxy:
        settings = bench.settings(stub.base_url, kafka=proxy.bootstrap)
        async with AsyncClient(settings) as client, AsyncClient(settings, send_timeout_s=1.0) as hasty:
            await client.ask(request("before"), timeout=PATIENT_S)
            proxy.refusing = True
            proxy.cut()
            asked = asyncio.create_task(client.ask(request("meanwhile"), timeout=PATIENT_S))
            with pytest.raises(ResultError):
                await client.ask(request("impatient"), timeout=0.5)
            with pytest.raises(KafkaUnavailable, match="did not take"):
                await hasty.submit(request("hasty"))
            assert hasty._registry.room._value == 10_000
            proxy.refusing = False
            assert (await asked).ok
            assert (await client.ask(request("after"), timeout=PATIENT_S)).ok


async def test_a_topic_made_anew_and_partitions_added(bench: Bench, stub: PatientStub) -> None:  # noqa: F811
    """Results in partitions that came later are read, and so are those of a topic of results that was deleted and created again."""
    settings = bench.settings(stub.base_url)
    async with AsyncClient(settings) as client:
        follower = client._reader._follower  # type: ignore[union-attr]
        bench.admin.create_partitions([NewPartitions(bench.names.results, 6)])[bench.names.results].result(10)
        follower._look_at_s = 0.0
        ids = [f"p{n}" for n in range(12)]
        async with Engine(settings):
            results = [await client.ask(request(request_id), timeout=PATIENT_S) for request_id in ids]
        assert len(results) == 12
        bench.recreate("results")
        async with Engine(settings):
            assert (await client.ask(request("anew"), timeout=PATIENT_S)).ok


def test_the_blocking_client(kafka: str, redis_url: str, namespace: str) -> None:
    """The same from threads without a loop: a submitted one times out without a worker, an unopened client says so, a closed one too."""
    made = Bench(kafka, redis_url, namespace)
    try:
        with Client(made.settings("http://127.0.0.1:1/v1")) as client:
            assert client.submit(request("x")) == "x"
            with pytest.raises(ResultTimeout):
                client.result("x", timeout=0.1)
            with pytest.raises(ResultTimeout):
                list(client.as_completed(["x"], timeout=0.1))
            client.forget("x")
        with pytest.raises(ClientClosed, match="not open"):
            client.submit(request("y"))
    finally:
        made.close()

"""The end of a worker: what is in flight is finished or left alone, never half done; field cases 7, 11 and 12."""

from __future__ import annotations

import asyncio

from headrace.errors import Exit
from headrace.local.stub import Latency, Rule, StubLLM
from tests.support.bench import Bench
from tests.support.engine import Engine

pytest_plugins = ["tests.support.fixtures"]

IDS = [f"r{number:02}" for number in range(40)]


def slow(ms: float) -> list[Rule]:
    """Every call takes that long."""
    return [Rule.model_validate({"name": "slow", "action": {"latency": Latency(fixed_ms=ms).model_dump()}})]


async def test_calls_that_end_within_the_grace_are_never_repeated(bench: Bench, stub: StubLLM) -> None:
    """SIGTERM with 20 calls in flight and 20 not begun: exit 0; after a restart every id was called exactly once."""
    stub.set_rules(slow(1_000))
    bench.ask(*IDS)
    settings = bench.settings(stub.base_url, limits={"concurrency": 20})
    async with Engine(settings, "main") as engine:
        await stub.wait_in_flight(20)
        assert await engine.stop() is Exit.DONE
    assert stub.total_calls == 20, "nothing new begins after the signal"
    assert len(bench.read("results", wait_s=1)) == 20, "and what ended is settled before the exit"
    stub.heal()
    async with Engine(settings, "main") as engine:
        counts = await bench.finished(IDS)
        await bench.until_drained(["main"])
        await engine.stop()
    assert stub.calls == dict.fromkeys(IDS, 1)
    assert counts == {(request_id, "completed"): 1 for request_id in IDS}


async def test_a_call_cut_off_by_the_end_of_the_grace_is_made_again(bench: Bench, stub: StubLLM) -> None:
    """Calls longer than the grace: their offsets stay, the next worker calls them again once, one result each; no attempt was spent."""
    stub.set_rules(slow(30_000))
    bench.ask(*IDS[:10], partition=0)
    settings = bench.settings(stub.base_url, grace_s=0.3, timeout_s=40)
    async with Engine(settings, "main") as engine:
        await stub.wait_in_flight(10)
        await asyncio.wait_for(engine.stop(), 5)
    assert max(bench.standing("main")[0][0], 0) == 0
    assert bench.read("results") == bench.read("retry") == bench.read("dlq") == []
    stub.heal()
    async with Engine(settings, "main") as engine:
        counts = await bench.finished(IDS[:10])
        await bench.until_drained(["main"])
        await engine.stop()
    assert stub.calls == dict.fromkeys(IDS[:10], 2)
    assert {entry.attempt for entry in stub.log} == {1}
    assert counts == {(request_id, "completed"): 1 for request_id in IDS[:10]}


async def test_a_second_signal_skips_the_wait(bench: Bench, stub: StubLLM) -> None:
    """A grace of a minute, and a second SIGTERM: the worker ends within seconds, and nothing of what it cut off is settled."""
    stub.set_rules(slow(30_000))
    bench.ask(*IDS[:5])
    async with Engine(bench.settings(stub.base_url, grace_s=60, timeout_s=40), "main", "retry") as engine:
        await stub.wait_in_flight(5)
        engine.ask_to_stop()
        await engine.event("stopping")
        engine.hurry()
        assert await engine.stop(timeout_s=6) is Exit.DONE
        assert engine.named("stopped")[0]["cut_off"] is True
    assert bench.read("results") == []


async def test_the_retry_heap_is_left_as_it_is(bench: Bench, stub: StubLLM) -> None:
    """A retry not due yet when the worker stops: it stays, and is called once, in time, by the next worker."""
    stub.set_rules([Rule.model_validate({"name": "once", "match": {"first": 1}, "action": {"signal": "rate_limited", "retry_after_s": 2}})])
    bench.ask("r")
    settings = bench.settings(stub.base_url)
    async with Engine(settings) as engine:
        await bench.until("retry", 1)
        await engine.stop(timeout_s=10)
    assert stub.total_calls == 1
    async with Engine(settings) as engine:
        await bench.finished(["r"])
        await bench.until_drained()
        await engine.stop()
    assert stub.calls == {"r": 2}
    assert stub.log[1].t_ms - stub.log[0].t_ms >= 2_000


async def test_one_record_a_clean_stop_and_a_restart_that_reads_nothing(bench: Bench, stub: StubLLM) -> None:
    """After one record and a stop the committed offset is one behind it; a restart calls nothing."""
    bench.ask("only", partition=0)
    settings = bench.settings(stub.base_url)
    async with Engine(settings, "main") as engine:
        await bench.results(1)
        await engine.stop()
    assert bench.standing("main")[0][0] == 1
    async with Engine(settings, "main") as engine:
        await engine.event("assigned")
        bench.ask("more", partition=0)
        await bench.results(2)
        await engine.stop()
    assert stub.calls == {"only": 1, "more": 1}

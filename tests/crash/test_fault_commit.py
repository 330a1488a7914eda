"""The end of a transaction made uncertain, and producers taken away: what landed is known, nothing is lost, doubled or called again."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.config import Settings
from headrace.errors import Refused
from headrace.local.stub import StubLLM
from tests.support.bench import Bench, parsed
from tests.support.engine import Engine
from tests.support.faults import AGAIN, FAR_S, Asking, slow
from tests.support.proxy import ADD_OFFSETS_TO_TXN, ADD_PARTITIONS_TO_TXN, END_TXN, PRODUCE, TXN_OFFSET_COMMIT, Proxy

pytest_plugins = ["tests.support.fixtures"]

CUTS = int(os.environ.get("HEADRACE_TEST_AMBIGUOUS_CUTS", "15"))
UNANSWERED = int(os.environ.get("HEADRACE_TEST_UNANSWERED_COMMITS", "1"))  # each takes the shortest transaction time-out, 2 s
IN_A_TRANSACTION = frozenset({PRODUCE, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT, END_TXN})
pytestmark = pytest.mark.timeout(120 + 4 * CUTS + 20 * UNANSWERED)
BOTH = pytest.mark.parametrize("reached", [True, False], ids=["it reached the broker", "it never did"])


def settings_of(bench: Bench, stub: StubLLM, kafka: str, **changes: Any) -> Settings:
    """Quick, small settles; the shortest transaction time-out."""
    limits = {"concurrency": 8, "settle_interval_ms": 0}
    return bench.settings(stub.base_url, kafka=kafka, limits=limits, kafka_settings={"transaction_timeout_ms": 2_000}, **changes)


@BOTH
async def test_cut_between_a_commit_and_its_answer(bench: Bench, stub: StubLLM, reached: bool) -> None:
    """Half of all EndTxn are cut, before the broker or behind it, in lanes and wheels: one result an id, no call repeated, lag 0."""
    chance = random.Random(12)
    stub.set_rules([AGAIN, slow(5, 40)])
    cut: Counter[str] = Counter()
    asking = Asking(bench, stub)

    def half(api: int) -> bool:
        chosen = api == END_TXN and chance.random() < 0.5
        cut[proxy.client.removeprefix(bench.namespace)] += chosen
        return chosen

    async with Proxy(bench.kafka) as proxy, Engine(settings_of(bench, stub, proxy.bootstrap), "main", "retry") as engine:
        await asking.ask(20, far_s=FAR_S)
        proxy.cut_after, proxy.cut_before = (half, None) if reached else (None, half)
        await asking.until(lambda: proxy.cuts >= CUTS, timeout_s=20 + 4 * CUTS)
        await asking.until(lambda: cut[".wheels.move"] > 0, far_s=FAR_S)
        proxy.cut_after = proxy.cut_before = None
        await asking.settled()
        await engine.stop()
    assert {name for name, times in cut.items() if times} == {".main.settle", ".retry.settle", ".wheels.move"}


@BOTH
async def test_a_commit_that_is_never_answered(bench: Bench, stub: StubLLM, monkeypatch: pytest.MonkeyPatch, reached: bool) -> None:
    """EndTxn and its repetitions go without an answer until the producer is given up: the committed map tells rightly whether it landed."""
    monkeypatch.setattr("headrace.transaction.STEP_S", 0.5)
    stub.set_rules([AGAIN, slow(5, 40)])
    asking, replaced = Asking(bench, stub), 0

    def until_replaced(api: int) -> bool:
        return api == END_TXN and proxy.client.endswith(".settle") and len(engine.named("producer_replaced")) <= replaced

    async with Proxy(bench.kafka) as proxy, Engine(settings_of(bench, stub, proxy.bootstrap), "main", "retry") as engine:
        while replaced < UNANSWERED:
            proxy.cut_after, proxy.cut_before = (until_replaced, None) if reached else (None, until_replaced)
            await asking.until(lambda n=replaced: len(engine.named("ambiguous_commit")) > n)
            replaced += 1
        proxy.cut_after = proxy.cut_before = None
        await asking.settled()
        await engine.stop()
    told = [event["landed"] for event in engine.named("ambiguous_commit")]
    assert len(told) >= UNANSWERED
    assert set(told) == {reached}, f"{told}"


@BOTH
async def test_a_commit_of_the_wheels_that_is_never_answered(
    bench: Bench, stub: StubLLM, monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    """The wheels' EndTxn go without an answer until their producer is given up: each record comes back from the wheels exactly once."""
    monkeypatch.setattr("headrace.wheels.mover.CALL_S", 1.0)
    asking, given_up, moving = Asking(bench, stub), 0, False

    def failures() -> int:
        return sum(bool(event["committing"]) for event in engine.named("wheels_settle_failed"))

    def until_given_up(api: int) -> bool:
        nonlocal moving  # the first transaction has nothing but offsets
        ours = proxy.client.endswith(".wheels.move")
        moving = moving or (ours and api == PRODUCE)
        return ours and moving and api == END_TXN and failures() <= given_up

    async with Proxy(bench.kafka) as proxy, Engine(settings_of(bench, stub, proxy.bootstrap), "main", "retry") as engine:
        while given_up < UNANSWERED:
            proxy.cut_after, proxy.cut_before = (until_given_up, None) if reached else (None, until_given_up)
            await asking.until(lambda n=given_up: failures() > n, far_s=FAR_S)
            given_up += 1
        proxy.cut_after = proxy.cut_before = None
        await asking.settled()
        await engine.stop()
    await assert_moved_once(bench, asking)


async def test_cuts_anywhere_in_a_transaction(bench: Bench, stub: StubLLM) -> None:
    """Records, partitions, offsets and ends of transactions cut, before the broker or behind it, in lanes and wheels: nothing lost or doubled."""
    chance = random.Random(28)
    stub.set_rules([AGAIN, slow(5, 40)])
    asking = Asking(bench, stub)
    cut: Counter[int] = Counter()

    def sometimes(api: int) -> bool:
        chosen = api in IN_A_TRANSACTION and proxy.client.endswith((".settle", ".wheels.move")) and chance.random() < 0.08
        cut[api] += chosen
        return chosen

    async with Proxy(bench.kafka) as proxy, Engine(settings_of(bench, stub, proxy.bootstrap), "main", "retry") as engine:
        await asking.ask(100, far_s=FAR_S)
        proxy.cut_after = proxy.cut_before = sometimes
        await asking.until(lambda: proxy.cuts >= CUTS, timeout_s=20 + 4 * CUTS)
        proxy.cut_after = proxy.cut_before = None
        await asking.settled()
        await engine.stop()
    assert len(+cut) > 2, f"requests of several kinds: {cut}"


async def assert_moved_once(bench: Bench, asking: Asking) -> None:
    """The retry topic has each record once for the lane, and, where the lane did not hold it itself, once back from the wheels."""
    await bench.until("retry", lambda seen: {parsed(message)["request_id"] for message in seen} >= set(asking.ids), timeout_s=40)
    seen, before = bench.read("retry", wait_s=1), -1
    while before < len(seen):
        before = len(seen)
        seen = await asyncio.to_thread(bench.read, "retry", wait_s=1)
    copies = Counter(parsed(message)["request_id"] for message in seen)
    assert copies.keys() == set(asking.ids)
    assert set(copies.values()) <= {1, 2}
    assert 2 in copies.values(), "nothing went by the wheels"


def take_over(bench: Bench, name: str) -> None:
    """What a second process of that transactional id does when it starts."""
    rival = Producer({"bootstrap.servers": bench.kafka, "transactional.id": f"{bench.namespace}.{name}", "retry.backoff.ms": 10})
    rival.init_transactions(20)


async def settling(engine: Engine, asking: Asking, lane: str) -> None:
    """Until that lane has settled once more: then it has a producer."""
    before = len(engine.named("settled"))
    await asking.until(lambda: any(event["lane"] == lane for event in engine.named("settled")[before:]))


async def test_a_fenced_producer_is_replaced_where_no_rival_can_be(bench: Bench, stub: StubLLM) -> None:
    """Without a name of its own a worker has no rival: fenced five times in mid-work, in both lanes, it takes a new producer each time."""
    stub.set_rules([AGAIN, slow(5, 40)])
    asking = Asking(bench, stub)
    async with Engine(settings_of(bench, stub, bench.kafka), "main", "retry") as engine:
        incarnation = (await engine.event("started"))["incarnation"]
        for replaced, lane in enumerate(("main", "retry", "main", "retry", "main")):
            await settling(engine, asking, lane)
            await asyncio.to_thread(take_over, bench, f"{lane}.{incarnation}")
            await asking.until(lambda n=replaced: len(engine.named("producer_replaced")) > n)
        await asking.settled()
        await engine.stop()


async def test_fenced_twice_under_a_name_it_stops_and_says_so(bench: Bench, stub: StubLLM) -> None:
    """Fenced once, it may have been the coordinator, and work goes on; again soon, another has its name: exit 5. A next worker settles the rest, once."""
    stub.set_rules([AGAIN, slow(5, 40)])
    asking = Asking(bench, stub)
    settings = bench.settings(stub.base_url, instance="same", limits={"concurrency": 8, "unsettled_outcomes": 32})
    first = Engine(settings, "main", "retry")
    await first.start()
    assert first.task is not None, "it was started"
    await settling(first, asking, "main")
    await asyncio.to_thread(take_over, bench, "main.same")
    await asking.until(lambda: bool(first.named("producer_replaced")))
    await settling(first, asking, "main")
    await asyncio.to_thread(take_over, bench, "main.same")
    await asking.until(first.task.done)
    with pytest.raises(Refused, match="HEADRACE_INSTANCE"):
        first.task.result()
    asking.history.killed(calls_in_flight=2 * 8, unsettled=2 * 32)  # of two lanes; it cannot settle, so it need not be killed
    async with Engine(settings, "main", "retry") as second:
        await asking.settled()
        await second.stop()


async def test_the_wheels_fenced_in_mid_work_take_a_new_producer(bench: Bench, stub: StubLLM) -> None:
    """Another takes the wheels' name once, while they move records: a new producer, each record moved once."""
    asking = Asking(bench, stub)
    async with Engine(settings_of(bench, stub, bench.kafka, instance="same"), "main", "retry") as engine:
        await asking.until(lambda: bool(engine.named("wheels_moved")), far_s=FAR_S)
        await asyncio.to_thread(take_over, bench, "wheels.same")
        await asking.until(lambda: bool(engine.named("wheels_settle_failed")), far_s=FAR_S)
        await asking.settled()
        await engine.stop()
    await assert_moved_once(bench, asking)

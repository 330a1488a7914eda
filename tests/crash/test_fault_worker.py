"""What happens to workers under load: killed, asked to stop, frozen, their clocks stepped. Each run is audited as a whole."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.local.stub import Rule
from tests.support.audited import audited
from tests.support.bench import Bench
from tests.support.fleet import Fleet
from tests.support.history import History
from tests.support.load import Load, faulty
from tests.support.servers import own_redis
from tests.support.stub import PatientStub
from tests.support.worker import STEP_S, Worker

pytest_plugins = ["tests.support.fixtures"]

DEEDS = int(os.environ.get("HEADRACE_TEST_DEEDS", "3"))
EVERY_S = 2.0
SETTLING_S = 2.0
HEAD_S = 60.0
BEHIND = int(os.environ.get("HEADRACE_TEST_BEHIND", "5000"))
LIMITS = {"concurrency": 16, "unsettled_outcomes": 32}
TIMES = {"transaction_timeout_ms": 5_000}


@pytest.fixture
def wide(kafka: str, redis_url: str, namespace: str) -> Iterator[Bench]:
    """Give topics with more partitions than workers."""
    made = Bench(kafka, redis_url, namespace, main=6, retry=3)
    yield made
    made.close()


async def settle(bench: Bench, fleet: Fleet, load: Load) -> None:
    """The load ends, all of it is settled, and the fleet is stopped."""
    load.stop()
    await bench.finished(load.ids, timeout_s=60)
    await bench.until_drained(["main", "retry", "later"], timeout_s=60)
    await fleet.close()


async def under_load(bench: Bench, stub: PatientStub, history: History, seed: int, *, deed: str, grace_s: float, size: int = 3) -> int:
    """DEEDS times, every 2 s, do it to a random worker of a loaded fleet, and start another. How many calls were cut off."""
    chance = random.Random(seed)
    stub.set_rules(faulty(100, 600))
    settings = bench.settings(stub.base_url, timeout_s=2.0, grace_s=grace_s, limits=LIMITS, kafka_settings=TIMES)
    cut_off = 0
    async with Fleet(settings, stub, history, size=size) as fleet, asyncio.TaskGroup() as group:
        load = Load(bench, history, chance, rate_s=40)
        group.create_task(load.run())
        await stub.wait_calls(30)
        for _ in range(DEEDS):
            worker = fleet.pick(chance)
            match deed:
                case "kill":
                    fleet.kill(worker)
                case "stop":
                    await fleet.stop(worker)
                case "cut_off":
                    cut_off += await fleet.cut_off(worker, again=False)
            await fleet.fill()
            await asyncio.sleep(EVERY_S)
        await settle(bench, fleet, load)
    return cut_off


async def test_kill_9_of_a_random_worker_every_2_s(wide: Bench, stub: PatientStub) -> None:
    """Three workers under load, one of them killed every 2 s: nothing is lost or doubled, extra calls stay within what was under way."""
    history = History()
    await under_load(wide, stub, history, 1, deed="kill", grace_s=20)
    await audited(wide, stub, history)


async def test_sigterm_with_a_grace_longer_than_the_calls_costs_no_call(wide: Bench, stub: PatientStub) -> None:
    """A random worker asked to stop every 2 s, the calls shorter than its grace: not one call is made twice."""
    history = History()
    await under_load(wide, stub, history, 2, deed="stop", grace_s=20)
    verdict = await audited(wide, stub, history)
    assert verdict.extra_calls == 0, f"{verdict.extra_calls} extra calls"


async def test_sigterm_with_a_grace_shorter_than_the_calls_costs_those_it_cuts_off(wide: Bench, stub: PatientStub) -> None:
    """A random worker asked to stop every 2 s with hardly a grace: at most the calls it cut off are made again."""
    history = History()
    cut_off = await under_load(wide, stub, history, 3, deed="cut_off", grace_s=0.05)
    verdict = await audited(wide, stub, history)
    assert cut_off > 0, "nothing was in flight"
    assert verdict.extra_calls <= cut_off, f"{verdict.extra_calls} extra calls, {cut_off} cut off"


async def test_frozen_until_another_has_taken_over_what_it_held(wide: Bench, stub: PatientStub) -> None:
    """SIGSTOP until others have called and settled what it held, then SIGCONT: its own answers are settled by nobody, nothing is doubled."""
    history = History()
    chance = random.Random(4)
    stub.set_rules(faulty(100, 600))
    settings = wide.settings(stub.base_url, timeout_s=2.0, limits=LIMITS, kafka_settings=TIMES)
    async with Fleet(settings, stub, history, size=2) as fleet, asyncio.TaskGroup() as group:
        load = Load(wide, history, chance, rate_s=40)
        group.create_task(load.run())
        await stub.wait_calls(60)
        frozen, other = chance.sample(fleet.running, 2)
        await fleet.freeze(frozen, _taken_over(other, wide))
        await frozen.event("assigned", count=1 + len(frozen.named("assigned")), timeout_s=40)
        await settle(wide, fleet, load)
    verdict = await audited(wide, stub, history)
    assert verdict.extra_calls > 0, "nothing it held was taken over: it was not frozen long enough"


async def _taken_over(worker: Worker, bench: Bench) -> None:
    """Until it has called, in another's place, what that one had claimed; and a while in which that may be settled."""

    def taken() -> int:
        """Of the retry lane every claim is one taken over."""
        return sum(told["topic"] == bench.names.main for told in worker.named("claim_taken_over"))

    before = taken()
    await worker.until(lambda: taken() > before, "claim taken over", 60)
    await asyncio.sleep(SETTLING_S)


async def test_wall_clocks_an_hour_wrong_and_stepped_under_load(wide: Bench, stub: PatientStub) -> None:
    """One worker starts an hour behind, one is stepped +1 h, −2 h, +1 h: no retry is early or late, nothing expires, nothing is repeated."""
    history = History()
    stub.set_rules(
        [
            Rule.model_validate(
                {"name": "later", "match": {"share": 0.5, "first": 1}, "action": {"signal": "rate_limited", "retry_after_s": 2}}
            ),
            Rule.model_validate({"name": "slow", "action": {"latency": {"uniform_ms": [20, 200]}}}),
        ]
    )
    deadline = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + STEP_S / 2))
    settings = wide.settings(stub.base_url, limits=LIMITS)
    ids = [f"r{number:03}" for number in range(300)]
    with Worker(settings) as stepped, Worker(settings, ahead_s=-STEP_S) as behind:
        for worker in (stepped, behind):
            await worker.event("started", timeout_s=40)
        for number, step in enumerate((signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR2, signal.SIGUSR1)):
            part = ids[75 * number : 75 * (number + 1)]
            called = stub.total_calls
            for request_id in part:
                history.produced(request_id)
            wide.ask(*part, deadline_at=deadline)
            await stub.wait_calls(called + 75)
            stepped.signal(step)
            await stepped.event("wall_clock_stepped", count=number + 1)
        counts = await wide.finished(ids, timeout_s=60)
        await wide.until_drained(["main", "retry", "later"], timeout_s=30)
        for worker in (stepped, behind):
            worker.signal(signal.SIGTERM)
        assert [await worker.exit_code() for worker in (stepped, behind)] == [0, 0]
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    assert (await audited(wide, stub, history)).extra_calls == 0
    waits_s = _waits_s(stub)
    assert waits_s, "nothing was retried"
    assert min(waits_s) >= 2.0, f"a retry {min(waits_s):.3f} s after it was refused"
    assert max(waits_s) < STEP_S / 60, f"a retry {max(waits_s):.1f} s after it was refused"


def _waits_s(stub: PatientStub) -> list[float]:
    """How long after its refusal each retried id was called again."""
    at_ms: dict[str, list[float]] = {}
    for entry in stub.log:
        at_ms.setdefault(entry.request_id or "", []).append(entry.t_ms)
    return [(times[1] - times[0]) / 1000 for times in at_ms.values() if len(times) > 1]


async def test_a_kill_behind_a_slow_head_with_redis_emptied_repeats_none_of_what_is_finished(
    kafka: str, namespace: str, stub: PatientStub, tmp_path: Path
) -> None:
    """A 60 s call at the head, thousands finished behind it, `kill -9`, Redis emptied: the map alone keeps them from being called again."""
    history = History()
    ids = [f"r{number:04}" for number in range(BEHIND)]
    head: dict[str, object] = {"match": {"request_ids": ["head"]}, "action": {"latency": {"fixed_ms": HEAD_S * 1000}}}
    stub.set_rules([Rule.model_validate({"name": "head"} | head)])
    with own_redis(tmp_path) as redis:
        bench = Bench(kafka, redis.url, namespace, main=1)
        settings = bench.settings(stub.base_url, timeout_s=2 * HEAD_S)
        for request_id in ("head", *ids):
            history.produced(request_id)
        bench.ask("head", *ids)
        with Worker(settings, "main") as first:
            await bench.finished(ids, timeout_s=60)
            assert stub.in_flight == 1, "the head is still under way"
            history.killed(calls_in_flight=1, unsettled=0)
            first.kill()
        redis.flush()
        assert max(bench.standing("main")[0][0], 0) == 0, "the head holds the offset"
        stub.set_rules([])
        with Worker(settings, "main") as second:
            await bench.finished(["head"], timeout_s=60)
            await bench.until_drained(["main"])
            second.signal(signal.SIGTERM)
            assert await second.exit_code() == 0
        await audited(bench, stub, history, lanes=("main",))
        bench.close()
    assert stub.calls == dict.fromkeys(ids, 1) | {"head": 2}

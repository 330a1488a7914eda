"""Connections to the broker cut at random moments, and workers killed in between: one result an id, calls within the bound, lag 0."""

from __future__ import annotations

import asyncio
import os
import random
import signal

from headrace.local.stub import Rule, StubLLM
from tests.support.bench import Bench
from tests.support.proxy import END_TXN, Proxy
from tests.support.worker import Worker

pytest_plugins = ["tests.support.fixtures"]

ROUNDS = int(os.environ.get("HEADRACE_TEST_CUT_ROUNDS", "2"))  # each ends with a kill, but for the last
CONCURRENCY = 16
CUTS = 20


def slow(low: float, high: float) -> Rule:
    """Calls that take that long."""
    return Rule.model_validate({"name": "slow", "action": {"latency": {"uniform_ms": [low, high]}}})


async def test_cuts_while_settling_with_kills_in_between(bench: Bench, stub: StubLLM) -> None:
    """Twenty cuts of every connection, every fifth EndTxn unanswered, `kill -9` in the middle of them: nothing lost, nothing doubled."""
    chance = random.Random(20)
    ids = [f"r{number:04}" for number in range(600 * ROUNDS)]
    stub.set_rules([slow(5, 60)])
    kills = 0
    async with Proxy(bench.kafka) as proxy:
        ends = 0

        def every_fifth(api: int) -> bool:
            nonlocal ends
            ends += api == END_TXN
            return api == END_TXN and ends % 5 == 0

        settings = bench.settings(
            stub.base_url,
            kafka=proxy.bootstrap,
            instance="same",
            limits={"concurrency": CONCURRENCY, "settle_interval_ms": 0, "unsettled_outcomes": 32},
        )
        for round_ in range(ROUNDS):
            bench.ask(*ids[600 * round_ : 600 * (round_ + 1)])
            called = stub.total_calls
            proxy.cut_after = every_fifth
            with Worker(settings, "main") as worker:
                await stub.wait_calls(called + 60)
                for number in range(CUTS // ROUNDS + 1):
                    await asyncio.sleep(chance.uniform(0.02, 0.25))
                    proxy.refusing = number % 5 == 4
                    proxy.cut()
                    if proxy.refusing:
                        await asyncio.sleep(0.3)
                        proxy.refusing = False
                if round_ < ROUNDS - 1:
                    worker.kill()
                    kills += 1
                    continue
                proxy.cut_after = None
                counts = await bench.finished(ids, timeout_s=60)
                await bench.until_drained(["main"], timeout_s=30)
                worker.signal(signal.SIGTERM)
                assert await worker.exit_code() == 0
    assert proxy.cuts >= CUTS, "too few cuts"
    assert counts == {(request_id, "completed"): 1 for request_id in ids}
    extra = stub.total_calls - len(ids)
    assert 0 <= extra <= kills * (2 * CONCURRENCY + 32), f"{extra} extra calls after {kills} kills"

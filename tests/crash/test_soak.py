"""The random run: workers, broker and Redis fail in an order that a seed decides, under load; then everything is audited."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.audited import audited
from tests.support.bench import Bench
from tests.support.chaos import LANES, LOSSES, SERVER_FAULTS, WORKER_FAULTS, Chaos, schedule
from tests.support.fleet import Fleet
from tests.support.history import History
from tests.support.load import Load, faulty
from tests.support.servers import OwnKafka, OwnRedis, own_kafka, own_redis
from tests.support.stub import PatientStub

pytest_plugins = ["tests.support.fixtures"]

SECONDS = float(os.environ.get("HEADRACE_SOAK_S", "0"))  # whole rounds are run, one at least
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "4"))
RATE_S = float(os.environ.get("HEADRACE_SOAK_RATE_S", "40"))
LONG = SECONDS >= 120
SETTLE_S = 90.0  # after the last fault: sessions and claims lapse, and the backlog is worked off
KINDS = WORKER_FAULTS + SERVER_FAULTS + LOSSES
CLOSED_S = None if LONG else 3.0  # after each loss; in earnest 15 s


@pytest.fixture(scope="module")
def own_broker() -> Iterator[OwnKafka]:
    """Give a broker of this run's own."""
    with own_kafka() as server:
        yield server


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[OwnRedis]:
    """Give a Redis of this run's own."""
    with own_redis(tmp_path) as server:
        yield server


@pytest.fixture
def mine(own_broker: OwnKafka, redis: OwnRedis, namespace: str) -> Iterator[Bench]:
    """Give topics on that broker, with more partitions than workers."""
    made = Bench(own_broker.bootstrap, redis.url, namespace, main=6, retry=3)
    yield made
    made.close()


@pytest.mark.timeout(SECONDS + 400)
async def test_everything_fails_in_random_order_under_load(
    mine: Bench, own_broker: OwnKafka, redis: OwnRedis, stub: PatientStub, tmp_path: Path
) -> None:
    """Whatever fails, in whatever order: every request ends once, no rule is broken, calls stay within the bound, lag 0."""
    history = History()
    chance = random.Random(SEED)
    stub.set_rules(faulty(20, 400))
    load = Load(mine, history, chance, rate_s=RATE_S)
    settings = mine.settings(
        stub.base_url,
        timeout_s=2.0,
        grace_s=20,
        limits={"concurrency": 16, "unsettled_outcomes": 32},
        kafka_settings={"transaction_timeout_ms": 5_000},
    )
    async with Fleet(settings, stub, history, size=3, closed_s=CLOSED_S) as fleet:
        chaos = Chaos(mine, fleet, load, own_broker, redis, history, long=LONG)
        try:
            await chaos.run(SECONDS, schedule(SEED, KINDS))
            await mine.finished(load.ids, timeout_s=SETTLE_S)
            await mine.until_drained(LANES, timeout_s=SETTLE_S)
            await fleet.close()
            verdict = await audited(mine, stub, history)
        except BaseException as error:
            error.add_note(chaos.report(tmp_path / "history.ndjson"))
            error.add_note(f"again: HEADRACE_SOAK_SEED={SEED} HEADRACE_SOAK_S={SECONDS:g}")
            raise
    sys.stdout.write(
        f"seed {SEED}: {sum(chaos.counts.values())} faults {dict(chaos.counts)}, {verdict.ids} ids, {load.copies} copies, "
        f"{verdict.calls} calls, {verdict.extra_calls} extra of at most {verdict.bound}\n"
    )

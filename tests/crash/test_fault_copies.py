"""Copies of a request where they hurt: beside a kill between commit and mark, and among retries and replays of the same ids."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.local.stub import Rule
from tests.support.audited import audited
from tests.support.bench import Bench, parsed
from tests.support.fleet import Fleet
from tests.support.history import History
from tests.support.stub import PatientStub
from tests.support.worker import Worker

pytest_plugins = ["tests.support.fixtures"]

TOPICS_YAML = Path(__file__).parents[2] / "topics.yaml"
IDS = int(os.environ.get("HEADRACE_TEST_COPIED_IDS", "60"))
STORM_S = float(os.environ.get("HEADRACE_TEST_STORM_S", "8"))


@pytest.fixture
def wide(kafka: str, redis_url: str, namespace: str) -> Iterator[Bench]:
    """Give topics with more partitions than workers."""
    made = Bench(kafka, redis_url, namespace, main=4, retry=2)
    yield made
    made.close()


def action(name: str, action: object, **match: object) -> Rule:
    """One rule of the stub."""
    return Rule.model_validate({"name": name, "match": match, "action": action})


def produce(bench: Bench, history: History, ids: list[str], partition: int = -1) -> None:
    """Ask for these, written down."""
    for request_id in ids:
        history.produced(request_id)
    bench.ask(*ids, partition=partition)


async def end(worker: Worker) -> None:
    """A graceful stop."""
    worker.signal(signal.SIGTERM)
    assert await worker.exit_code() == 0, worker.account


@pytest.mark.parametrize("elsewhere", [False, True], ids=["read-again", "waiting-elsewhere"])
async def test_a_kill_between_commit_and_mark_with_copies_waiting(bench: Bench, stub: PatientStub, *, elsewhere: bool) -> None:
    """The worker dies with the commit made and the mark not written; copies wait in the other partition, of its own or of a second
    worker: each ends as a duplicate, and nothing that was committed is called or completed again.
    """
    history = History()
    stub.set_rules([action("slow", {"latency": {"fixed_ms": 2_000}})])
    settings = bench.settings(stub.base_url)
    ids = [f"r{number:02}" for number in range(20)]
    with Worker(settings, dies_at="mark") as first:
        await first.event("assigned", timeout_s=40)
        second = Worker(settings) if elsewhere else None
        theirs = await _only_partition(second) if second else 1
        produce(bench, history, ids, 1 - theirs)
        await stub.wait_in_flight(20)
        produce(bench, history, ids, theirs)
        await first.event("dying", timeout_s=40)
        await asyncio.to_thread(first.process.wait, 20)
        died_at_ms = time.time() * 1000
        history.killed(calls_in_flight=0, unsettled=len(ids))
    committed = {parsed(m)["request_id"] for m in await bench.until("results", lambda seen: len(seen) > 0)}
    with second or Worker(settings) as last:
        await bench.until("results", lambda seen: _notices(seen) >= set(ids), timeout_s=60)
        await bench.until_drained(["main", "retry", "later"], timeout_s=40)
        await end(last)
    counts = Counter((r["request_id"], r["status"]) for r in map(parsed, bench.read("results")))
    assert counts == Counter({(request_id, status): 1 for request_id in ids for status in ("completed", "duplicate")})
    again = [e.request_id for e in stub.log if e.wall_ms > died_at_ms and e.request_id in committed]
    assert not again, f"committed, and called again: {again}"
    await audited(bench, stub, history)


async def _only_partition(worker: Worker) -> int:
    """The partition of two that a worker got that joined another."""
    count = 1
    while not (partitions := [p for p in (await worker.event("assigned", count=count, timeout_s=40))["partitions"] if "-main/" in p]):
        count += 1  # of the other lane, or nothing yet
    assert len(partitions) == 1, f"{partitions}"
    return int(partitions[0].rsplit("/", 1)[1])


def _notices(seen: list[object]) -> set[str]:
    return {r["request_id"] for r in map(parsed, seen) if r["status"] == "duplicate"}  # type: ignore[arg-type]  # messages


async def test_copies_retries_and_replays_of_the_same_ids_at_once_with_kills(wide: Bench, stub: PatientStub, tmp_path: Path) -> None:
    """Dead letters replayed twice at a time, their retries under way, copies sent to every partition, workers killed: one completed an id."""
    history = History()
    chance = random.Random(19)
    stub.set_rules(
        [
            action("refused", "invalid_request", attempts=[1]),
            action("again", "server_error", attempts=[2, 3]),
            action("slow", {"latency": {"uniform_ms": [50, 300]}}),
        ]
    )
    ids = [f"r{number:03}" for number in range(IDS)]
    settings = wide.settings(stub.base_url, limits={"concurrency": 8, "unsettled_outcomes": 16})
    async with Fleet(settings, stub, history, size=2) as fleet:
        produce(wide, history, ids)
        await wide.until("dlq", IDS, timeout_s=40)
        async with asyncio.TaskGroup() as group:
            group.create_task(_copying(wide, history, ids, chance))
            for _ in range(2):
                group.create_task(_replaying(wide, tmp_path))
            group.create_task(_killing(fleet, chance))
        await _replay(wide, tmp_path)
        await wide.until("results", lambda seen: _completed(seen) >= set(ids), timeout_s=60)
        await wide.until_drained(["main", "retry", "later"], timeout_s=60)
        await fleet.close()
    verdict = await audited(wide, stub, history)
    assert verdict.completed == IDS, f"{verdict}"


def _completed(seen: list[object]) -> set[str]:
    return {r["request_id"] for r in map(parsed, seen) if r["status"] == "completed"}  # type: ignore[arg-type]  # messages


async def _copying(bench: Bench, history: History, ids: list[str], chance: random.Random) -> None:
    """Copies of every id to every partition, in random order, all the while."""
    until = time.monotonic() + STORM_S
    while time.monotonic() < until:
        await asyncio.to_thread(produce, bench, history, chance.sample(ids, 10), chance.randrange(bench.partitions("main")))
        await asyncio.sleep(0.2)


async def _killing(fleet: Fleet, chance: random.Random) -> None:
    until = time.monotonic() + STORM_S
    while time.monotonic() < until:
        await asyncio.sleep(2.0)
        fleet.kill(fleet.pick(chance))
        await fleet.fill()


async def _replaying(bench: Bench, folder: Path) -> None:
    until = time.monotonic() + STORM_S
    while time.monotonic() < until:
        await _replay(bench, folder)


async def _replay(bench: Bench, folder: Path) -> None:
    """`headrace dlq replay --execute`: everything that is there, whether it was replayed before or not."""
    topics = folder / "topics.yaml"
    if not topics.exists():
        names = bench.names.model_dump()
        text = TOPICS_YAML.read_text("utf-8")
        for role in names:
            text = re.sub(rf"(\n  {role}:.*\n    name: )\S+", rf"\g<1>{names[role]}", text)
        topics.write_text(text, "utf-8")
    environment = os.environ | {
        "HEADRACE_KAFKA_BOOTSTRAP": bench.kafka,
        "HEADRACE_REDIS_URL": bench.redis_url,
        "HEADRACE_NAMESPACE": bench.namespace,
        "HEADRACE_TOPICS": str(topics),
    }
    command = (sys.executable, "-m", "headrace", "dlq", "replay", "--over-cap", "--class", "invalid_request", "--execute")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipe, stderr=pipe)
    _, said = await process.communicate()
    assert process.returncode == 0, said.decode()

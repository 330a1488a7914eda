"""Topics that change under a worker: partitions gained, records compacted, aborted or deleted. Nothing stalls, lag reads exactly 0, losses are told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import orjson
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions

from headrace.committed import Committed
from headrace.lane import groups
from headrace.local.stub import Rule, StubLLM
from headrace.parked import counter
from tests.support.bench import Bench
from tests.support.engine import Engine
from tests.support.faults import AGAIN, Asking, slow, until
from tests.support.servers import OwnKafka, own_kafka

pytest_plugins = ["tests.support.fixtures"]

KEYS = [f"k{number:02}" for number in range(30)]
WIDE = 30_000  # more than a window


@pytest.fixture(scope="module")
def own() -> Iterator[OwnKafka]:
    """Give a broker that compacts all the time."""
    with own_kafka(log_cleaner_backoff_ms="100") as server:
        yield server


@pytest.fixture
def compacting(own: OwnKafka, redis_url: str, namespace: str) -> Iterator[Bench]:
    """Give topics on that broker."""
    made = Bench(own.bootstrap, redis_url, namespace)
    yield made
    made.close()


def configure(bench: Bench, **config: str) -> None:
    """What somebody does to main; `_` stands for `.`."""
    entries = [ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, bench.names.main, incremental_configs=entries)
    for future in bench.admin.incremental_alter_configs([resource]).values():
        future.result(10)


def head(latency_ms: float) -> Rule:
    """The call of the request `head` takes that long."""
    return Rule.model_validate({"name": "head", "match": {"request_ids": ["head"]}, "action": {"latency": {"fixed_ms": latency_ms}}})


def request(request_id: str) -> bytes:
    """A record's value."""
    return orjson.dumps({"request_id": request_id, "prompt": "hello"})


def keyed(bench: Bench, *pairs: tuple[str, str]) -> None:
    """Requests of partition 0 by key and id."""
    for key, request_id in pairs:
        bench.send(request(request_id), key=key.encode(), partition=0)
    bench.flush()


def offsets_of(bench: Bench) -> list[int]:
    """The offsets that main's partition 0 still has."""
    config = {
        "bootstrap.servers": bench.kafka,
        "group.id": f"{bench.namespace}-look",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 20,
    }
    reader = Consumer(config)
    reader.assign([TopicPartition(bench.names.main, 0, 0)])
    found: list[int] = []
    while True:
        message = reader.poll(10)
        assert message is not None, "the partition's end is not reached"
        if message.error() is not None:
            reader.close()
            return found
        found.append(message.offset() or 0)


async def compacted(bench: Bench, below: int) -> None:
    """Main is compacted until nothing below an offset is left of partition 0, then no more: no worker starts with it as it is.

    The last segment is never compacted: it takes records to roll it.
    """
    deadline = time.monotonic() + 40
    configure(bench, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0")
    while min(await asyncio.to_thread(offsets_of, bench)) < below:
        assert time.monotonic() < deadline, "not compacted"
        keyed(bench, ("roll", f"roll{time.monotonic_ns()}"))
        await asyncio.sleep(0.2)
    configure(bench, cleanup_policy="delete", segment_ms="600000000")


async def drained(bench: Bench) -> None:
    """Until lag is exactly 0."""
    await bench.until_drained(["main", "retry"], timeout_s=40)


async def test_every_topic_gains_partitions_under_a_running_worker(bench: Bench, stub: StubLLM) -> None:
    """Main, retry, dead letters and results gain partitions: they are written and read without a restart, and what waits in them is counted."""
    stub.set_rules([AGAIN, slow(1, 10)])
    settings = bench.settings(stub.base_url, kafka_settings={"config": {"topic.metadata.refresh.interval.ms": 500}})
    asking, before = Asking(bench, stub), {bench.names.retry: 2, bench.names.later: 15}
    async with Engine(settings, "main", "retry") as engine:
        await asking.ask(20)
        await stub.wait_calls(20)
        gain(bench, main=4, retry=5, dlq=2, results=3)
        for partition in (2, 3):
            await asking.ask(20, partition=partition)
        await asking.until(lambda: all(ends(bench, "retry")[2:]) and all(ends(bench, "results")))
        await asking.settled()
        await engine.stop()
    for partition in range(5):
        bench.send(request(f"p{partition}"), partition=partition, role="retry")
    bench.flush()
    count = counter(Committed(settings, groups(settings)), settings.topics, before)
    assert sum((await asyncio.to_thread(count)).values()) == 5


def gain(bench: Bench, **partitions: int) -> None:
    """More partitions for these topics. Not to be read by the bench before: its readers stay with what they began with."""
    for future in bench.admin.create_partitions([NewPartitions(getattr(bench.names, role), n) for role, n in partitions.items()]).values():
        future.result(10)
    bench._partitions |= partitions
    bench.producer = Producer({"bootstrap.servers": bench.kafka})  # the old one learns of them only after minutes


def ends(bench: Bench, role: str) -> list[int]:
    """Where the partitions of a topic end."""
    settings = bench.settings("http://127.0.0.1:1/v1")
    topic = getattr(bench.names, role)
    reader = Committed(settings, {topic: f"{bench.namespace}.nobody"})
    return [standing.end for standing in reader.read((topic, p) for p in range(bench.partitions(role))).values()]


async def test_compacted_under_a_running_worker(compacting: Bench, stub: StubLLM) -> None:
    """Settled, in flight and read ahead: a successor of the same key removes the record, and all complete nevertheless, each once."""
    stub.set_rules([head(4_000), slow(5, 40)])
    old, new = [f"old{key}" for key in KEYS], [f"new{key}" for key in KEYS]
    async with Engine(compacting.settings(stub.base_url), "main", "retry") as engine:
        keyed(compacting, ("k00", "head"), *zip(KEYS, old, strict=True))
        await stub.wait_calls(1)
        keyed(compacting, *zip(KEYS, new, strict=True))
        await compacted(compacting, 1 + len(KEYS))
        await compacting.finished(["head", *old, *new], timeout_s=40)
        await drained(compacting)
        await engine.stop()
    assert set(stub.calls.values()) == {1}
    assert not engine.named("records_lost")


async def test_compacted_while_no_worker_runs(compacting: Bench, stub: StubLLM) -> None:
    """What the committed map calls unsettled is compacted away: told as lost, with its number; gaps of what was settled count as settled; lag 0."""
    stub.set_rules([head(60_000)])
    old, new = [f"old{key}" for key in KEYS], [f"new{key}" for key in KEYS]
    settings = compacting.settings(stub.base_url, grace_s=0.1, timeout_s=90)
    async with Engine(settings, "main", "retry") as engine:
        keyed(compacting, ("k00", "head"), *zip(KEYS, old, strict=True))
        await compacting.finished(old, timeout_s=40)
        await engine.stop()
    keyed(compacting, *zip(KEYS, new, strict=True))
    await compacted(compacting, 1 + len(KEYS))
    async with Engine(settings, "main", "retry") as engine:
        await compacting.finished(new, timeout_s=40)
        await drained(compacting)
        await until(lambda: bool(engine.named("records_lost")), "word of the loss", 5)
        await engine.stop()
    assert [event["records"] for event in engine.named("records_lost")] == [1]
    assert set(stub.calls.values()) == {1}


@pytest.mark.parametrize("running", [True, False], ids=["running", "down"])
async def test_aborted_among_good_ones(bench: Bench, stub: StubLLM, running: bool) -> None:
    """A producer that aborts, more than a window at once and last of all: what it aborted is never called and no loss, lag is exactly 0."""
    stub.set_rules([head(2_000), slow(1, 10)])
    asking = Asking(bench, stub)
    writer = Producer({"bootstrap.servers": bench.kafka, "transactional.id": f"{bench.namespace}.writer", "linger.ms": 5})
    await asyncio.to_thread(writer.init_transactions, 20)

    async def write(*, good: int, aborted: int) -> None:
        writer.begin_transaction()
        for number in range(aborted):
            writer.produce(bench.names.main, request(f"a{number}"), partition=0)
            writer.poll(0)
        await asyncio.to_thread(writer.flush, 20)
        await asyncio.to_thread(writer.abort_transaction, 20)
        if good:
            await asking.ask(good, partition=0)

    async def everything() -> None:
        keyed(bench, ("head", "head"))
        for good, aborted in ((5, 10), (5, WIDE), (1, 1), (10, 300), (0, 20)):
            await write(good=good, aborted=aborted)

    if not running:
        await everything()
    async with Engine(bench.settings(stub.base_url), "main", "retry") as engine:
        if running:
            await everything()
        asking.ids.append("head")
        await asking.settled()
        await engine.stop()
    assert not engine.named("records_lost")


async def test_everything_deleted_to_the_end(bench: Bench, stub: StubLLM) -> None:
    """All records of a partition deleted, running and down, settled and in flight: what was unsettled and unread is told, lag is 0, work goes on."""
    stub.set_rules([head(3_000), slow(1, 10)])
    ids = [f"r{number:03}" for number in range(40)]
    settings = bench.settings(stub.base_url)
    async with Engine(settings, "main", "retry") as engine:
        bench.ask("head", *ids[:20], partition=0)
        await bench.finished(ids[:20])
        delete(bench)
        await bench.finished(["head"])
        await drained(bench)
        bench.ask(*ids[20:30], partition=0)
        await bench.finished(ids[20:30])
        await drained(bench)
        await engine.stop()
    assert not engine.named("records_lost")
    bench.ask("never", "called", partition=0)
    delete(bench)
    async with Engine(settings, "main", "retry") as engine:
        await drained(bench)
        bench.ask(*ids[30:], partition=0)
        await bench.finished(ids[30:])
        await drained(bench)
        await engine.stop()
    assert [event["records"] for event in engine.named("records_lost")] == [2]
    assert stub.calls == dict.fromkeys(["head", *ids], 1)


def delete(bench: Bench, below: int = -1) -> None:
    """Delete main's partition 0 up to an offset; up to its end by default."""
    for future in bench.admin.delete_records([TopicPartition(bench.names.main, 0, below)]).values():
        future.result(10)


async def test_records_deleted_from_the_wheels_are_told(bench: Bench, stub: StubLLM) -> None:
    """Retries that wait on a wheel are deleted while no worker runs: told with their number, and what comes after them is moved and called."""
    settings = bench.settings(stub.base_url, grace_s=0.1)
    async with Engine(settings, "main", "retry") as engine:
        bench.ask(*KEYS, next_retry_at=time.time() + 3_600)
        await until(lambda: sum(ends(bench, "later")) > 0, "a record on the wheels")
        await bench.until_drained(["main", "retry"])
        await until(lambda: any(at >= 0 for at, _, _ in bench.standing("later").values()), "a committed offset of the wheels")
        await engine.stop()
    wheels = [TopicPartition(bench.names.later, p, -1) for p, end in enumerate(ends(bench, "later")) if end]
    for future in bench.admin.delete_records(wheels).values():
        future.result(10)
    async with Engine(settings, "main", "retry") as engine:
        bench.ask("after", next_retry_at=time.time() + 5)
        await bench.finished(["after"], timeout_s=40)
        await bench.until_drained(["main", "retry", "later"], timeout_s=40)
        await engine.stop()
    told = engine.named("records_lost")
    assert {str(event["partition"]).rsplit("/", 1)[0] for event in told} == {bench.names.later}
    assert sum(event["records"] for event in told) >= len(KEYS), "transaction markers among them count too"
    assert stub.calls == {"after": 1}

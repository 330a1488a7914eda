"""A bench of one's own on the broker: five topics, a producer, and readers of what came out."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from headrace import topics
from headrace.committed import Committed
from headrace.config import ClassPolicy, KafkaSettings, LimitSettings, PauseSettings, ProviderSettings, RedisSettings, Settings, TopicNames
from headrace.errors import ErrorClass
from headrace.lane import groups
from headrace.topics.drift import fit
from headrace.topics.file import Shape

FEW = {"main": 2, "retry": 2, "dlq": 1, "results": 1}
WHEELS = 15  # partitions of the topic that is not in FEW
QUICK = ClassPolicy(calls=5, in_all_s=3600, base_s=0.05, cap_s=0.2)
RETRIED = (
    ErrorClass.RATE_LIMITED, ErrorClass.OVERLOADED, ErrorClass.SERVER_ERROR, ErrorClass.CONNECTION,
    ErrorClass.TIMEOUT, ErrorClass.INVALID_RESPONSE, ErrorClass.INTERNAL,
)  # fmt: skip


def quick_policy(**calls: int) -> dict[ErrorClass, ClassPolicy]:
    """Short backoffs; the design's bounds on calls, or those given by class."""
    defaults = {"timeout": 3, "invalid_response": 3, "internal": 3}
    return {c: QUICK.model_copy(update={"calls": (defaults | calls).get(c.value, 5)}) for c in RETRIED}


class Bench:
    """Topics under a name nobody else uses. `settings()` points a worker at them."""

    def __init__(self, kafka: str, redis_url: str, namespace: str, *, sizes: dict[str, int] | None = None, **partitions: int) -> None:
        self.kafka, self.redis_url, self.namespace = kafka, redis_url, namespace
        self.names = TopicNames(**{role: f"{namespace}-{role}" for role in ("main", "retry", "later", "dlq", "results")})
        # the other strategy loses sight of a broker that was started again; and of one that is away by intent nobody need be told
        self._client: dict[str, Any] = {"bootstrap.servers": kafka, "metadata.recovery.strategy": "none", "log_level": 2}
        self.admin = AdminClient(self._client)
        self._partitions = FEW | partitions
        self._create(sizes or {})
        self.producer = Producer(self._client | {"linger.ms": 2, "message.max.bytes": 20_000_000})
        self._refused: list[str] = []
        self._readers: dict[str, Consumer] = {}
        settings = self.settings("http://127.0.0.1:1/v1")
        self._committed = Committed(settings, groups(settings))
        self.seen: dict[str, list[Message]] = {}

    def _create(self, sizes: dict[str, int], *, only: str | None = None) -> None:
        shapes = fit(topics.wanted(self.settings("http://127.0.0.1:1/v1")), 1, None)
        for role, shape in shapes.items():
            if only not in (None, role):
                continue
            config = dict(shape.config) | ({"max.message.bytes": str(sizes[role])} if role in sizes else {})
            self.create(replace(shape, partitions=self._partitions.get(role, shape.partitions), config=config))

    def recreate(self, role: str) -> None:
        """Delete a topic, and create it again, empty."""
        self.delete(getattr(self.names, role))
        deadline = time.monotonic() + 20
        while not self._unknown(getattr(self.names, role)):
            assert time.monotonic() < deadline, f"{role} does not go away"
            time.sleep(0.05)
        self._create({}, only=role)

    def away(self, *, retention_ms: int | None = None) -> None:
        """Delete every topic; with a retention, make them again with it and one partition each."""
        self.delete()
        deadline = time.monotonic() + 20
        for name in self.names.model_dump().values():
            while not self._unknown(name):
                assert time.monotonic() < deadline, f"{name} does not go away"
                time.sleep(0.05)
            if retention_ms is not None:
                self.create(Shape(name, 1, 1, {"retention.ms": str(retention_ms)}))

    def create(self, shape: Any) -> None:
        """Create one topic."""
        new = NewTopic(shape.name, shape.partitions, 1, config=dict(shape.config))
        for future in self.admin.create_topics([new]).values():
            future.result(10)
        deadline = time.monotonic() + 10
        while shape.name not in self.admin.list_topics(shape.name, timeout=10).topics or self._unknown(shape.name):
            assert time.monotonic() < deadline, f"{shape.name} does not appear"

    def _unknown(self, name: str) -> bool:
        described = self.admin.describe_topics(TopicCollection([name]))[name]
        return described.exception(10) is not None

    def delete(self, *names: str) -> None:
        """Delete topics, all of the bench's by default."""
        for future in self.admin.delete_topics(list(names or self.names.model_dump().values())).values():
            future.exception(10)

    def close(self) -> None:
        """Give back what the broker holds for this bench."""
        for reader in self._readers.values():
            reader.close()
        self.producer.flush(5)
        self.delete()

    def settings(self, base_url: str, *, kafka: str | None = None, **changes: Any) -> Settings:
        """Settings of a worker. `limits`, `policy`, `timeout_s`, `pause` and any other field may be given."""
        provider = ProviderSettings(
            name="stub", base_url=base_url, api_key="sk-test", default_model="m", timeout_s=changes.pop("timeout_s", 5.0)
        )
        broker = KafkaSettings(bootstrap=kafka or self.kafka, **changes.pop("kafka_settings", {}))
        values: dict[str, Any] = {
            "namespace": self.namespace,
            "kafka": broker,
            "redis": RedisSettings(url=self.redis_url),
            "topics": self.names,
            "providers": (provider,),
            "policy": quick_policy(),
            "limits": LimitSettings(**changes.pop("limits", {})),
            "pause": PauseSettings(**changes.pop("pause", {})),
        }
        return Settings(**(values | changes))

    def partitions(self, role: str) -> int:
        """How many partitions the topic of a role has."""
        return self._partitions.get(role, WHEELS)

    def send(self, value: bytes | None, *, key: bytes | None = None, headers: Any = None, partition: int = -1, role: str = "main") -> None:
        """Produce one record; `flush` makes sure of it."""
        self.producer.produce(getattr(self.names, role), value, key, partition, headers=headers, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._refused.append(error.str())

    def ask(self, *ids: str, prompt: str = "hello", partition: int = -1, **fields: Any) -> None:
        """Produce one request for each id, and wait until the broker has them."""
        for request_id in ids:
            value = orjson.dumps({"request_id": request_id, "prompt": prompt, **fields})
            self.send(value, key=request_id.encode(), partition=partition)
            self.producer.poll(0)
        self.flush()

    def flush(self) -> None:
        """Wait until the broker has everything that was sent."""
        assert self.producer.flush(20) == 0, "the broker did not take everything"
        assert not self._refused, f"the broker refused what the test sent: {self._refused}"

    def read(self, role: str, *, wait_s: float = 0.2) -> list[Message]:
        """Everything seen of a topic so far (read_committed), a little more read from it."""
        topic = getattr(self.names, role)
        if role not in self._readers:
            reader = Consumer(
                self._client
                | {"group.id": f"{self.namespace}-reader", "isolation.level": "read_committed", "fetch.wait.max.ms": 20}
                | {"enable.auto.commit": False}
            )
            reader.assign([TopicPartition(topic, p, 0) for p in range(self.partitions(role))])
            self._readers[role], self.seen[role] = reader, []
        self.seen[role] += [m for m in self._readers[role].consume(5_000, wait_s) if m.error() is None]
        return self.seen[role]

    async def until(self, role: str, enough: int | Callable[[list[Message]], bool], timeout_s: float = 20) -> list[Message]:
        """The topic's records once there are enough of them."""
        done = enough if callable(enough) else lambda seen: len(seen) >= enough
        deadline = time.monotonic() + timeout_s
        while not done(seen := await asyncio.to_thread(self.read, role)):
            assert time.monotonic() < deadline, f"{role}: {len(seen)} records after {timeout_s} s"
        return seen

    async def results(self, enough: int, *, timeout_s: float = 20) -> list[dict[str, Any]]:
        """Parsed results once there are `enough`."""
        return [parsed(m) for m in await self.until("results", enough, timeout_s)]

    async def finished(self, ids: Iterable[str], *, timeout_s: float = 30) -> Counter[tuple[str, str]]:
        """Once every id has a final result: how many results there are by (id, status)."""
        wanted = set(ids)
        final = ("completed", "failed")

        def done(seen: list[Message]) -> bool:
            return wanted <= {r["request_id"] for r in map(parsed, seen) if r["status"] in final}

        try:
            seen = await self.until("results", done, timeout_s)
        except AssertionError as late:
            counts = Counter((r["request_id"], r["status"]) for r in map(parsed, self.seen["results"]))
            missing = sorted(wanted - {i for i, status in counts if status in final})
            odd = {key: n for key, n in counts.items() if n > 1 or key[1] not in ("completed", "failed")}
            raise AssertionError(
                f"{late}; {len(missing)} ids without an end: {missing[:5]}; more than once, or notices: {dict(list(odd.items())[:9])}"
            ) from None
        return Counter((r["request_id"], r["status"]) for r in map(parsed, seen))

    def standing(self, lane: str) -> dict[int, tuple[int, str, int]]:
        """By partition of a lane's topic (`later`: the wheels'): committed offset, its metadata, and the log's end."""
        topic = getattr(self.names, lane)
        # after a restart of the broker, ends are refused to those who know the old leader's epoch
        self.admin.list_topics(topic, timeout=10)
        partitions = range(self.partitions(lane))
        committed = {tp.partition: tp for tp in self._committed.offsets((topic, p) for p in partitions)}
        ends = self.admin.list_offsets({TopicPartition(topic, p): OffsetSpec.latest() for p in partitions})  # type: ignore[no-untyped-call]  # theirs
        log_end = {tp.partition: f.result(10).offset for tp, f in ends.items()}
        return {p: (tp.offset, tp.metadata or "", log_end[p]) for p, tp in committed.items()}

    async def until_drained(self, lanes: Sequence[str] = ("main", "retry"), timeout_s: float = 15) -> None:
        """Until the committed offset of every partition of these lanes is the log's end, markers included.

        Twice in a row, with the same ends: what one lane hands on while the others are looked at belongs to none of them.
        """
        deadline = time.monotonic() + timeout_s
        before: object = None
        while True:
            try:
                standings = {lane: await asyncio.to_thread(self.standing, lane) for lane in lanes}
            except KafkaException:  # the broker has only just come back, and is not ready to say
                if time.monotonic() >= deadline:
                    raise
                continue
            behind = {(lane, p): (at, end) for lane, by in standings.items() for p, (at, _, end) in by.items() if max(at, 0) != end}
            if not behind and standings == before:
                return
            before = standings
            assert all(at <= end for at, end in behind.values()), f"committed beyond the log's end: {behind}"
            assert time.monotonic() < deadline, f"still behind: {behind}"
            await asyncio.sleep(0.1)


def parsed(message: Message) -> dict[str, Any]:
    """A result's value."""
    return dict(orjson.loads(message.value() or b"{}"))


def raw_headers(message: Message) -> list[tuple[str, bytes | None]]:
    """Headers as they are; the client's stubs allow a dictionary and text, which are never read."""
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])


def headers_of(message: Message) -> dict[str, str]:
    """Headers by name, as text; the last of repeated ones."""
    return {name: (value or b"").decode("utf-8", "replace") for name, value in raw_headers(message)}

"""Faults in a random order that a seed decides, on three workers, their broker and their Redis, while requests keep coming."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
from confluent_kafka import KafkaException

from tests.support.bench import Bench
from tests.support.fleet import Fleet
from tests.support.history import History
from tests.support.load import Load
from tests.support.servers import OwnKafka, OwnRedis
from tests.support.worker import accounts

WORKER_FAULTS = ("kill", "stop", "cut_off", "freeze", "join_and_leave")
SERVER_FAULTS = ("kafka_restart", "redis_freeze")
LOSSES = ("redis_flushed", "redis_restarted_empty", "redis_restarted_old")
LANES = ("main", "retry", "later")
SAMPLE_S = 3.0
PAUSE_S = (0.2, 3.0)
LOSS_S = 90.0  # until everything is restored from the results: seconds, but for those 15 in which claims are asserted anew
FROZEN_S = (8.0, 10.0)  # beyond the session's and the transaction's time-out
LONG_FROZEN_S = (8.0, 20.0)  # and beyond the life of a claim


@dataclass(frozen=True, slots=True)
class Deed:
    """One fault, and how long nothing is done after it. `draw` seeds its own choices, so that none depends on time."""

    kind: str
    pause_s: float
    draw: int


def schedule(seed: int, kinds: tuple[str, ...]) -> Iterator[list[Deed]]:
    """Rounds without end: each has every kind once, in an order of its own."""
    chance = random.Random(seed)
    while True:
        order = chance.sample(kinds, len(kinds))
        yield [Deed(kind, chance.uniform(*PAUSE_S), chance.getrandbits(32)) for kind in order]


class Chaos:
    """`await chaos.run(seconds)`: whole rounds until the time is up. `done` says what was done, and when."""

    def __init__(self, bench: Bench, fleet: Fleet, load: Load, kafka: OwnKafka, redis: OwnRedis, history: History, *, long: bool) -> None:
        self.done: list[tuple[float, Deed]] = []
        self._bench = bench
        self._fleet = fleet
        self._load = load
        self._kafka = kafka
        self._redis = redis
        self._history = history
        self._frozen_s = LONG_FROZEN_S if long else FROZEN_S
        self._frozen_redis_s, self._snapshot_s = (30.0, 60.0) if long else (5.0, 5.0)
        self._began = time.monotonic()

    @property
    def counts(self) -> Counter[str]:
        """How often each kind was done."""
        return Counter(deed.kind for _, deed in self.done)

    def report(self, path: Path) -> str:
        """What was done, when, and what became of the workers; the history is written to `path`."""
        path.write_bytes(b"".join(orjson.dumps(event, default=str, option=orjson.OPT_APPEND_NEWLINE) for event in self._history.events))
        done = "\n".join(f"  {at:7.1f} s {deed.kind}, seeded {deed.draw}" for at, deed in self.done)
        return f"the history is {path}; what was done:\n{done}\nthe workers:\n{accounts()}"

    async def run(self, seconds: float, rounds: Iterator[list[Deed]]) -> None:
        """Do it, then stop the load and leave everything in order: three workers, both servers up."""
        ended = asyncio.Event()
        beside = [asyncio.create_task(self._load.run()), asyncio.create_task(self._sample(ended))]
        try:
            for deeds in rounds:
                for deed in deeds:
                    await self._do(deed)
                if time.monotonic() - self._began >= seconds:
                    break
        finally:
            self._load.stop()
            ended.set()
            await asyncio.gather(*beside)

    async def _sample(self, ended: asyncio.Event) -> None:
        """Where the groups stand, now and then: what is committed may only grow."""
        while not ended.is_set():
            for lane in LANES:
                topic = getattr(self._bench.names, lane)
                try:
                    standings = await asyncio.to_thread(self._bench.standing, lane)
                except (KafkaException, TimeoutError) as error:  # the broker is away, by our own doing
                    self._history.note("not_sampled", topic=topic, error=str(error))
                    continue
                for partition, (offset, _, _) in standings.items():
                    if offset >= 0:
                        self._history.committed(topic, partition, offset)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAMPLE_S):
                    await ended.wait()

    async def _do(self, deed: Deed) -> None:
        self.done.append((round(time.monotonic() - self._began, 1), deed))
        self._history.note("fault", fault=deed.kind)
        await getattr(self, f"_{deed.kind}")(random.Random(deed.draw))
        await self._fleet.fill()
        await asyncio.sleep(deed.pause_s)
        self._fleet.check()

    async def _kill(self, chance: random.Random) -> None:
        self._fleet.kill(self._fleet.pick(chance))

    async def _stop(self, chance: random.Random) -> None:
        await self._fleet.stop(self._fleet.pick(chance))

    async def _cut_off(self, chance: random.Random) -> None:
        await self._fleet.cut_off(self._fleet.pick(chance))

    async def _freeze(self, chance: random.Random) -> None:
        await self._fleet.freeze(self._fleet.pick(chance), asyncio.sleep(chance.uniform(*self._frozen_s)))

    async def _join_and_leave(self, chance: random.Random) -> None:
        leaving = self._fleet.pick(chance)
        await self._fleet.join()
        await self._fleet.stop(leaving)

    async def _kafka_restart(self, chance: random.Random) -> None:
        await asyncio.to_thread(self._kafka.kill)
        await asyncio.sleep(chance.uniform(0.0, 3.0))
        await asyncio.to_thread(self._kafka.restart)

    async def _redis_freeze(self, chance: random.Random) -> None:
        self._redis.freeze()
        try:
            await asyncio.sleep(self._frozen_redis_s)
        finally:
            self._redis.thaw()

    async def _redis_flushed(self, chance: random.Random) -> None:
        async with self._noticing():
            self._redis.flush()

    async def _redis_restarted_empty(self, chance: random.Random) -> None:
        async with self._noticing():
            self._redis.kill()
            self._redis.forget()
            await asyncio.sleep(chance.uniform(0.0, 2.0))
            self._redis.start()

    async def _redis_restarted_old(self, chance: random.Random) -> None:
        self._redis.save()
        await asyncio.sleep(self._snapshot_s)
        async with self._noticing():
            self._redis.kill()
            self._redis.start()

    @contextlib.asynccontextmanager
    async def _noticing(self) -> AsyncIterator[None]:
        """Every worker is to notice that Redis has lost its data, and to admit again once the marks are restored."""
        before = [(worker, len(worker.named("admission_open"))) for worker in self._fleet.running]
        yield
        for worker, opened in before:
            await worker.event("admission_open", count=opened + 1, timeout_s=LOSS_S)

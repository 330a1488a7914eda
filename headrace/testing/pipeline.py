"""A whole pipeline in memory, for the tests of handlers: requests go in, results and dead letters come out as plain values."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Mapping
from typing import Any

import orjson

from headrace.config import Settings
from headrace.dlq.letter import Letter, read_letter
from headrace.dlq.replay import Terms, replayed
from headrace.envelope import Job
from headrace.handler import Handler, call_model
from headrace.once import field_of
from headrace.outcome import Outcome, Output
from headrace.store.memory import MemoryServer
from headrace.testing.crashes import Crashes, CrashingTransport
from headrace.testing.loop import FrozenTime, JumpingLoop, abandon
from headrace.testing.model import FakeModel
from headrace.testing.topics import MemoryTopics, nobody
from headrace.testing.worker import MemoryWorker
from headrace.testing.world import FrozenClock, World

WITHIN_S = 86_400.0
_REPLAY_LIFE_MS = 7 * 86_400_000
_FINAL = ("completed", "degraded", "failed")


class FakePipeline:
    """`FakePipeline(handle, FakeModel(...))`: `send` requests, `run`, look at `results` and `dead_letters`.

    Decoding, claims, deadlines, policy, retries, `ctx.once` and what is written are the real ones; time stands still while code
    runs and jumps to whatever is next. `settings` is what `headrace.yaml` may say, as a mapping, or Settings. `seed` is that of
    the backoffs' jitter. Not here: Kafka's refusals (an answer too large for its topic), threads, a Redis that is away.
    """

    def __init__(
        self,
        handler: Handler = call_model,
        model: FakeModel | None = None,
        *,
        settings: Settings | Mapping[str, Any] | None = None,
        seed: int = 1,
    ) -> None:
        self.model = model or FakeModel()
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.outcomes: list[tuple[str | None, Outcome]] = []
        self._time = FrozenTime()
        self._clock = FrozenClock(time.time_ns() // 1_000_000, self._time)
        self._crashes = Crashes()
        given = settings if isinstance(settings, Settings) else Settings.model_validate(settings or {})
        if handler is not call_model:
            given = given.model_copy(update={"handler": f"{handler.__module__}:{getattr(handler, '__qualname__', 'handler')}"})
        self._topics = MemoryTopics(given.topics, self._clock.now_ms)
        self._server = MemoryServer(self._clock.now_ms)
        self._world = World(
            given, handler, CrashingTransport(self.model, self._crashes), self._topics, self._server, self._clock, self._crashes,
            random.Random(seed), lambda name, fields: self.events.append((name, fields)), self._settled,  # noqa: S311  jitter
        )  # fmt: skip
        self._numbers = itertools.count(1)
        self._lives = 0

    @property
    def seconds(self) -> float:
        """How much time has passed since the beginning."""
        return self._time.s

    def send(self, request: Mapping[str, Any] | bytes | None = None, /, **fields: Any) -> str:
        """Send a request, as a producer would: its fields (`prompt=…`, or `body=…`), or bytes as they are. Gives its id, `r1`, `r2`, … if it names none."""
        if isinstance(request, bytes):
            self._topics.write(Output(self._topics.names.main, None, request))
            return ""
        whole = {"request_id": f"r{next(self._numbers)}", **(request or {}), **fields}
        self._topics.write(Output(self._topics.names.main, str(whole["request_id"]).encode(), orjson.dumps(whole)))
        return str(whole["request_id"])

    def replay(self, letter: Letter) -> None:
        """Send a dead letter again, as `headrace dlq replay` does."""
        replay_id = f"replay-{next(self._numbers)}"
        self._server.data.replays[replay_id] = self._clock.now_ms() + _REPLAY_LIFE_MS
        self._topics.write(replayed(letter, Terms(self._topics.names.main, replay_id), self._clock.now_ms()))

    def crash(
        self,
        *,
        before: str | None = None,
        within: str | None = None,
        after: str | None = None,
        call: int | None = None,
        settle: str | None = None,
    ) -> None:
        """Have the worker killed (`kill -9`), once, at a point; another takes over when its claims have lapsed.

        `before`, `within`, `after` name a step under `ctx.once`: before it runs, between its effect and its record, after its
        record. `call` is the n-th call of the model, from 1, whose answer is lost. `settle` names a request whose handler has returned.
        """
        points = (("before", before), ("within", within), ("after", after), ("call", call), ("settle", settle))
        given = [(kind, str(value)) for kind, value in points if value is not None]
        if not given:
            raise ValueError("crash(…) needs a point: before, within, after, call or settle")
        for kind, value in given:
            self._crashes.plan((kind, value))  # type: ignore[arg-type]  # kinds are the five above

    def run(self, *, within_s: float = WITHIN_S) -> FakePipeline:
        """Work until everything is settled. Raises AssertionError where that takes more than `within_s` of the frozen time, or a crash did not come."""
        ends_s = self._time.s + within_s
        while self._topics.unresolved():
            self._live(ends_s)
            if self._time.s >= ends_s and self._topics.unresolved():
                waiting = [str(record.position) for record in self._topics.unresolved()]
                raise AssertionError(f"not settled within {within_s:g} s: {', '.join(waiting[:5])}; outcomes so far: {self._story()}")
        if self._crashes.planned:
            raise AssertionError(f"these crashes did not come: {self._crashes.planned}; outcomes: {self._story()}")
        return self

    @property
    def results(self) -> list[dict[str, Any]]:
        """What was written to `llm_results`, notices included, in order."""
        return [orjson.loads(record.value or b"{}") for record in self._topics.of(self._topics.names.results)]

    def result(self, request_id: str) -> dict[str, Any]:
        """The last result that ends a request. Raises AssertionError where there is none."""
        found = [one for one in self.results if one["request_id"] == request_id and one["status"] in _FINAL]
        assert found, f"no result of {request_id}; outcomes: {self._story()}"
        return found[-1]

    def answer(self, request_id: str) -> Any:
        """The body of a completed result. Raises AssertionError where it failed."""
        result = self.result(request_id)
        assert result["status"] == "completed", f"{request_id} ended as {result['status']}: {result['error']}"
        return result["response"]["body"]

    @property
    def dead_letters(self) -> list[Letter]:
        """What was written to the dead-letter topic: `request_id`, `error_class`, `code`, `message`, …"""
        return [read_letter(record) for record in self._topics.of(self._topics.names.dlq)]

    def step(self, request_id: str, key: str) -> Any:
        """The value `ctx.once` keeps for a step; KeyError where it has none."""
        steps = self._server.data.steps.get(request_id, ({}, 0))[0]
        value = steps[field_of(key)].value
        if value is None:
            raise KeyError(f"{key} was begun and never reported back")
        return orjson.loads(value)

    def story(self, request_id: str) -> list[str]:
        """How each attempt at a request ended: `["Retry", "Deferred", "Completed"]`."""
        return [type(outcome).__name__ for who, outcome in self.outcomes if who == request_id]

    def _story(self) -> str:
        return ", ".join(f"{who}: {type(outcome).__name__}" for who, outcome in self.outcomes[-8:]) or "none"

    def _settled(self, job: Job, outcome: Outcome) -> None:
        self.outcomes.append((job.request_id, outcome))

    def _live(self, ends_s: float) -> None:
        """One life of a worker. Beside a running loop it has a thread of its own: two loops cannot run in one."""
        failed: list[BaseException] = []

        def live() -> None:
            try:
                self._life(ends_s)
            except BaseException as error:  # noqa: BLE001  carried over to the test's own thread
                failed.append(error)

        if asyncio._get_running_loop() is None:  # noqa: SLF001  the public one raises instead of saying so
            live()
        else:
            thread = threading.Thread(target=live)
            thread.start()
            thread.join()
        if failed:
            raise failed[0]

    def _life(self, ends_s: float) -> None:
        loop = JumpingLoop(self._time)
        self._lives += 1
        self._crashes.die = loop.stop
        main = loop.create_task(self._whole(f"worker-{self._lives}", ends_s))
        main.add_done_callback(lambda _: loop.stop())
        loop.run_forever()
        self._topics.arrived = nobody
        if main.done():
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            main.result()
        else:
            abandon(loop)

    async def _whole(self, incarnation: str, ends_s: float) -> None:
        try:
            async with asyncio.timeout_at(ends_s):
                await MemoryWorker(self._world, incarnation).run()
        except TimeoutError:
            return

"""Several workers of one bench, and what is done to them. Each deed goes into the history with its bound on extra calls."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Self

from headrace.config import Settings
from tests.support.history import History
from tests.support.stub import PatientStub
from tests.support.worker import Worker

END_S = 60.0  # for a graceful stop: the grace, and the leave


class Fleet:
    """`async with Fleet(settings, stub, history, size=3) as fleet:`. Those in `running` must live; whoever ends by itself is a failure."""

    def __init__(
        self,
        settings: Settings,
        stub: PatientStub,
        history: History,
        *,
        size: int,
        lanes: tuple[str, ...] = ("main", "retry"),
        closed_s: float | None = None,
    ) -> None:
        self.settings = settings
        self.running: list[Worker] = []
        self._stub = stub
        self._history = history
        self._size = size
        self._lanes = lanes
        self._closed_s = closed_s
        # a lane begins nothing while so many outcomes wait; as many calls as it may have at once can be under way by then
        self._most_in_flight = settings.limits.concurrency * len(lanes)
        self._most_unsettled = settings.limits.unsettled_outcomes * len(lanes)

    async def __aenter__(self) -> Self:
        await self.fill()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self.running:
            worker.__exit__(kind, error, trace)

    def pick(self, chance: random.Random) -> Worker:
        """One of those that run."""
        return chance.choice(self.running)

    def check(self) -> None:
        """Fail where a worker has ended that nobody ended."""
        for worker in self.running:
            assert worker.process.poll() is None, f"it ended by itself: {worker.account}"

    async def fill(self) -> None:
        """Start as many as are missing."""
        self.check()
        await asyncio.gather(*(self.join() for _ in range(self._size - len(self.running))))

    async def join(self, **changes: Any) -> Worker:
        """One more, its settings changed."""
        worker = Worker(self.settings.model_copy(update=changes), *self._lanes, closed_s=self._closed_s)
        self.running.append(worker)
        self._history.note("join", pid=worker.process.pid)
        await worker.event("started", timeout_s=END_S)
        return worker

    def kill(self, worker: Worker) -> None:
        """`kill -9`."""
        self._lost_at_most("kill", worker)
        self.running.remove(worker)
        worker.kill()

    async def stop(self, worker: Worker) -> None:
        """SIGTERM, with a grace that is longer than its calls: it costs no call."""
        self.running.remove(worker)
        with worker:
            worker.signal(signal.SIGTERM)
            await self._ended(worker)
            assert not worker.named("stopped")[0]["cut_off"], f"its calls should have ended within the grace: {worker.account}"
        self._history.note("stop", pid=worker.process.pid)

    async def cut_off(self, worker: Worker, *, again: bool = True) -> int:
        """SIGTERM, and once more at once (or its grace is short by itself): at most what was in flight is called again. How many."""
        self.running.remove(worker)
        with worker:
            worker.signal(signal.SIGTERM)
            in_flight = int((await worker.event("stopping", timeout_s=END_S))["calls_in_flight"])
            if again and worker.process.poll() is None:
                worker.signal(signal.SIGTERM)
            await self._ended(worker)
        self._history.killed(calls_in_flight=in_flight, unsettled=0)
        self._history.note("cut_off", pid=worker.process.pid)
        return in_flight

    async def freeze(self, worker: Worker, meanwhile: Awaitable[None]) -> None:
        """SIGSTOP, and SIGCONT after `meanwhile`. Beyond the session's time-out it is, to the others, as good as killed."""
        self._lost_at_most("freeze", worker)
        worker.signal(signal.SIGSTOP)
        try:
            await meanwhile
        finally:
            worker.signal(signal.SIGCONT)
        self._history.note("thaw", pid=worker.process.pid)

    async def close(self) -> None:
        """Stop everyone gracefully; all end with 0."""
        self.check()
        await asyncio.gather(*(self.stop(worker) for worker in list(self.running)))

    def _lost_at_most(self, what: str, worker: Worker) -> None:
        in_flight = min(self._stub.in_flight, self._most_in_flight)
        self._history.note(what, pid=worker.process.pid)
        self._history.killed(calls_in_flight=in_flight, unsettled=self._most_unsettled)

    @staticmethod
    async def _ended(worker: Worker) -> None:
        code = await worker.exit_code(END_S)
        assert code == 0, f"a graceful stop ended with {code}: {worker.account}"

"""A whole worker inside the test's event loop: started, listened to, asked to stop; no signals, no subprocess."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from headrace.build import built
from headrace.config import Settings
from headrace.errors import Exit
from headrace.instrument.counters import Counters
from headrace.process import _Process


class Engine:
    """`async with Engine(settings, "main", "retry") as engine:`. `told` holds every event in order."""

    def __init__(self, settings: Settings, *lanes: str) -> None:
        self.settings = settings
        self.lanes = lanes or ("main", "retry")
        self.told: list[tuple[str, Mapping[str, Any]]] = []
        self.counters = Counters()
        self._waits: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.task: asyncio.Task[Exit] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        """Start, and wait until every lane of it owns something or, with others, nothing."""
        self.task = asyncio.create_task(self._run())
        await self.event("started")

    async def _run(self) -> Exit:
        async with built(self.settings, self.lanes, tell=self._tell) as shared:
            return await _Process(shared, self.lanes).run(self._stop, self._hurry)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.task is not None and not self.task.done():
            self._stop.set()
            self._hurry.set()
        if self.task is not None and error is None:
            await asyncio.wait_for(asyncio.shield(self.task), 60)
        elif self.task is not None:
            await asyncio.wait({self.task}, timeout=60)

    async def stop(self, timeout_s: float = 60) -> Exit:
        """SIGTERM, as it were; the exit code."""
        assert self.task is not None, "not started"
        self._stop.set()
        return await asyncio.wait_for(asyncio.shield(self.task), timeout_s)

    def ask_to_stop(self) -> None:
        """SIGTERM, without waiting."""
        self._stop.set()

    def hurry(self) -> None:
        """A second SIGTERM."""
        self._hurry.set()

    def named(self, name: str) -> list[Mapping[str, Any]]:
        """The fields of every event of a name."""
        return [fields for told, fields in list(self.told) if told == name]

    async def event(self, name: str, *, count: int = 1, timeout_s: float = 20) -> Mapping[str, Any]:
        """The `count`-th event of a name; fails if the worker ends before."""
        await self.until(lambda: len(self.named(name)) >= count, f"event {name}", timeout_s)
        return self.named(name)[count - 1]

    async def until(self, holds: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
        """Until `holds()`, asked again after every event. Fails if the worker ends before."""
        if holds():
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._waits.append((holds, future))
        assert self.task is not None, "not started"
        awaited: set[asyncio.Future[Any]] = {future, self.task}
        await asyncio.wait(awaited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not future.done() and not holds():
            if self.task.done():
                self.task.result()
            raise AssertionError(f"no {what} in {timeout_s} s; the last events: {[n for n, _ in self.told[-12:]]}")

    def _tell(self, name: str, fields: Mapping[str, Any]) -> None:
        self.counters(name, fields)
        self.told.append((name, fields))
        self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        for holds, future in self._waits:
            if not future.done() and holds():
                future.set_result(None)

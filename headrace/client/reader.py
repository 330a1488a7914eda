"""The client's two readers of `llm_results`: a thread that follows it, and a task that looks back for what a notice says was answered before."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from headrace.client.registry import Registry
from headrace.config import Settings
from headrace.errors import KafkaUnavailable
from headrace.results import Asked, Follower, LookBack, Result, Told, meaning
from headrace.worker_thread import WorkerThread

_POLL_S = 0.25
GATHER_S = 0.01  # notices come in bunches, and one look serves them all
AGAIN_S = 1.0
_Word = tuple[bytes, "Result | Asked"]


class Reader:
    """Ends the registry's entries on the loop it was made in. `failed` hears, on that loop, what ended the one or the other."""

    def __init__(self, settings: Settings, registry: Registry, *, failed: Callable[[BaseException], None]) -> None:
        self._settings = settings
        self._registry = registry
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._follower = Follower(settings)
        self._thread = WorkerThread("headrace-client-results", self._follow, last_words=self._died)
        self._closing = False
        self._asked: dict[bytes, Asked] = {}
        self._wanted_since: dict[bytes, int] = {}
        self._asking = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str | None:
        """What the reading suffers from just now."""
        return self._follower.trouble

    async def open(self) -> None:
        """From the topic's end as of now. Raises KafkaUnavailable."""
        await asyncio.to_thread(self._follower.open)
        self._thread.start()
        self._task = asyncio.create_task(self._look_back())
        self._task.add_done_callback(self._looked)

    async def close(self) -> None:
        """Both end."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await asyncio.to_thread(self._thread.stop, 10.0)
        await asyncio.to_thread(self._follower.close)

    def seek(self, key: bytes, since_ms: int) -> None:
        """Look whether an end of this id was appended since then."""
        self._wanted_since[key] = since_ms
        self._asking.set()

    def _follow(self) -> None:
        entries = self._registry.entries
        while not self._thread.stopping.is_set():
            self._thread.turned()
            words: list[_Word] = []
            for record in self._follower.poll(entries, _POLL_S):
                entry = entries.get(record.key)
                said = meaning(record, entry.fingerprint) if entry is not None else None
                if said is not None:
                    words.append((record.key, Result.of(said) if isinstance(said, Told) else said))
            self._call(self._hear, words)

    def _hear(self, words: list[_Word]) -> None:
        for key, said in words:
            if isinstance(said, Result):
                self._registry.end(key, said)
            elif key in self._registry.entries:
                self._asked[key] = said
                self._asking.set()

    async def _look_back(self) -> None:
        while True:
            await self._asking.wait()
            await asyncio.sleep(GATHER_S)
            self._asking.clear()
            asked, self._asked = self._asked, {}
            since, self._wanted_since = self._wanted_since, {}
            try:
                await asyncio.to_thread(self._find, asked, since)
            except KafkaUnavailable as error:
                self._follower.trouble = str(error)
                self._asked, self._wanted_since = asked | self._asked, since | self._wanted_since
                await asyncio.sleep(AGAIN_S)
                self._asking.set()

    def _find(self, asked: dict[bytes, Asked], since: dict[bytes, int]) -> None:
        """On a thread. What is found is taken out; what a notice says has ended, and is nowhere, is gone."""
        entries = self._registry.entries
        looking = LookBack(self._settings, going=lambda: not self._closing and any(key in entries for key in (*asked, *since)))
        if since:
            fingerprints = {key: entry.fingerprint for key in since if (entry := entries.get(key)) is not None}
            self._found(looking.since(fingerprints, min(since.values())), since)
            since.clear()
        self._found(looking.find(dict(asked)), asked)
        if not self._closing:
            gone = [(key, Result(key.decode(), "gone")) for key, what in asked.items() if what.of != "waiting"]
            self._call(self._hear, gone)

    def _found(self, ends: Iterator[Told], wanted: dict[bytes, Any]) -> None:
        for end in ends:
            self._call(self._hear, [(end.key, Result.of(end))])
            wanted.pop(end.key, None)

    def _call(self, hear: Callable[..., None], words: Any) -> None:
        if words:
            with contextlib.suppress(RuntimeError):  # the loop was closed without the client: nobody waits any longer
                self._loop.call_soon_threadsafe(hear, words)

    def _looked(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def _died(self, error: BaseException) -> None:
        self._call(self._failed, error)

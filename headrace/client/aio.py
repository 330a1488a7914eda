"""The client of an event loop: one producer and one reader of `llm_results` for the process, every wait a future.

What is read of others' results is their key. Prompts and answers are never logged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from headrace.client.outbox import Outbox, delivery
from headrace.client.reader import Reader
from headrace.client.registry import Entry, Registry
from headrace.client.sender import Sender
from headrace.client.wording import Ready, ready
from headrace.config import Settings
from headrace.envelope import Request
from headrace.errors import ClientClosed, HeadraceError, RequestRefused, ResultTimeout
from headrace.instrument.crash import words_of
from headrace.loading import load
from headrace.results import Result
from headrace.topics import Topics

_YIELD_EVERY = 100  # judging a request takes some 50 µs, and others use the loop too
_TIDY_S = 30.0
_CLOSE_S = 10.0
Asks = Request | Mapping[str, Any] | bytes


class AsyncClient:
    """`async with AsyncClient() as client: result = await client.ask({...}, timeout=30)`. One for a process; any number of tasks may use it.

    `settings`: those of the environment and `headrace.yaml`, if not given. At most `max_outstanding` requests are without an end: beyond
    that, submitting waits. A result nobody has fetched, and a request nobody waits for, is forgotten after `keep_s`. The broker may take
    `send_timeout_s` to accept a request, its outages included.
    """

    def __init__(
        self, settings: Settings | None = None, *, max_outstanding: int = 10_000, keep_s: float = 3600.0, send_timeout_s: float = 30.0
    ) -> None:
        if max_outstanding < 1:
            raise ValueError("max_outstanding: must be 1 or more")
        self._given = settings
        self._keep_s = keep_s
        self._send_timeout_s = send_timeout_s
        self._registry = Registry(asyncio.Semaphore(max_outstanding))
        self._outbox: Outbox | None = None
        self._reader: Reader | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        """Raises ConfigError or KafkaUnavailable where it could not work."""
        if self._reader is not None or self._closed:
            raise ClientClosed("a client is opened once; make a new one")
        try:
            await self._open(self._given if self._given is not None else await asyncio.to_thread(load))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """What was handed over still goes out; who waits gets ClientClosed. A second time is harmless."""
        if self._closed:
            return
        self._closed = True
        if self._tidying is not None:
            self._tidying.cancel()
        self._registry.close()
        if self._outbox is not None:
            await self._outbox.close(_CLOSE_S)
        if self._reader is not None:
            await self._reader.close()

    async def submit(self, request: Asks) -> str:
        """Its request id, once the broker has it. Its result waits for `result`.

        Raises RequestRefused for what no lane would take, KafkaUnavailable where the broker does not take it in time (it may have: sending
        it again is harmless). An id that is outstanding here already is not sent again.
        """
        outbox = self._opened()
        asked = ready(request, self._topic, self._max_bytes)
        entry, made = await outbox.put(asked)
        try:
            await delivery(entry)
        except asyncio.CancelledError:
            if made and not entry.waiters:
                self._registry.drop(asked.request_id.encode(), entry)
            raise
        return asked.request_id

    async def submit_many(self, requests: Iterable[Asks]) -> list[str]:
        """Their request ids, once the broker has them all. All are judged before the first is sent; raises as `submit` does."""
        outbox = self._opened()
        asked: list[Ready] = []
        for number, request in enumerate(requests):
            try:
                asked.append(ready(request, self._topic, self._max_bytes))
            except RequestRefused as error:
                raise RequestRefused(f"request {number}: {error}; none was sent") from None
            if number % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)
        entries = []
        for number, one in enumerate(asked):
            entries.append((await outbox.put(one))[0])
            if number % _YIELD_EVERY == _YIELD_EVERY - 1:
                await asyncio.sleep(0)
        for entry in entries:
            await delivery(entry)
        return [one.request_id for one in asked]

    async def result(self, request_id: str, *, timeout: float | None = None, since: datetime | None = None) -> Result:  # noqa: ASYNC109  as httpx and redis name it; it raises our own error
        """The answer to a request, which may be `degraded`. It is given once, and then forgotten here.

        For a request that this client has not submitted, `since` is when it was, at the latest. Raises ResultFailed, ResultConflict,
        ResultGone, or ResultTimeout after `timeout` seconds: then it may be asked for again.
        """
        key = request_id.encode()
        entry = self._entry(request_id, since)
        entry.waiters += 1
        try:
            async with asyncio.timeout(timeout):
                result = await asyncio.shield(entry.future)
        except TimeoutError:
            raise self._late(request_id, timeout) from None
        finally:
            self._registry.leave(key, entry)
        return self._open_still(result).check()

    async def ask(self, request: Asks, *, timeout: float | None = None) -> Result:  # noqa: ASYNC109  as above
        """`submit`, then `result`, in `timeout` seconds in all. Cancelled or too late, it leaves nothing behind here; the request itself goes on."""
        outbox = self._opened()
        asked = ready(request, self._topic, self._max_bytes)
        entry, made = None, False
        try:
            async with asyncio.timeout(timeout):
                entry, made = await outbox.put(asked)
                entry.waiters += 1
                await delivery(entry)
                result = await asyncio.shield(entry.future)
        except TimeoutError:
            raise self._late(asked.request_id, timeout) from None
        finally:
            if entry is not None:
                self._registry.leave(asked.request_id.encode(), entry)
                if made and not entry.waiters:
                    self._registry.drop(asked.request_id.encode(), entry)
        return self._open_still(result).check()

    async def as_completed(self, request_ids: Iterable[str], *, timeout: float | None = None) -> AsyncIterator[Result]:  # noqa: ASYNC109  as above
        """Their results as they come, of whatever status: `Result.check` raises for one that failed. Each is given once.

        Raises ResultTimeout, naming one of those missing, after `timeout` seconds in all.
        """
        came: asyncio.Queue[str] = asyncio.Queue()
        open_: dict[str, Entry] = {}
        try:
            for request_id in dict.fromkeys(request_ids):
                entry = open_[request_id] = self._entry(request_id, None)
                entry.waiters += 1
                entry.future.add_done_callback(lambda _, request_id=request_id: came.put_nowait(request_id))  # type: ignore[misc]  # mypy and defaults
            until_s = None if timeout is None else time.monotonic() + timeout
            while open_:
                try:
                    async with asyncio.timeout(None if until_s is None else until_s - time.monotonic()):
                        request_id = await came.get()
                except TimeoutError:
                    raise self._late(next(iter(open_)), timeout, missing=len(open_)) from None
                entry = open_.pop(request_id)
                self._registry.leave(request_id.encode(), entry)
                yield self._open_still(entry.future.result())
        finally:
            for request_id, entry in open_.items():
                self._registry.leave(request_id.encode(), entry)

    def forget(self, request_id: str) -> None:
        """Its result is not wanted any longer. The request itself goes on."""
        entry = self._registry.entries.get(request_id.encode())
        if entry is not None and not entry.waiters:
            self._registry.drop(request_id.encode(), entry)

    async def _open(self, settings: Settings) -> None:
        names = (settings.topics.main, settings.topics.results)
        shapes = await asyncio.to_thread(Topics(settings).existing, names)
        self._topic = settings.topics.main
        self._max_bytes = shapes[self._topic].number("max.message.bytes") or 1_048_588
        self._reader = Reader(settings, self._registry, failed=self._failed)
        await self._reader.open()
        self._outbox = Outbox(self._registry, Sender(settings, timeout_s=self._send_timeout_s), keep_s=self._keep_s)
        self._tidying = asyncio.create_task(self._tidy())

    def _entry(self, request_id: str, since: datetime | None) -> Entry:
        """Who waits for it; made anew, and looked for, where it was submitted elsewhere."""
        self._opened()
        key = request_id.encode()
        entry = self._registry.entries.get(key)
        if entry is not None:
            return entry
        if since is None:
            raise RequestRefused(f"{request_id}: is not outstanding here, or its result was taken already; give since=… to look for it")
        if since.tzinfo is None:
            raise RequestRefused("since: has no time zone; give an aware datetime, e.g. datetime.now(UTC)")
        entry = self._registry.add(key, b"", time.monotonic() + self._keep_s)
        assert self._reader is not None, "it is open"
        self._reader.seek(key, int(since.timestamp() * 1000))
        return entry

    def _opened(self) -> Outbox:
        if self._failure is not None:
            raise HeadraceError(f"the client's reader has ended: {words_of(self._failure)}; open a new client")
        if self._closed or self._outbox is None:
            raise ClientClosed("the client is not open; use it as `async with AsyncClient() as client:`")
        return self._outbox

    def _open_still(self, result: Result | None) -> Result:
        if result is None:
            self._opened()
            raise ClientClosed("there is no result: the client was closed, or the request was not sent")
        return result

    def _late(self, request_id: str, timeout_s: float | None, *, missing: int = 1) -> ResultTimeout:
        trouble = self._reader.trouble if self._reader is not None else None
        others = f" (and {missing - 1} others)" if missing > 1 else ""
        why = f"; the reading of results suffers from: {trouble}" if trouble else ""
        return ResultTimeout(request_id, f"{request_id}{others}: no result within {timeout_s:g} s; it is still on its way{why}")

    def _failed(self, error: BaseException) -> None:
        self._failure = error
        if self._outbox is not None:
            self._outbox.shut()  # before the places are given back: nobody would read the end of what is sent now
        self._registry.close()

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(min(_TIDY_S, self._keep_s / 2))
            self._registry.tidy(time.monotonic())

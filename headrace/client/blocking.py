"""The blocking client: an `AsyncClient` on an event loop of its own thread, each call handed over to it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine, Iterable, Iterator
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from headrace.client.aio import Asks, AsyncClient
from headrace.config import Settings
from headrace.errors import ClientClosed
from headrace.results import Result

_T = TypeVar("_T")
_END_S = 30.0
_LOOK_S = 1.0


class Client:
    """`with Client() as client: result = client.ask({...}, timeout=30)`. Any number of threads may use it; options as `AsyncClient`'s.

    Not to be carried over a fork: open it in the child.
    """

    def __init__(
        self, settings: Settings | None = None, *, max_outstanding: int = 10_000, keep_s: float = 3600.0, send_timeout_s: float = 30.0
    ) -> None:
        self._client = AsyncClient(settings, max_outstanding=max_outstanding, keep_s=keep_s, send_timeout_s=send_timeout_s)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Raises ConfigError or KafkaUnavailable where it could not work."""
        if self._loop is not None:
            raise ClientClosed("a client is opened once; make a new one")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-client", daemon=True)
        self._thread.start()
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """As `AsyncClient.close`. A second time is harmless."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive():
            return
        self._run(self._client.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_END_S)
        if not thread.is_alive():
            loop.close()

    def submit(self, request: Asks) -> str:
        """As `AsyncClient.submit`."""
        return self._run(self._client.submit(request))

    def submit_many(self, requests: Iterable[Asks]) -> list[str]:
        """As `AsyncClient.submit_many`; the requests are taken on the caller's thread."""
        return self._run(self._client.submit_many(list(requests)))

    def result(self, request_id: str, *, timeout: float | None = None, since: datetime | None = None) -> Result:
        """As `AsyncClient.result`."""
        return self._run(self._client.result(request_id, timeout=timeout, since=since))

    def ask(self, request: Asks, *, timeout: float | None = None) -> Result:
        """As `AsyncClient.ask`."""
        return self._run(self._client.ask(request, timeout=timeout))

    def as_completed(self, request_ids: Iterable[str], *, timeout: float | None = None) -> Iterator[Result]:
        """As `AsyncClient.as_completed`."""
        results = self._client.as_completed(list(request_ids), timeout=timeout)
        try:
            while True:
                try:
                    yield self._run(anext(results))  # type: ignore[arg-type]  # of a generator it is a coroutine
                except StopAsyncIteration:
                    return
        finally:
            with contextlib.suppress(ClientClosed):  # with the client it has ended too
                self._run(results.aclose())  # type: ignore[attr-defined]  # a generator has it

    def forget(self, request_id: str) -> None:
        """As `AsyncClient.forget`."""
        self._run(self._forget(request_id))

    async def _forget(self, request_id: str) -> None:
        self._client.forget(request_id)

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """On the loop; whoever is interrupted here cancels it there."""
        if self._loop is None or self._thread is None or not self._thread.is_alive():
            work.close()
            raise ClientClosed("the client is not open; use it as `with Client() as client:`")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return _awaited(future, self._thread)
        except BaseException:
            future.cancel()
            raise
        finally:
            if self._thread.is_alive():
                concurrent.futures.wait((future,), _END_S)
            else:
                work.close()  # nobody runs it any longer


def _awaited(future: concurrent.futures.Future[_T], thread: threading.Thread) -> _T:
    """Its result. A loop that another thread has ended in between would never give one: raises ClientClosed."""
    while not concurrent.futures.wait((future,), _LOOK_S).done:
        if not thread.is_alive():
            raise ClientClosed("the client was closed by another thread")
    return future.result()

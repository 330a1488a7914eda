"""A TCP proxy's connections: accepted, paired with the server's, and cut. What passes through them is a subclass's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


class Relay:
    """`async with`, on a free port of loopback, before one server. `cuts` counts what was broken; while `refusing`, nobody is let in."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._open: set[Writer] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.refusing = False
        self.cuts = 0
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break every connection now; new ones are taken unless `refusing`."""
        self.cuts += 1
        for writer in list(self._open):
            writer.transport.abort()

    def pumps(self, client: tuple[Reader, Writer], server: tuple[Reader, Writer]) -> tuple[Coroutine[Any, Any, None], ...]:
        """What carries one connection, both ways; each ends it by raising OSError or EOFError."""
        raise NotImplementedError

    def _accepted(self, reader: Reader, writer: Writer) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            server = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, server[1]}
        self._open |= both
        try:
            async with asyncio.TaskGroup() as group:
                for pump in self.pumps((reader, writer), server):
                    group.create_task(pump)
        except* (OSError, EOFError):
            pass  # a broken connection is what this is for
        finally:
            self._open -= both
            for each in both:
                each.transport.abort()

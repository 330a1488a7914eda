"""A TCP proxy before Redis that can be late, deaf, cut, or answer errors in its stead. It passes on whole commands only."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import hiredis


class RedisLink:
    """`async with RedisLink(redis_url) as link:`; clients are given `link.url`.

    `late_s` delays each command. While `deaf`, what comes is swallowed, and a connection that lost a byte so stays dead, as a
    half-open one does. While `saying` is set, each command is answered with that error.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._path = parts.hostname or "127.0.0.1", parts.port or 6379, parts.path
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.late_s = 0.0
        self.deaf = False
        self.saying: str | None = None
        self.cuts = self.commands = self.swallowed = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{self._path}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break every connection now; new ones are taken."""
        self.cuts += 1
        for writer in list(self._open):
            writer.transport.abort()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, server_writer}
        dead = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._commands(reader, writer, server_writer, dead))
                group.create_task(self._answers(server_reader, writer, dead))
        except* (OSError, EOFError):
            pass  # a broken connection is what this is for
        finally:
            self._open -= {writer, server_writer}
            writer.transport.abort()
            server_writer.transport.abort()

    async def _commands(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: asyncio.StreamWriter, dead: asyncio.Event
    ) -> None:
        parser = hiredis.Reader()
        while data := await reader.read(1 << 16):
            if self.deaf or dead.is_set():
                dead.set()
                self.swallowed += len(data)
                continue
            parser.feed(data)
            while (command := parser.gets()) is not False:
                await self._command(command, writer, server)
        raise EOFError

    async def _command(self, command: Any, writer: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.commands += 1
        if self.late_s:
            await asyncio.sleep(self.late_s)
        if self.saying is not None:
            writer.write(f"-{self.saying}\r\n".encode())
            return
        server.write(hiredis.pack_command(tuple(command)))
        await server.drain()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dead: asyncio.Event) -> None:
        while data := await reader.read(1 << 16):
            if self.deaf or dead.is_set():
                dead.set()
                self.swallowed += len(data)
                continue
            writer.write(data)
            await writer.drain()
        raise EOFError

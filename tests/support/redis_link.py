"""A TCP proxy before Redis that can be late, deaf, cut, or answer errors in its stead. It passes on whole commands only."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from urllib.parse import urlsplit

import hiredis

from tests.support.relay import Reader, Relay, Writer


class RedisLink(Relay):
    """`async with RedisLink(redis_url) as link:`; clients are given `link.url`.

    `late_s` delays each command. While `deaf`, what comes is swallowed, and a connection that lost a byte so stays dead, as a
    half-open one does. While `saying` is set, each command is answered with that error.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        super().__init__(parts.hostname or "127.0.0.1", parts.port or 6379)
        self._path = parts.path
        self.late_s = 0.0
        self.deaf = False
        self.saying: str | None = None
        self.commands = self.swallowed = 0

    @property
    def url(self) -> str:
        """The way through it."""
        return f"redis://127.0.0.1:{self.port}{self._path}"

    def pumps(self, client: tuple[Reader, Writer], server: tuple[Reader, Writer]) -> tuple[Coroutine[Any, Any, None], ...]:
        """Commands there, answers back."""
        dead = asyncio.Event()
        return self._commands(*client, server[1], dead), self._answers(server[0], client[1], dead)

    async def _commands(self, reader: Reader, writer: Writer, server: Writer, dead: asyncio.Event) -> None:
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

    async def _command(self, command: Any, writer: Writer, server: Writer) -> None:
        self.commands += 1
        if self.late_s:
            await asyncio.sleep(self.late_s)
        if self.saying is not None:
            writer.write(f"-{self.saying}\r\n".encode())
            return
        server.write(hiredis.pack_command(tuple(command)))
        await server.drain()

    async def _answers(self, reader: Reader, writer: Writer, dead: asyncio.Event) -> None:
        while data := await reader.read(1 << 16):
            if self.deaf or dead.is_set():
                dead.set()
                self.swallowed += len(data)
                continue
            writer.write(data)
            await writer.drain()
        raise EOFError

"""A TCP proxy before the broker that can be told to cut, everything at once or one connection at a chosen request, and to stand still.

It answers the broker's own address in metadata with its own, so that every connection comes through it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from types import TracebackType
from typing import Self

PRODUCE, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 0, 24, 25, 26, 28
_Chooser = Callable[[int], bool]


class Proxy:
    """`async with Proxy("127.0.0.1:19092") as proxy:`; clients are given `proxy.bootstrap`.

    Asked with the api key of each request: `cut_before` breaks the connection instead of passing the request on, `cut_after`
    passes it on and breaks the connection instead of giving back the answer. `client` is then the client id of who asks.
    """

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._host, self._port = host, int(port)
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.refusing = False
        self.cut_before: _Chooser | None = None
        self.cut_after: _Chooser | None = None
        self.cuts = 0
        self.client = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        self.bootstrap = f"127.0.0.1:{self.port}"
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

    def freeze(self) -> None:
        """Pass nothing on, in neither direction; connections stay."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Pass on what has waited."""
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is a task"
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.refusing:
            writer.transport.abort()
            return
        try:
            broker_reader, broker_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, broker_writer}
        doomed: set[int] = set()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests(reader, broker_writer, doomed))
                group.create_task(self._answers(broker_reader, writer, doomed))
        except* (OSError, EOFError):
            pass  # a broken connection is what this is for
        finally:
            self._open -= {writer, broker_writer}
            writer.transport.abort()
            broker_writer.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: set[int]) -> None:
        while True:
            frame = await _frame(reader)
            api, _, correlation = struct.unpack_from(">hhi", frame, 4)
            self.client = _client(frame)
            if self.cut_before is not None and self.cut_before(api):
                self.cuts += 1
                raise EOFError
            if self.cut_after is not None and self.cut_after(api):
                doomed.add(correlation)
            await self._flowing.wait()
            writer.write(frame)
            await writer.drain()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: set[int]) -> None:
        while True:
            frame = await _frame(reader)
            await self._flowing.wait()
            (correlation,) = struct.unpack_from(">i", frame, 4)
            if correlation in doomed:  # the broker has done it, and the client will never hear so
                self.cuts += 1
                raise EOFError
            writer.write(self._own_address(frame))
            await writer.drain()

    def _own_address(self, frame: bytes) -> bytes:
        """Addresses in metadata and coordinator answers: host as a string, then the port."""
        host = self._host.encode()
        for length in (bytes([len(host) + 1]), struct.pack(">h", len(host))):
            theirs = length + host + struct.pack(">i", self._port)
            if theirs in frame:
                return frame.replace(theirs, length + host + struct.pack(">i", self.port))
        return frame


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack(">i", head)[0])


def _client(frame: bytes) -> str:
    """The client id of a request: a nullable string behind the correlation id, in every version of the header."""
    (length,) = struct.unpack_from(">h", frame, 12)
    return frame[14 : 14 + max(length, 0)].decode("utf-8", "replace")

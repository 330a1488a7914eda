"""A TCP proxy before the broker that can be told to cut, everything at once or one connection at a chosen request, and to stand still.

It answers the broker's own address in metadata with its own, so that every connection comes through it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any

from tests.support.relay import Reader, Relay, Writer

PRODUCE, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 0, 24, 25, 26, 28
_Chooser = Callable[[int], bool]


class Proxy(Relay):
    """`async with Proxy("127.0.0.1:19092") as proxy:`; clients are given `proxy.bootstrap`.

    Asked with the api key of each request: `cut_before` breaks the connection instead of passing the request on, `cut_after`
    passes it on and breaks the connection instead of giving back the answer. `client` is then the client id of who asks.
    """

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        super().__init__(host, int(port))
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.cut_before: _Chooser | None = None
        self.cut_after: _Chooser | None = None
        self.client = ""

    @property
    def bootstrap(self) -> str:
        """The way through it."""
        return f"127.0.0.1:{self.port}"

    def freeze(self) -> None:
        """Pass nothing on, in neither direction; connections stay."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Pass on what has waited."""
        self._flowing.set()

    def pumps(self, client: tuple[Reader, Writer], server: tuple[Reader, Writer]) -> tuple[Coroutine[Any, Any, None], ...]:
        """Requests there, answers back."""
        doomed: set[int] = set()
        return self._requests(client[0], server[1], doomed), self._answers(server[0], client[1], doomed)

    async def _requests(self, reader: Reader, writer: Writer, doomed: set[int]) -> None:
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

    async def _answers(self, reader: Reader, writer: Writer, doomed: set[int]) -> None:
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


async def _frame(reader: Reader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack(">i", head)[0])


def _client(frame: bytes) -> str:
    """The client id of a request: a nullable string behind the correlation id, in every version of the header."""
    (length,) = struct.unpack_from(">h", frame, 12)
    return frame[14 : 14 + max(length, 0)].decode("utf-8", "replace")

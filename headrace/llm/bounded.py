"""Replies that an HTTP client of the SDK's reads whole: cut off at a bound while they are read, unpacked or not. Memory stays bounded."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import httpx2
import openai

from headrace.errors import CallFailed, ErrorClass, Failure
from headrace.llm.transport import oversized

_PIECE = 1 << 16
_PACKED = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_LIMIT: ContextVar[int | None] = ContextVar("limit of the body that is read now", default=None)


@contextmanager
def at_most(limit: int) -> Iterator[None]:
    """Within the block, calls by a client that is `bound` read bodies of at most `limit` bytes, or raise CallFailed."""
    token = _LIMIT.set(limit)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def bind(client: openai.AsyncOpenAI) -> None:
    """Make a client heed `at_most`. The user's own calls with it stay as they are."""
    # the SDK offers no other way in: its own streaming reads the bodies of error replies whole all the same
    hooks = client._client.event_hooks["response"]  # noqa: SLF001
    if _bound not in hooks:
        hooks.append(_bound)


async def _bound(response: httpx2.Response) -> None:
    """Between a reply's head and its body: whatever the client would do with the body, it gets only so much of it."""
    limit = _LIMIT.get()
    if limit is not None and isinstance(response.stream, httpx2.AsyncByteStream):
        packing = response.headers.pop("content-encoding", "").strip().lower()
        response.stream = _Bounded(response.stream, limit, _PACKED.get(packing))


class _Bounded(httpx2.AsyncByteStream):
    """A body, unpacked here where it is packed: the client's own unpacking makes a gigabyte of a megabyte in one piece."""

    def __init__(self, inner: httpx2.AsyncByteStream, limit: int, window_bits: int | None) -> None:
        self._inner = inner
        self._limit = limit
        self._unpack = _as_it_is if window_bits is None else _unpacking(window_bits)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = received = 0
        async for data in self._inner:
            received += len(data)  # what follows the end of a packed body unpacks to nothing, and is kept all the same
            if received > self._limit:
                raise oversized(self._limit)
            for piece in self._unpack(data):
                size += len(piece)
                if size > self._limit:
                    raise oversized(self._limit)
                yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


def _as_it_is(data: bytes) -> Iterator[bytes]:
    yield data


def _unpacking(window_bits: int) -> Callable[[bytes], Iterator[bytes]]:
    unpacker = zlib.decompressobj(window_bits)

    def unpack(data: bytes) -> Iterator[bytes]:
        while True:
            try:
                piece = unpacker.decompress(data, _PIECE)
            except zlib.error:
                message = "the reply is not packed as its Content-Encoding says"
                raise CallFailed(Failure(ErrorClass.INVALID_RESPONSE, message, called=True)) from None
            yield piece
            data = unpacker.unconsumed_tail
            if not data and len(piece) < _PIECE:
                return

    return unpack

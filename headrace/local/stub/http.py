"""HTTP/1.1 on bytes: an incremental request parser. The head is read in head.py; replies are in reply.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.local.stub.head import MAX_BODY_BYTES, MAX_HEAD_BYTES, Head, HttpFault, RefusedBytes, parse_head

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_MAX_CHUNK_LINE: Final = 256
_MAX_TRAILER_LINE: Final = 8 * 1024


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One whole request. Header names are lower case; `path` has no query; `body` is unchunked."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    keep_alive: bool


class RequestParser:
    """Feed it what arrives; it gives back whole requests, in order, in time linear in the bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._head: Head | None = None
        self._chunks = bytearray()
        self._chunk_left = -1
        self._in_trailer = False
        self._dead = False

    @property
    def awaits_continue(self) -> bool:
        """True while a head with `Expect: 100-continue` is here and its body is not."""
        return self._head is not None and self._head.expects_continue

    def continue_sent(self) -> None:
        """The interim answer is out; it is owed once a request."""
        if self._head is not None:
            self._head.expects_continue = False

    def feed(self, data: bytes) -> list[HttpRequest | HttpFault]:
        """Whole requests completed by `data`. A fault comes last, and ends the parser."""
        out: list[HttpRequest | HttpFault] = []
        if self._dead:
            return out
        self._buffer += data
        try:
            while (request := self._next()) is not None:
                out.append(request)
        except RefusedBytes as refused:
            self._dead = True
            self._buffer.clear()
            self._chunks.clear()
            out.append(refused.fault)
        return out

    def _next(self) -> HttpRequest | None:
        if self._head is None:
            raw = self._take_head()
            if raw is None:
                return None
            self._head = parse_head(raw)
        head = self._head
        body = self._take_chunks() if head.chunked else self._take_length(head.length)
        if body is None:
            return None
        self._head = None
        return HttpRequest(head.method, head.path, head.query, head.headers, body, head.keep_alive)

    def _take_head(self) -> bytes | None:
        buffer = self._buffer
        while buffer.startswith(b"\r\n"):
            del buffer[:2]
        end = buffer.find(b"\r\n\r\n", max(0, self._scanned - 3))
        if end > MAX_HEAD_BYTES or (end < 0 and len(buffer) > MAX_HEAD_BYTES):
            raise RefusedBytes(431, f"The request head is larger than {MAX_HEAD_BYTES} bytes.")
        if end < 0:
            self._scanned = len(buffer)
            return None
        self._scanned = 0
        raw = bytes(buffer[:end])
        del buffer[: end + 4]
        return raw

    def _take_length(self, length: int) -> bytes | None:
        buffer = self._buffer
        if len(buffer) < length:
            return None
        body = bytes(buffer[:length])
        del buffer[:length]
        return body

    def _take_chunks(self) -> bytes | None:
        while True:
            if self._in_trailer:
                return self._take_trailer()
            if self._chunk_left < 0:
                line = self._take_line(_MAX_CHUNK_LINE)
                if line is None:
                    return None
                self._begin_chunk(line)
            elif not self._take_chunk():
                return None

    def _begin_chunk(self, line: bytes) -> None:
        digits = line.split(b";", 1)[0].strip()
        if not digits or len(digits) > 8 or digits.strip(b"0123456789abcdefABCDEF"):
            raise RefusedBytes(400, "A chunk size is not a hexadecimal number.")
        size = int(digits, 16)
        if len(self._chunks) + size > MAX_BODY_BYTES:
            raise RefusedBytes(413, f"The request body is larger than {MAX_BODY_BYTES} bytes.")
        self._chunk_left = size
        self._in_trailer = size == 0

    def _take_chunk(self) -> bool:
        size = self._chunk_left
        if len(self._buffer) < size + 2:
            return False
        if self._buffer[size : size + 2] != b"\r\n":
            raise RefusedBytes(400, "A chunk is longer than its size says.")
        self._chunks += memoryview(self._buffer)[:size]
        del self._buffer[: size + 2]
        self._chunk_left = -1
        return True

    def _take_trailer(self) -> bytes | None:
        while (line := self._take_line(_MAX_TRAILER_LINE)) is not None:
            if not line:
                body = bytes(self._chunks)
                self._chunks.clear()
                self._chunk_left = -1
                self._in_trailer = False
                return body
        return None

    def _take_line(self, limit: int) -> bytes | None:
        end = self._buffer.find(b"\r\n", 0, limit + 2)
        if end < 0:
            if len(self._buffer) > limit:
                raise RefusedBytes(400, "A line of the chunked body is too long.")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

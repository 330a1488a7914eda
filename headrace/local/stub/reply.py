"""A reply and its framing as HTTP/1.1 bytes. Requests are parsed in http.py."""

from __future__ import annotations

import http
from dataclasses import dataclass
from typing import Final

import orjson

_PHRASES: Final = {status.value: status.phrase for status in http.HTTPStatus} | {529: "Site is overloaded"}


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server says: whole, before it is framed."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"


def encode_head(reply: Reply, *, keep_alive: bool, chunked: bool = False) -> bytes:
    """The status line and headers of `reply`, with the length of its whole body, or without any where it goes in chunks."""
    extra = "".join([f"{name}: {value}\r\n" for name, value in reply.headers])
    close = "" if keep_alive else "connection: close\r\n"
    phrase = _PHRASES.get(reply.status, "Unknown")
    framing = "transfer-encoding: chunked" if chunked else f"content-length: {len(reply.body)}"
    return f"HTTP/1.1 {reply.status} {phrase}\r\ncontent-type: {reply.content_type}\r\n{framing}\r\n{close}{extra}\r\n".encode("latin-1")


def json_reply(document: object, *, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    """`document` as a JSON reply."""
    return Reply(status, orjson.dumps(document), headers)


def error_reply(status: int, message: str, *, kind: str = "invalid_request_error", param: str | None = None) -> Reply:
    """An error in the shape of OpenAI's API."""
    return json_reply({"error": {"message": message, "type": kind, "param": param, "code": None}}, status=status)

"""The head of a request: request line, headers, and what they say about the body. Strict: what is odd is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
# A whole line, or no match: a name of token characters (RFC 9110, 5.6.2), no space before the colon, no control characters.
_FIELD: Final = re.compile(r"^([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\0]*)(?=\r\n|\Z)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HttpFault:
    """The bytes are not a request we take. The connection must be closed after `status` is sent."""

    status: int
    message: str


class RefusedBytes(Exception):
    """The bytes are not a request; carries the `HttpFault`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.fault = HttpFault(status, message)


@dataclass(slots=True)
class Head:
    """What comes before the body, and how the body is framed."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    keep_alive: bool
    length: int
    chunked: bool
    expects_continue: bool


def parse_head(raw: bytes) -> Head:
    """Read the head, without the empty line that ends it. Raises `RefusedBytes`."""
    line, _, text = raw.decode("latin-1").partition("\r\n")
    words = line.split(" ")
    if len(words) != 3 or not words[0].isascii() or not words[0].isalpha() or not words[1].isprintable() or not words[1]:
        raise RefusedBytes(400, "The request line is not `METHOD target HTTP/1.1`.")
    method, target, version = words
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise RefusedBytes(505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    headers = _parse_headers(text)
    length, chunked = _framing(headers)
    connection = headers.get("connection", "").lower()
    keep_alive = "keep-alive" in connection if version == "HTTP/1.0" else "close" not in connection
    path, _, query = _origin_form(target).partition("?")
    expects = _expects_continue(headers, has_body=chunked or length > 0)
    return Head(method, path, query, headers, keep_alive, length, chunked, expects)


def _parse_headers(text: str) -> dict[str, str]:
    found = _FIELD.findall(text)
    lines = text.count("\r\n") + 1 if text else 0
    if len(found) != lines or text.count("\n") != text.count("\r\n"):
        raise RefusedBytes(400, "A header line is malformed.")
    headers = {name.lower(): value.rstrip(" \t") for name, value in found}
    if len(headers) != len(found):
        for name in ("content-length", "transfer-encoding"):
            if len({value.rstrip(" \t") for spelled, value in found if spelled.lower() == name}) > 1:
                raise RefusedBytes(400, f"The header {name} is given twice, with different values.")
    return headers


def _framing(headers: dict[str, str]) -> tuple[int, bool]:
    coding, declared = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None:
        if declared is not None:
            raise RefusedBytes(400, "Content-Length and Transfer-Encoding exclude each other.")
        if coding.lower() != "chunked":
            raise RefusedBytes(501, "The only transfer coding understood is `chunked`.")
        return 0, True
    if declared is None:
        return 0, False
    if not declared.isascii() or not declared.isdigit():
        raise RefusedBytes(400, "Content-Length is not a number.")
    if len(declared) > 12 or int(declared) > MAX_BODY_BYTES:
        raise RefusedBytes(413, f"The request body is larger than {MAX_BODY_BYTES} bytes.")
    return int(declared), False


def _origin_form(target: str) -> str:
    if target.startswith("/"):
        return target
    _, scheme, rest = target.partition("://")
    return "/" + rest.partition("/")[2] if scheme else target


def _expects_continue(headers: dict[str, str], *, has_body: bool) -> bool:
    expect = headers.get("expect")
    if expect is None:
        return False
    if expect.lower() != "100-continue":
        raise RefusedBytes(417, "The only expectation understood is `100-continue`.")
    return has_body

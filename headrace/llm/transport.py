"""The seam between a call and the bytes on the wire: what is sent, what comes back, and who carries it.

What a reply means is `errors`' work; which provider is called, `client`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from headrace.errors import CallFailed, ErrorClass, Failure

MAX_BODY_BYTES = 16 << 20
# Below the idle time-outs in use (gunicorn 2 s, uvicorn and so vLLM 5 s), so that it is we who close an idle
# connection; a new one costs little beside a call to a model.
KEEPALIVE_S = 1.5


class Call(NamedTuple):
    """One POST of JSON bytes. `endpoint` is `/v1/…`; `timeout_s` ends the whole call, pool and body included.

    `path` is where a server keeps that endpoint elsewhere: path and query, encoded, below the base URL.
    """

    endpoint: str
    body: bytes
    headers: Mapping[str, str]
    timeout_s: float
    connect_timeout_s: float
    path: str | None = None


class Reply(NamedTuple):
    """An HTTP reply of any status, read to its end. `headers` ignores case; `latency_ms` spans sending to last byte."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    latency_ms: int


class Transport(Protocol):
    """Carries one call. Raises only CallFailed; CancelledError passes through. Never retries, never follows a redirect."""

    async def send(self, call: Call) -> Reply:
        """The reply, whatever its status."""

    async def close(self) -> None:
        """Close what is open; idempotent."""


def url_of(base_url: str, endpoint: str) -> str:
    """The address of an endpoint: the base URL stands for `/v1`, as in the OpenAI clients. A query of the base URL stays at the end."""
    base, mark, query = base_url.partition("?")
    return base.rstrip("/") + endpoint.removeprefix("/v1") + mark + query


def out_of_time() -> CallFailed:
    """What a transport raises when a call begins with no time left: nothing was sent."""
    return CallFailed(Failure(ErrorClass.TIMEOUT, "no time was left to begin the call"))


def oversized(limit: int) -> CallFailed:
    """What a transport raises for a reply whose body is larger than `limit` bytes."""
    return CallFailed(Failure(ErrorClass.INVALID_RESPONSE, f"the reply is larger than {limit} bytes; it was not read on", called=True))

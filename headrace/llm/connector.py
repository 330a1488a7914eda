"""The pool of connections: one that the server has closed, or by experience soon closes, is not used again.

A request written into a connection that the server just closed is lost and costs an attempt: nobody can tell it from one that was
read, and billed. Servers that close early, or drain, would make that the fate of many.
"""

from __future__ import annotations

import select
from functools import partial
from time import monotonic
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

# What the kernel says of a connection whose other end has closed or reset it; POLLRDHUP is Linux's.
_CLOSED = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0) if hasattr(select, "poll") else 0
# A connection lost later than this after the request was written was lost in mid-call, not for having been idle.
_AT_ONCE_S = 1.0
_FORGET_S = 60.0


class Patience:
    """How long a connection may have been idle and still be used. Halved below what failed, doubled with every minute since."""

    def __init__(self, most_s: float) -> None:
        self._most_s = self._trusted_s = most_s
        self._since = monotonic()

    def trusts(self, idle_s: float) -> bool:
        """Whether a connection that was idle for so long may be used."""
        if self._trusted_s < self._most_s:
            now = monotonic()
            self._trusted_s = min(self._most_s, self._trusted_s * 2.0 ** ((now - self._since) / _FORGET_S))
            self._since = now
        return idle_s <= self._trusted_s

    def lost(self, idle_s: float) -> None:
        """A connection was used after so long, and the server had closed it."""
        self._trusted_s = min(self._trusted_s, idle_s / 2)
        self._since = monotonic()


class PooledConnector(aiohttp.TCPConnector):
    """As aiohttp's, with connections that know when not to be used again."""

    def __init__(self, *, limit: int, keepalive_timeout: float) -> None:
        super().__init__(limit=limit, keepalive_timeout=keepalive_timeout)
        self._factory = partial(_Wary, Patience(keepalive_timeout), loop=self._loop)  # type: ignore[assignment]  # partial is invariant


class _Wary(ResponseHandler):
    """A connection that asks the kernel, and its pool's experience, before it says that it is connected: aiohttp asks before each reuse."""

    def __init__(self, patience: Patience, **rest: Any) -> None:
        super().__init__(**rest)
        self._patience = patience
        self._heard_at: float | None = None
        self._asked_at: float | None = None

    def is_connected(self) -> bool:
        if not super().is_connected() or self._hung_up():
            return False
        return self._heard_at is None or self._patience.trusts(monotonic() - self._heard_at)

    def set_response_params(self, **params: Any) -> None:
        self._asked_at = monotonic()
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        self._heard_at, self._asked_at = monotonic(), None
        super().data_received(data)

    def eof_received(self) -> None:
        self._learn()
        super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        if exc is not None:  # reset, not closed by us
            self._learn()
        super().connection_lost(exc)

    def _learn(self) -> None:
        asked, heard, self._asked_at = self._asked_at, self._heard_at, None
        if asked is not None and heard is not None and monotonic() - asked < _AT_ONCE_S:
            self._patience.lost(asked - heard)

    def _hung_up(self) -> bool:
        socket = self.transport.get_extra_info("socket") if self.transport is not None else None
        if socket is None or not _CLOSED:
            return False
        poll = select.poll()
        poll.register(socket.fileno(), _CLOSED)
        return bool(poll.poll(0))

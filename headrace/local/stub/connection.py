"""One client connection: requests in, replies out in order, with every way a reply can fail to arrive whole."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, cast

from headrace.local.stub.flood import bomb, chunk, endless, interims
from headrace.local.stub.head import HttpFault
from headrace.local.stub.http import CONTINUE, HttpRequest, RequestParser
from headrace.local.stub.ledger import Ledger
from headrace.local.stub.provider import Plan, Provider
from headrace.local.stub.reply import Reply, encode_head, error_reply
from headrace.local.stub.rule import Action

_MAX_PENDING: Final = 16
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Parts:
    """What every connection of a server shares. `admin` answers paths below `/_stub/`."""

    provider: Provider
    ledger: Ledger
    admin: Callable[[HttpRequest], Reply]
    open: set[Connection]


class Connection(asyncio.Protocol):
    """Serves one request at a time; pipelined ones wait their turn. A client that closes its side has gone."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._parser = RequestParser()
        self._pending: deque[HttpRequest | HttpFault] = deque()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._busy = self._in_call = self._full = self._pumping = False
        self._keep_alive = self._reading = True
        self._head_only = False
        self._pouring: Iterator[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is here."""
        self._transport = cast(asyncio.Transport, transport)
        self._parts.open.add(self)
        self._parts.ledger.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or we closed: what was under way for it is abandoned."""
        self._transport = None
        self._pending.clear()
        self._parts.open.discard(self)
        self._parts.ledger.connections -= 1
        self._end_call(abandoned=True)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        self._pending.extend(self._parser.feed(data))
        self._pump()
        if len(self._pending) > _MAX_PENDING and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """The client does not read: start nothing new for it."""
        self._full = True

    def resume_writing(self) -> None:
        """The client reads again."""
        self._full = False
        self._pour()
        self._pump()

    def abort(self) -> None:
        """Drop the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def _pump(self) -> None:
        # A reply that is written at once ends inside this loop: without the flag each would nest one deeper.
        if self._pumping:
            return
        self._pumping = True
        while self._pending and not self._busy and not self._full and self._transport is not None:
            self._take(self._pending.popleft())
        self._pumping = False
        transport = self._transport
        if transport is None or self._busy or self._pending:
            return
        if not self._reading:
            self._reading = True
            transport.resume_reading()
        if self._parser.awaits_continue:
            transport.write(CONTINUE)
            self._parser.continue_sent()

    def _take(self, item: HttpRequest | HttpFault) -> None:
        self._busy = True
        if isinstance(item, HttpFault):
            self._keep_alive = False
            self._send(error_reply(item.status, item.message))
            return
        self._keep_alive = item.keep_alive
        self._head_only = item.method == "HEAD"
        if item.path.startswith("/_stub/"):
            self._send(self._parts.admin(item))
            return
        said = self._parts.provider.answer(item)
        if isinstance(said, Reply):
            self._send(said)
        else:
            self._carry_out(said)

    def _carry_out(self, plan: Plan) -> None:
        self._in_call = True
        self._parts.ledger.began()
        capacity = self._parts.provider.capacity
        if plan.tokens is not None and capacity is not None:
            capacity.enter(plan.tokens, plan.delay_s, partial(self._deliver, plan))
        elif plan.delay_s > 0:
            self._loop.call_later(plan.delay_s, self._deliver, plan)
        else:
            self._deliver(plan)

    def _deliver(self, plan: Plan) -> None:
        transport, action = self._transport, plan.action
        if transport is None:
            return
        match action.delivery:
            case "whole":
                self._send(plan.reply)
            case "hang":
                pass
            case "close" | "reset" | "cut" | "cut_chunked":
                self._break_off(plan, transport)
            case "drip":
                transport.write(self._head(plan.reply))
                self._drip(plan.reply.body, 0, action)
            case "interim":
                self._interim(iter(interims(action.interims)), plan)
            case "endless":
                transport.write(self._head(plan.reply, chunked=True))
                self._pouring = endless(plan.reply.body)
                self._pour()
            case "bomb":
                headers = (*plan.reply.headers, ("content-encoding", "gzip"))
                self._send(replace(plan.reply, body=bomb(action.bomb_mib), headers=headers))
            case "close_idle":
                self._send(plan.reply)
                self._loop.call_later(action.idle_ms / 1000, self._close_if_idle)

    def _break_off(self, plan: Plan, transport: asyncio.Transport) -> None:
        """The connection ends before the reply does."""
        self._end_call()
        delivery, body = plan.action.delivery, plan.reply.body
        part = body[: int(len(body) * plan.action.cut_at)]
        if delivery == "reset":
            _reset(transport)
            return
        if delivery == "cut":
            transport.write(self._head(plan.reply) + part)
        elif delivery == "cut_chunked":
            transport.write(self._head(plan.reply, chunked=True) + chunk(part))
        transport.close()

    def _drip(self, body: bytes, at: int, action: Action) -> None:
        if self._transport is None:
            return
        if at >= len(body):
            self._done()
            return
        self._transport.write(body[at : at + action.drip_bytes])
        self._loop.call_later(action.drip_ms / 1000, self._drip, body, at + action.drip_bytes, action)

    def _interim(self, left: Iterator[bytes], plan: Plan) -> None:
        if self._transport is None:
            return
        one = next(left, None)
        if one is None:
            self._send(plan.reply)
            return
        self._transport.write(one)
        self._loop.call_later(plan.action.drip_ms / 1000, self._interim, left, plan)

    def _pour(self) -> None:
        """As much as the client takes; the rest when it takes more. A piece at a time, so that others are served beside it."""
        if self._pouring is not None and self._transport is not None and not self._full:
            self._transport.write(next(self._pouring))
            self._loop.call_soon(self._pour)

    def _send(self, reply: Reply) -> None:
        if self._transport is not None:
            head = self._head(reply)
            self._transport.write(head if self._head_only else head + reply.body)
            self._done()

    def _head(self, reply: Reply, *, chunked: bool = False) -> bytes:
        return encode_head(reply, keep_alive=self._keep_alive, chunked=chunked)

    def _done(self) -> None:
        self._busy = False
        self._end_call()
        if self._keep_alive:
            self._pump()
        elif self._transport is not None:
            self._pending.clear()
            self._transport.close()

    def _end_call(self, *, abandoned: bool = False) -> None:
        if self._in_call:
            self._in_call = False
            self._parts.ledger.ended(abandoned=abandoned)

    def _close_if_idle(self) -> None:
        if self._transport is not None and not self._busy:
            self._transport.close()


def _reset(transport: asyncio.Transport) -> None:
    """Close with RST: a socket that lingers for zero seconds throws away what it holds."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):  # the client was faster; there is nobody left to reset
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()

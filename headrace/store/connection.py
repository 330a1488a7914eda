"""A connection to Redis that packs script calls in C, and that tells one server process from another before anything is sent through it."""

from __future__ import annotations

import re
from typing import Any

import hiredis
import redis.exceptions as errors
from redis.asyncio.connection import AbstractConnection

_RUN_ID = re.compile(rb"run_id:([0-9a-f]+)")


class OtherServer(errors.RedisError):
    """The server has another run id than the one whose data this process knows."""


class ServerRun:
    """The run id of the server this process works with: the first it meets, until it is told to forget. None: not met yet; '': it tells none."""

    def __init__(self) -> None:
        self.run_id: str | None = None

    def forget(self) -> None:
        """Take the next one as it is."""
        self.run_id = None

    def meet(self, run_id: str) -> None:
        """A new connection's server. Raises OtherServer."""
        if self.run_id is None:
            self.run_id = run_id
        elif self.run_id != run_id:
            raise OtherServer("another run id")


def told_apart(kind: type[AbstractConnection], server: ServerRun) -> type[AbstractConnection]:
    """The connection class (TCP, TLS or a Unix socket: known by the URL only), made to ask for the run id.

    Script calls are packed by hiredis: redis-py's own packing costs 1 µs an argument, a batch has 1,000.
    """

    class ToldApart(kind):  # type: ignore[misc, valid-type]
        def pack_command(self, *args: Any) -> list[bytes]:
            return [hiredis.pack_command(args)] if args[0] == "EVALSHA" else super().pack_command(*args)

        async def on_connect_check_health(self, check_health: bool = True) -> None:  # noqa: FBT001, FBT002  redis-py's own signature
            await super().on_connect_check_health(check_health=check_health)
            try:
                await self.send_command("INFO", "server", check_health=False)
                found = _RUN_ID.search(_bytes(await self.read_response()))
            except errors.ResponseError:  # not permitted, or renamed: the beat alone has to tell
                found = None
            server.meet(found.group(1).decode() if found else "")

    return ToldApart


def _bytes(reply: object) -> bytes:
    return reply if isinstance(reply, bytes) else str(reply).encode()

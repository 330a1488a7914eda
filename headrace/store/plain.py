"""Plain reads and writes beside the scripts: what needs no epoch, because nothing that was promised rests on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import redis.asyncio as aredis

_Send = Callable[[Callable[[aredis.Redis], Awaitable[Any]]], Awaitable[Any]]


class Plain:
    """`send` makes a call, with errors mapped; keys are given without their prefix. Every method raises StoreUnavailable or StoreLost."""

    def __init__(self, send: _Send, prefix: str) -> None:
        self._send = send
        self._prefix = prefix

    async def fields(self, key: str) -> Mapping[bytes, bytes]:
        """A whole hash."""
        return cast("Mapping[bytes, bytes]", await self._send(lambda c: cast("Awaitable[Any]", c.hgetall(self._prefix + key))))

    async def field(self, key: str, name: str) -> bytes | None:
        """One field of a hash."""
        return cast("bytes | None", await self._send(lambda c: cast("Awaitable[Any]", c.hget(self._prefix + key, name))))

    async def set_field(self, key: str, name: str, text: str) -> None:
        """Write one field of a hash."""
        await self._send(lambda c: cast("Awaitable[Any]", c.hset(self._prefix + key, name, text)))

    async def drop_fields(self, key: str, names: Sequence[str]) -> None:
        """Remove fields of a hash."""
        await self._send(lambda c: cast("Awaitable[Any]", c.hdel(self._prefix + key, *names)))

    async def values(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """Many keys in one call."""
        if not keys:
            return []
        return cast("Sequence[bytes | None]", await self._send(lambda c: c.mget([self._prefix + key for key in keys])))

    async def heads(self, keys: Sequence[str]) -> Sequence[bytes]:
        """The first byte of many values, which may be long; empty where there is none."""

        async def call(client: aredis.Redis) -> list[bytes]:
            async with client.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.getrange(self._prefix + key, 0, 0)
                return cast("list[bytes]", await pipe.execute())

        return cast("Sequence[bytes]", await self._send(call)) if keys else []

"""Pauses shared by the fleet through Redis: what one process found shut, none of the others has to find out by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import orjson

from headrace.clock import Clock
from headrace.errors import StoreLost, StoreUnavailable
from headrace.instrument import Tell
from headrace.pauses import Pause, Pauses, Scope

EVERY_S = 1.0


class PauseStore(Protocol):
    """Where pauses are kept until they end."""

    async def put_pause(self, key: str, text: str, ttl_ms: int) -> bool: ...

    async def pauses(self) -> Mapping[str, str]: ...


class SharedPauses:
    """Publishes this process's pauses and takes over the others', once a second. The first in the fleet to publish one alerts."""

    def __init__(self, pauses: Pauses, store: PauseStore, clock: Clock, *, tell: Tell) -> None:
        self._pauses = pauses
        self._store = store
        self._clock = clock
        self._tell = tell
        self._known: dict[Scope, int] = {}

    async def run(self) -> None:
        """Until cancelled. While Redis is away each process knows its own pauses, as without it."""
        while True:
            try:
                await self.exchange()
            except (StoreUnavailable, StoreLost) as error:
                self._tell("pauses_not_shared", {"error": str(error)})
            await asyncio.sleep(EVERY_S)

    async def exchange(self) -> None:
        """Once, both ways."""
        now_ms = self._clock.now_ms()
        for pause in self._pauses.snapshot(now_ms):
            if self._known.get(pause.scope, 0) < pause.until_ms:
                await self._publish(pause, now_ms)
        shared = [_parse(text) for text in (await self._store.pauses()).values()]
        found = [one for one in shared if one is not None]
        self._pauses.merge(found, now_ms)
        self._known |= {one.scope: one.until_ms for one in found}

    async def _publish(self, pause: Pause, now_ms: int) -> None:
        key = orjson.dumps(list(pause.scope)).decode()
        first = await self._store.put_pause(key, _dump(pause), pause.until_ms - now_ms)
        if first and pause.scope not in self._known:
            scope = pause.scope
            self._tell(
                "alert",
                {
                    "what": "a target was shut: quota or credentials",
                    "provider": scope.provider,
                    "key_id": scope.key_id,
                    "model": scope.model,
                    "pause_s": (pause.until_ms - now_ms) // 1000,
                    "remedy": "top up or mend the key; requests wait and have spent no attempt",
                },
            )
        self._known[pause.scope] = pause.until_ms


def _dump(pause: Pause) -> str:
    return orjson.dumps([list(pause.scope), pause.until_ms, pause.length_ms]).decode()


def _parse(text: str) -> Pause | None:
    try:
        (provider, key_id, model), until_ms, length_ms = orjson.loads(text)
        return Pause(Scope(str(provider), str(key_id), None if model is None else str(model)), int(until_ms), int(length_ms))
    except (ValueError, TypeError):
        return None

"""Pauses shared by the fleet through Redis: what one process found shut, none of the others has to find out by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import orjson

from headrace.clock import Clock
from headrace.errors import StoreLost, StoreUnavailable
from headrace.instrument import Tell
from headrace.pauses import CODE_CHARS, MODELS, Pause, Pauses, Scope
from headrace.redact import plain

EVERY_S = 1.0
# Models' names are the callers' to choose: shut models of one key are alerted about no oftener than this, with their number.
MODEL_ALERTS_MS = 60_000


class PauseStore(Protocol):
    """Where pauses are kept until they end."""

    async def put_pause(self, key: str, text: str, ttl_ms: int) -> bool: ...

    async def pauses(self) -> Mapping[str, str]: ...


class SharedPauses:
    """Publishes this process's pauses and takes over the others', once a second. The first in the fleet to publish one alerts.

    Of models at most `MODELS` are published; those above are known to this process alone.
    """

    def __init__(self, pauses: Pauses, store: PauseStore, clock: Clock, *, tell: Tell) -> None:
        self._pauses = pauses
        self._store = store
        self._clock = clock
        self._tell = tell
        self._known: dict[Scope, int] = {}
        self._models_shared = 0
        self._untold: dict[Scope, tuple[Pause, int]] = {}  # by key: a shut model of it, and how many there are
        self._told_ms: dict[Scope, int] = {}  # by key

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
            if self._known.get(pause.scope, 0) < pause.until_ms and self._has_room(pause.scope):
                await self._publish(pause, now_ms)
        shared = [parse(text) for text in (await self._store.pauses()).values()]
        found = {one.scope: one for one in shared if one is not None}
        self._pauses.merge(found.values(), now_ms)
        self._known = {scope: until_ms for scope, until_ms in self._known.items() if scope in self._pauses}
        self._known |= {scope: one.until_ms for scope, one in found.items()}
        self._models_shared = sum(scope.model is not None for scope in found)
        self._tell_of_models(now_ms)

    def _has_room(self, scope: Scope) -> bool:
        return scope.model is None or scope in self._known or self._models_shared < MODELS

    async def _publish(self, pause: Pause, now_ms: int) -> None:
        key = orjson.dumps(list(pause.scope)).decode()
        first = await self._store.put_pause(key, _dump(pause), pause.until_ms - now_ms)
        scope = pause.scope
        if scope.model is not None and scope not in self._known:
            self._models_shared += 1
        if first and scope not in self._known:
            if scope.model is None:
                self._alert(pause, now_ms, models=0)
            else:
                whole = scope._replace(model=None)
                self._untold[whole] = (pause, self._untold.get(whole, (pause, 0))[1] + 1)
        self._known[scope] = pause.until_ms

    def _tell_of_models(self, now_ms: int) -> None:
        for key, (pause, models) in list(self._untold.items()):
            if now_ms - self._told_ms.get(key, -MODEL_ALERTS_MS) >= MODEL_ALERTS_MS:
                self._told_ms[key] = now_ms
                del self._untold[key]
                self._alert(pause, now_ms, models=models)

    def _alert(self, pause: Pause, now_ms: int, *, models: int) -> None:
        scope = pause.scope
        self._tell(
            "alert",
            {
                "what": "a target was shut: quota or credentials",
                "provider": scope.provider,
                "key_id": scope.key_id,
                "model": None if scope.model is None else plain(scope.model),
                "models": models,
                "error_class": pause.error_class,
                "code": pause.code or None,
                "pause_s": (pause.until_ms - now_ms) // 1000,
                "remedy": "top up or mend the key; requests wait and have spent no attempt",
            },
        )


def _dump(pause: Pause) -> str:
    why = [pause.error_class, pause.code] if pause.error_class else []
    return orjson.dumps([list(pause.scope), pause.until_ms, pause.length_ms, *why]).decode()


def parse(text: str) -> Pause | None:
    """What a worker published; None for what another version did."""
    try:
        (provider, key_id, model), until_ms, length_ms, *why = orjson.loads(text)
        error_class, code = (
            one[:CODE_CHARS] if isinstance(one, str) else "" for one in (*why, "", "")[:2]
        )  # an older version wrote neither
        scope = Scope(str(provider), str(key_id), None if model is None else str(model))
        return Pause(scope, int(until_ms), int(length_ms), error_class, code)
    except (ValueError, TypeError):
        return None

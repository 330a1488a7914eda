"""Asks Kafka and Redis at once, and goes on with what one of them says where the other cannot be reached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

from headrace import roster
from headrace.clock import Clock
from headrace.committed import Committed
from headrace.config import Settings
from headrace.errors import HeadraceError, StoreLost, StoreUnavailable
from headrace.shared_pauses import parse
from headrace.status import kafka
from headrace.status.picture import Held, Lag, Letters, Picture
from headrace.store import Store
from headrace.store.epochs import Closed

LETTERS_EVERY_S = 30.0


class Gather:
    """`groups` says which group reads which topic. Where no worker counts the dead letters, they are read, at most every 30 s."""

    def __init__(self, settings: Settings, groups: Mapping[str, str], store: Store) -> None:
        self._settings = settings
        self._groups = groups
        self._store = store
        self._committed = Committed(settings, groups)
        self._letters: Letters | None = None
        self._read_at = float("-inf")

    async def picture(self) -> Picture:
        """The fleet now."""
        now_ms = Clock().now_ms()
        away: dict[str, str] = {}
        known = await self._redis(away)
        counted = None if known is None else known.counted()
        lags, letters = await asyncio.gather(self._lags(now_ms, away), self._dead(away, counted))
        if known is None:
            known = Picture(namespace=self._settings.namespace, now_ms=now_ms)
        return replace(known, lags=lags, letters=letters, parked_cap=self._settings.limits.parked_records, away=away)

    async def _lags(self, now_ms: int, away: dict[str, str]) -> tuple[Lag, ...]:
        try:
            return await asyncio.to_thread(kafka.lags, self._settings, self._groups, self._committed, now_ms)
        except HeadraceError as error:
            away["kafka"] = str(error)
            return ()

    async def _redis(self, away: dict[str, str]) -> Picture | None:
        """The part that Redis knows."""
        store = self._store
        try:
            await store.open()
            now_ms = await store.time_ms()
            epoch, closed, beat = await store.plain.values(["epoch", "closed", "beat"])
            found = Closed.parse(closed or b"")
            held = Held(
                None if epoch is None else epoch.decode("ascii", "replace"), None if found is None else found.since_ms,
                None if beat is None else int(beat),
            )  # fmt: skip
            members = [roster.parse(text) for text in (await store.roster.all()).values()]
            pauses = [parse(text) for text in (await store.pauses()).values()]
            orders = [entry for entry in await store.orders.entries() if entry.stands(now_ms)]
        except (StoreUnavailable, StoreLost, ValueError) as error:
            away["redis"] = str(error)
            return None
        return Picture(
            namespace=self._settings.namespace,
            now_ms=now_ms,
            held=held,
            members=tuple(sorted((one for one in members if one is not None), key=lambda one: (one.host, one.since_ms))),
            pauses=tuple(sorted((one for one in pauses if one is not None), key=lambda one: one.until_ms)),
            orders=tuple(sorted(orders, key=lambda one: one.since_ms)),
        )

    async def _dead(self, away: dict[str, str], counted: Letters | None) -> Letters | None:
        if counted is not None:  # exact, and of a few seconds ago
            return counted
        if time.monotonic() - self._read_at < LETTERS_EVERY_S:
            return self._letters
        try:
            deaths = await asyncio.to_thread(kafka.deaths, self._settings)
        except HeadraceError as error:
            away.setdefault("kafka", str(error))
            return self._letters
        self._letters, self._read_at = deaths.counted(await self._states(deaths.ids())), time.monotonic()
        return self._letters

    async def _states(self, ids: list[str]) -> Mapping[str, str | None] | None:
        try:
            return dict(zip(ids, await self._store.orders.states(ids), strict=True))
        except (StoreUnavailable, StoreLost):
            return None  # said by `_redis`

"""The operators' orders without a Redis: as `orders.Orders`, over the dict of a MemoryServer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from headrace.controls.entry import ENTRIES, Entry


@dataclass(slots=True)
class Shelf:
    """What a server keeps of it: orders by their key, and for each cancelled id its order and when that ends."""

    version: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    ids: dict[str, tuple[str, int]] = field(default_factory=dict)


class _Timed(Protocol):
    """The store beside it. `time_ms` raises StoreUnavailable."""

    async def time_ms(self) -> int: ...
    def state_of(self, request_id: str) -> str | None: ...


class MemoryOrders:
    """`shelf` gives where its server keeps them."""

    def __init__(self, store: _Timed, shelf: Callable[[], Shelf]) -> None:
        self._store = store
        self._shelf = shelf

    async def version(self) -> int:
        """Grows with every change."""
        await self._store.time_ms()
        return self._shelf().version

    async def entries(self) -> list[Entry]:
        """Every order."""
        await self._store.time_ms()
        return list(self._shelf().entries.values())

    async def put(self, entry: Entry) -> bool:
        """Give an order."""
        now, shelf = await self._store.time_ms(), self._shelf()
        shelf.entries = {key: one for key, one in shelf.entries.items() if one.stands(now)}
        if len(shelf.entries.keys() - {entry.key}) >= ENTRIES:
            return False
        shelf.entries[entry.key] = entry
        self._grow(now)
        return True

    async def drop(self, keys: Sequence[str]) -> list[bool]:
        """Take orders back."""
        self._grow(await self._store.time_ms())
        return [self._shelf().entries.pop(key, None) is not None for key in keys]

    async def cancel(self, request_ids: Sequence[str], order: str, ttl_ms: int) -> int:
        """Cancel ids by an order."""
        return await self._ids(request_ids, order, ttl_ms)

    async def uncancel(self, request_ids: Sequence[str]) -> int:
        """Cancel them no longer."""
        return await self._ids(request_ids, "", 0)

    async def cancelled(self, request_ids: Sequence[str]) -> list[str | None]:
        """For each id the order that cancels it."""
        now = await self._store.time_ms()
        return [self._order_of(request_id, now) or None for request_id in request_ids]

    async def states(self, request_ids: Sequence[str]) -> list[str | None]:
        """For each id the first letter of its claim's state."""
        await self._store.time_ms()
        return [self._store.state_of(request_id) for request_id in request_ids]

    async def restore(self, version: int, seen_ms: int, entries: Sequence[Entry]) -> bool:
        """Put back what was known at `version`."""
        await self._store.time_ms()
        shelf = self._shelf()
        if shelf.version >= version:
            return False
        since = {key: entry for key, entry in shelf.entries.items() if entry.since_ms >= seen_ms}
        shelf.version, shelf.entries = version + 1, {entry.key: entry for entry in entries} | since
        return True

    def _order_of(self, request_id: str, now: int) -> str:
        order, ends_ms = self._shelf().ids.get(request_id, ("", 0))
        return order if ends_ms > now else ""

    async def _ids(self, request_ids: Sequence[str], order: str, ttl_ms: int) -> int:
        now, shelf, changed = await self._store.time_ms(), self._shelf(), 0
        for request_id in request_ids:
            before = self._order_of(request_id, now)
            shelf.ids.pop(request_id, None)
            if order:
                shelf.ids[request_id] = (order, now + ttl_ms)
            if before != order:
                changed += 1
                self._count(before, -1)
                self._count(order, 1)
        shelf.entries = {key: one for key, one in shelf.entries.items() if one.kind != "ids" or one.left > 0}
        self._grow(now)
        return changed

    def _grow(self, now: int) -> None:
        shelf = self._shelf()
        shelf.version = (shelf.version or int(9e15) - now * 1000) + 1

    def _count(self, order: str, by: int) -> None:
        entries = self._shelf().entries
        if (entry := entries.get(f"ids:{order}")) is not None:
            entries[entry.key] = replace(entry, left=entry.left + by)

"""The operators' orders in Redis: `{namespace}:controls`, one hash for all of them, and `:cancel:<request id>`, which order cancels it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from headrace.controls.entry import ENTRIES, Entry, parse
from headrace.store.codec import claim_key

BATCH = 500
_Run = Callable[[str, Sequence[str], Sequence[str | bytes]], Awaitable[list[Any]]]


class OrderStore(Protocol):
    """What workers need of a store. Every method raises StoreUnavailable or StoreLost."""

    async def version(self) -> int: ...
    async def entries(self) -> list[Entry]: ...
    async def cancelled(self, request_ids: Sequence[str]) -> list[str | None]: ...
    async def restore(self, version: int, seen_ms: int, entries: Sequence[Entry]) -> bool: ...


class Reading(Protocol):
    """A store's plain reads."""

    async def fields(self, key: str) -> Mapping[bytes, bytes]: ...
    async def field(self, key: str, name: str) -> bytes | None: ...
    async def values(self, keys: Sequence[str]) -> Sequence[bytes | None]: ...
    async def heads(self, keys: Sequence[str]) -> Sequence[bytes]: ...


class Orders:
    """`run` runs a script by its name. What is put here stays, whatever epoch it is; what runs out goes by itself."""

    def __init__(self, run: _Run, reading: Reading) -> None:
        self._run = run
        self._reading = reading

    async def version(self) -> int:
        """Grows with every change; 0 where nothing was ever put, or all was lost. What is put after a loss begins lower than what was lost."""
        return int(await self._reading.field("controls", "version") or 0)

    async def entries(self) -> list[Entry]:
        """Every order, those included that have run out and that nobody has swept away."""
        found = await self._reading.fields("controls")
        return [entry for text in found.values() if (entry := parse(text.decode("utf-8", "replace"))) is not None]

    async def put(self, entry: Entry) -> bool:
        """Give an order, in place of one about the same; False where there are too many."""
        return bool((await self._run("control_put", ["controls"], [entry.key, entry.dump(), str(ENTRIES)]))[0])

    async def drop(self, keys: Sequence[str]) -> list[bool]:
        """Take orders back; whether each was there."""
        return [bool(one) for one in await self._run("control_drop", ["controls"], list(keys))]

    async def cancel(self, request_ids: Sequence[str], order: str, ttl_ms: int) -> int:
        """Cancel ids by an order that was put before; how many were not yet."""
        return await self._ids(request_ids, [order, str(ttl_ms)])

    async def uncancel(self, request_ids: Sequence[str]) -> int:
        """Cancel them no longer; how many were."""
        return await self._ids(request_ids, ["", "0"])

    async def cancelled(self, request_ids: Sequence[str]) -> list[str | None]:
        """For each id the order that cancels it."""
        found = await self._reading.values([_key(request_id) for request_id in request_ids])
        return [None if name is None else name.decode("utf-8", "replace") for name in found]

    async def states(self, request_ids: Sequence[str]) -> list[str | None]:
        """For each id the first letter of what its claim says (`store.codec`), None without one."""
        states: list[str | None] = []
        for at in range(0, len(request_ids), BATCH):
            heads = await self._reading.heads([claim_key(request_id) for request_id in request_ids[at : at + BATCH]])
            states += [head.decode("ascii", "replace") or None for head in heads]
        return states

    async def restore(self, version: int, seen_ms: int, entries: Sequence[Entry]) -> bool:
        """Put back what was known at `version`, as of `seen_ms` of Redis' time, if it knows less now; whether it did."""
        args: list[str | bytes] = [str(version), str(seen_ms)]
        for entry in entries:
            args += (entry.key, entry.dump())
        return bool((await self._run("control_restore", ["controls"], args))[0])

    async def _ids(self, request_ids: Sequence[str], args: Sequence[str | bytes]) -> int:
        changed = 0
        for at in range(0, len(request_ids), BATCH):
            keys = ["controls", *(_key(request_id) for request_id in request_ids[at : at + BATCH])]
            changed += sum(map(int, await self._run("control_ids", keys, args)))
        return changed


def _key(request_id: str) -> str:
    return "cancel:" + request_id

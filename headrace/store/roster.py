"""Who works, as each worker says of itself: `{namespace}:workers`, a field a process. Whose word is old is for the reader to judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class RosterStore(Protocol):
    """Where heartbeats are kept. Every method raises StoreUnavailable or StoreLost."""

    async def put(self, name: str, text: str) -> None: ...
    async def all(self) -> dict[str, str]: ...
    async def drop(self, names: Sequence[str]) -> None: ...


class _Hash(Protocol):
    """One hash of a store."""

    async def fields(self, key: str) -> Mapping[bytes, bytes]: ...
    async def set_field(self, key: str, name: str, text: str) -> None: ...
    async def drop_fields(self, key: str, names: Sequence[str]) -> None: ...


class Roster:
    """Over a store's plain commands."""

    def __init__(self, store: _Hash) -> None:
        self._store = store

    async def put(self, name: str, text: str) -> None:
        """Say that this process works, and at what."""
        await self._store.set_field("workers", name, text)

    async def all(self) -> dict[str, str]:
        """By process, what it said last."""
        found = await self._store.fields("workers")
        return {name.decode("utf-8", "replace"): text.decode("utf-8", "replace") for name, text in found.items()}

    async def drop(self, names: Sequence[str]) -> None:
        """These have gone."""
        if names:
            await self._store.drop_fields("workers", names)

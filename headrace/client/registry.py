"""Who waits for which request, on the event loop. The reader's thread only looks things up in `entries`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from headrace.results import Result


@dataclass(slots=True)
class Entry:
    """A request whose end is wanted. `fingerprint` b"": any end of that id. The future's None: the client was closed.

    It takes one place of `room` until it has ended or is forgotten, if it `holds` one.
    """

    fingerprint: bytes
    future: asyncio.Future[Result | None]
    delivered: asyncio.Future[None] | None
    until_s: float
    holds: bool = False
    waiters: int = 0


@dataclass(slots=True)
class Registry:
    """At most `room` requests without an end; an end is kept until it was fetched, or for the entry's time.

    `delivered` of an entry is None where the request was submitted elsewhere, and only its end is waited for.
    """

    room: asyncio.Semaphore
    entries: dict[bytes, Entry] = field(default_factory=dict)
    forgotten: int = 0

    def add(self, key: bytes, fingerprint: bytes, until_s: float) -> Entry:
        """Its end is wanted from now on."""
        entry = self.entries[key] = Entry(fingerprint, asyncio.get_running_loop().create_future(), None, until_s)
        return entry

    def end(self, key: bytes, result: Result | None) -> None:
        """It has ended."""
        entry = self.entries.get(key)
        if entry is not None and not entry.future.done():
            entry.future.set_result(result)
            self._release(entry)

    def leave(self, key: bytes, entry: Entry) -> None:
        """One waiter less. An end that was fetched is dropped, and so is an entry that only a wait had made."""
        entry.waiters -= 1
        if not entry.waiters and (entry.future.done() or entry.delivered is None):
            self.drop(key, entry)

    def drop(self, key: bytes, entry: Entry) -> None:
        """Nobody wants it any longer."""
        if self.entries.get(key) is entry:
            del self.entries[key]
        self._release(entry)

    def fail(self, key: bytes, entry: Entry) -> None:
        """It was not sent: nothing will come."""
        if not entry.future.done():
            entry.future.set_result(None)
        self.drop(key, entry)

    def tidy(self, now_s: float) -> None:
        """Drop what nobody has asked for in its time."""
        old = [(key, entry) for key, entry in self.entries.items() if entry.until_s <= now_s and not entry.waiters]
        for key, entry in old:
            self.forgotten += 1
            self.drop(key, entry)

    def close(self) -> None:
        """Every wait ends."""
        for key in list(self.entries):
            self.end(key, None)
        self.entries.clear()

    def _release(self, entry: Entry) -> None:
        if entry.holds:
            entry.holds = False
            self.room.release()

"""Which data Redis holds: the epoch, the server process behind it, and the beat that gives a snapshot away. What to do about a loss is `recovery`'s.

Keys: `{namespace}:epoch`, `:closed` while admission is closed, `:lease` of who restores, `:run` (the server's run id), `:beat`.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

LEASE_MS = 10_000
BEAT_OLD_MS = 10_000

_Run = Callable[[str, Sequence[str], Sequence[str | bytes]], Awaitable[list[Any]]]


@dataclass(frozen=True, slots=True)
class Closed:
    """Admission is closed since `since_ms`, for `for_ms`; what was completed from `from_ms` on is to be restored. `mine`: by this worker."""

    from_ms: int
    since_ms: int
    mine: bool = False
    for_ms: int = 0

    @classmethod
    def parse(cls, text: bytes, *, mine: bool = False, for_ms: int = 0) -> Closed | None:
        """As the scripts write it; None while admission is open."""
        if not text:
            return None
        from_ms, since_ms = text.split(b"|")
        return cls(int(from_ms), int(since_ms), mine, for_ms)


@dataclass(frozen=True, slots=True)
class Entered:
    """What a worker found. `loss`: it is the one that wrote the new epoch; `fresh`: the epoch is another than it knew."""

    loss: bool
    fresh: bool
    closed: Closed | None


class EpochStore(Protocol):
    """What recovery needs to know of a store's epoch."""

    async def enter(self) -> Entered: ...
    async def beat(self) -> None: ...
    async def lease(self, who: str) -> Closed | None: ...
    async def reopen(self, who: str) -> bool: ...


class Epochs:
    """The epoch this process knows. `run` runs a script by its name; all methods raise StoreUnavailable or StoreLost."""

    def __init__(self, run: _Run, server_run: Callable[[], Awaitable[str]]) -> None:
        self._run = run
        self._server_run = server_run
        self._beat_ms = 0
        self.value = b""

    async def enter(self) -> Entered:
        """Take the epoch that stands, or write a new one and close admission where data may be lost."""
        run_id = await self._server_run()
        old = self.value
        args: list[str | bytes] = [old, str(self._beat_ms), run_id, uuid.uuid4().hex[:12], str(BEAT_OLD_MS)]
        epoch, written, closed = await self._run("enter", ("closed", "run", "beat"), args)
        self.value = bytes(epoch)
        if epoch != old:
            self._beat_ms = 0
        return Entered(loss=bool(written), fresh=epoch != old, closed=Closed.parse(closed))

    async def beat(self) -> None:
        """Say that these data were in use now. Once a second is enough. Raises StoreLost if Redis knows an older beat only."""
        (beat,) = await self._run("beat", ("beat",), [self.value, str(self._beat_ms)])
        self._beat_ms = int(beat)

    async def lease(self, who: str) -> Closed | None:
        """None once admission is open; else who restores: the lease is taken if it is free, and kept for 10 s."""
        closed, mine, for_ms = await self._run("lease", ("closed", "lease"), [self.value, who, str(LEASE_MS)])
        return Closed.parse(closed, mine=bool(mine), for_ms=int(for_ms))

    async def reopen(self, who: str) -> bool:
        """Open admission, if this worker restores; whether it is open."""
        (is_open,) = await self._run("reopen", ("closed", "lease"), [self.value, who])
        return bool(is_open)

"""Redis that may have lost its data: noticed, and put right before anything new is granted (DESIGN §5, "Loss").

1. one worker writes a new epoch; admission is closed  2. every worker claims again what it holds  3. one of them restores
the marks of completed results  4. when every worker alive has had time for 2, it restores what was settled meanwhile: a
worker may have settled after 3 and died before 2  5. admission opens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.claims import DoneMark
from headrace.errors import ConfigError, KafkaUnavailable, StoreLost, StoreUnavailable
from headrace.instrument import Tell
from headrace.store.epochs import Closed, EpochStore

BEAT_S = 1.0
CLOSED_TICK_S = 0.5
WAIT_MS = 15_000  # as long as a claim lives without a renewal: who has not come back by then counts as frozen
TOLD_EVERY_S = 2.0
CHECK_S = 30.0


class Restoring(Protocol):
    """What recovery needs of a store."""

    @property
    def epochs(self) -> EpochStore: ...

    async def check_server(self) -> None: ...

    async def restore(self, batch: Sequence[DoneMark]) -> list[bool]: ...


class Holder(Protocol):
    """Who holds claims in this process: a lane's guard."""

    async def reassert(self) -> None:
        """Claim again what is held. Raises StoreUnavailable or StoreLost."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the results read: marks to be restored, and how many records were read, of how many."""

    marks: Sequence[DoneMark]
    read: int
    total: int


class Results(Protocol):
    """The results, read from a point in time to a high watermark taken when the reading begins. Blocking; raises KafkaUnavailable."""

    def untouched(self) -> bool:
        """Whether nothing was ever settled here: then there is nothing to restore, and nobody to wait for."""
        ...

    def completed(self, since_ms: int) -> Iterator[Step]: ...

    def later(self) -> Iterator[Step]:
        """What came after that."""
        ...


class Recovery:
    """One in a process, whose lanes `join` it. `run` must be running, until after the lanes have closed.

    `wait_ms` is how long admission stays closed at least.
    """

    def __init__(self, store: Restoring, results: Results, *, incarnation: str, tell: Tell, wait_ms: int = WAIT_MS) -> None:
        self._store = store
        self._results = results
        self._who = incarnation
        self._tell = tell
        self._wait_ms = wait_ms
        self._holders: list[Holder] = []
        self._open = asyncio.Event()
        self._open.set()
        self._suspected = asyncio.Event()
        self._owed = False  # our claims are not yet claimed again
        self._closed = False
        self._restored = False  # by us
        self._checked_at = time.monotonic()
        self._told: str | None = None

    def join(self, holder: Holder) -> None:
        """Its claims are claimed again after a loss."""
        self._holders.append(holder)

    @property
    def is_open(self) -> bool:
        """Whether claims may be granted, as far as this process knows."""
        return self._open.is_set()

    async def until_open(self) -> None:
        """Until claims may be granted again."""
        await self._open.wait()

    def suspect(self, error: StoreLost) -> None:
        """A script was refused, or another server answered. `run` finds out what it means."""
        if not self._suspected.is_set():
            self._tell("store_suspected", {"error": str(error)})
        self._open.clear()
        self._suspected.set()

    async def enter(self) -> None:
        """Find out which data Redis holds, and take part in what follows from it. Raises StoreUnavailable, StoreLost or ConfigError."""
        entered = await self._store.epochs.enter()
        if entered.fresh:
            self._owed, self._restored = True, False
        self._closed = entered.closed is not None
        if self._closed:
            self._open.clear()
        await self._store.check_server()
        self._suspected.clear()

    async def run(self) -> None:
        """Until cancelled: beat, notice, recover. What cannot be done now is tried again."""
        while True:
            try:
                await self.tick()
            except StoreLost as error:
                self.suspect(error)
            except StoreUnavailable:  # the guards meet the same, and tell it
                self._tell("beat_missed", {})
            except (ConfigError, KafkaUnavailable) as error:
                self._waits_for(error)
            else:
                self._told = None
            await self._pause()

    async def tick(self) -> None:
        """Do once what is due now. Raises what `run` would tell."""
        if self._suspected.is_set():
            await self.enter()
        if self._owed:
            await self._reassert()
        if self._closed:
            await self._restore()
        if not self._closed:
            self._open.set()
            await self._store.epochs.beat()
            await self._check()

    async def _check(self) -> None:
        """Whether it may have been set to evict since: then admission is closed until it is set right."""
        if time.monotonic() - self._checked_at < CHECK_S:
            return
        self._checked_at = time.monotonic()
        try:
            await self._store.check_server()
        except ConfigError:
            self._open.clear()
            self._suspected.set()
            raise

    def _waits_for(self, error: Exception) -> None:
        """Told once, not at every try."""
        if self._told != str(error):
            self._told = str(error)
            self._tell("restore_waits", {"error": str(error)})

    async def _pause(self) -> None:
        pause_s = BEAT_S if self.is_open else CLOSED_TICK_S
        try:
            async with asyncio.timeout(pause_s):
                await self._suspected.wait()
                await asyncio.sleep(CLOSED_TICK_S / 5)  # a Redis that goes on refusing is not asked without a pause
        except TimeoutError:
            return

    async def _reassert(self) -> None:
        for holder in self._holders:
            await holder.reassert()
        self._owed = False

    async def _restore(self) -> None:
        """Restore if it falls to this worker, and open admission; or see whether another has."""
        closed = await self._store.epochs.lease(self._who)
        if closed is not None and not (closed.mine and await self._is_restored(closed) and await self._store.epochs.reopen(self._who)):
            return
        self._closed = False
        self._tell("admission_open", {})

    async def _is_restored(self, closed: Closed) -> bool:
        """Whether all marks are there, and nobody is waited for any longer."""
        if not self._restored:
            if await asyncio.to_thread(self._results.untouched):
                return True
            self._tell("store_lost", {"restore_from_ms": closed.from_ms, "note": "no request is admitted until its marks are restored"})
            await self._write_marks(lambda: self._results.completed(closed.from_ms))
            self._restored = True
        if closed.for_ms < self._wait_ms:
            return False
        await self._write_marks(self._results.later)
        return True

    async def _write_marks(self, read: Callable[[], Iterator[Step]]) -> None:
        """Each step renews the lease: whoever is killed in the middle is followed by another."""
        began, told, ids = time.monotonic(), 0.0, 0
        steps = await asyncio.to_thread(read)
        while (step := await asyncio.to_thread(next, steps, None)) is not None:
            ids += (await self._store.restore(step.marks)).count(True)
            await self._store.epochs.lease(self._who)
            if time.monotonic() - told > TOLD_EVERY_S:
                told = time.monotonic()
                self._tell("restoring", {"read": step.read, "of": step.total, "ids": ids})
        self._tell("restored", {"ids": ids, "seconds": round(time.monotonic() - began, 1)})

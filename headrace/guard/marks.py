"""What a settled or orphaned outcome means for its claim, and the queue that tells Redis in order, however long it is away."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice

from headrace.claims import Claim, DoneMark, MarkState
from headrace.envelope import Job
from headrace.guard.handover import dump_outcome
from headrace.outcome import Completed, Dead, Deferred, Degraded, Dropped, Outcome, Retry, Settlement
from headrace.store import ClaimStore

Tell = Callable[[str, dict[str, object]], None]
Op = tuple[Claim, MarkState | bytes]
LIMIT = 50_000
LIMIT_BYTES = 256 << 20
PART = 500


def mark_of(job: Job, outcome: Outcome) -> MarkState | None:
    """The mark of DESIGN's outcome table; None where the claim is not touched."""
    match outcome:
        case Completed():
            return "done"
        case Degraded():
            return "dead"
        case Retry() | Deferred(copy=False):
            return "waiting"
        case Dead(claimed=True):
            # never called in its life: a corrected request may use the id
            return "dead" if job.trail.retry_count > 0 or outcome.attempts else "forget"
        case Dropped():
            return "forget"
        case _:
            return None


class Marks:
    """Marks and hand-overs on their way to Redis, first in first out.

    Full (LIMIT entries or LIMIT_BYTES of answers), it lets the oldest go and says so: that claim lapses, and
    copies then learn from the committed offset what the mark would have told them.
    """

    def __init__(self, store: ClaimStore, tell: Tell, *, limit: int = LIMIT, limit_bytes: int = LIMIT_BYTES) -> None:
        self._store = store
        self._tell = tell
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._queue: deque[Op] = deque()
        self._bytes = 0
        self._lock = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._queue)

    def settled(self, claim: Claim, settlement: Settlement) -> None:
        """Queue the mark of a committed settlement, if it leaves one."""
        if (state := mark_of(settlement.job, settlement.outcome)) is not None:
            self.put((claim, state))

    def orphaned(self, claim: Claim, settlement: Settlement) -> None:
        """Queue the outcome of a settlement whose partition is gone. One that cannot be written costs its new owner a call."""
        if mark_of(settlement.job, settlement.outcome) is None:
            return
        try:
            self.put((claim, dump_outcome(settlement.outcome)))
        except TypeError as error:
            self._tell("hand_over_unwritable", {"error": type(error).__name__})

    def put(self, op: Op) -> None:
        """Queue a mark, or the bytes of a hand-over."""
        self._queue.append(op)
        self._bytes += _weight(op)
        dropped = 0
        while len(self._queue) > self._limit or (self._bytes > self._limit_bytes and len(self._queue) > 1):
            self._bytes -= _weight(self._queue.popleft())
            dropped += 1
        if dropped:
            self._tell("marks_dropped", {"count": dropped})

    async def reassert(self, now_ms: int) -> None:
        """What is queued once more as it was before Redis lost its data: claimed, or done. Raises StoreUnavailable or StoreLost."""
        async with self._lock:
            done = [DoneMark(c.request_id, c.origin, c.fingerprint, now_ms) for c, what in self._queue if what == "done"]
            others = [claim for claim, what in self._queue if what != "done"]
            if done:
                await self._store.restore(done)
            if others:
                await self._store.reassert(others)

    async def flush(self) -> None:
        """Write what is queued. Raises StoreUnavailable or StoreLost, and what was not written stays."""
        async with self._lock:
            while self._queue:
                part = list(islice(self._queue, PART))
                kind = type(part[0][1])
                part = part[: next((i for i, op in enumerate(part) if type(op[1]) is not kind), len(part))]
                await self._write(part)
                self._forget(part)

    async def _write(self, part: list[Op]) -> None:
        if isinstance(part[0][1], bytes):
            flags = await self._store.hand_over([(claim, what) for claim, what in part if isinstance(what, bytes)])
            name = "hand_over_refused"
        else:
            flags = await self._store.mark([(claim, what) for claim, what in part if not isinstance(what, bytes)])
            name = "mark_refused"
        if refused := flags.count(False):
            self._tell(name, {"count": refused})

    def _forget(self, part: list[Op]) -> None:
        """Take out what was written; the queue may have let some of it go meanwhile."""
        for op in part:
            if self._queue and self._queue[0] is op:
                self._bytes -= _weight(self._queue.popleft())


def _weight(op: Op) -> int:
    return len(op[1]) if isinstance(op[1], bytes) else 0

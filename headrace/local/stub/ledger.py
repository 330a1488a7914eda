"""What this server has seen: calls per request id, totals, and a log for an auditor. Never a prompt, never a key."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

import orjson

KEPT_ENTRIES: Final = 500_000
_Row: TypeAlias = tuple[int, float, int, str | None, int | None, int, str, str | None, str, int | None]


class Entry(NamedTuple):
    """One call, logged when its fate is decided, before a byte of the answer leaves.

    `status` is None where none is sent. `t_ms` is the machine's monotonic clock, `wall_ms` epoch time; `attempt` is
    what the client's header says, `call` what this server counted for that id.
    """

    seq: int
    t_ms: float
    wall_ms: int
    request_id: str | None
    attempt: int | None
    call: int
    endpoint: str
    rule: str | None
    action: str
    status: int | None

    def line(self) -> bytes:
        """As one line of NDJSON."""
        return orjson.dumps(self._asdict(), option=orjson.OPT_APPEND_NEWLINE)


class Ledger:
    """Counters of one server. `sink` takes each log line as it is written; its errors are not caught."""

    def __init__(self, sink: Callable[[bytes], None] | None = None, kept_entries: int = KEPT_ENTRIES) -> None:
        self._sink = sink
        self._entries: deque[_Row] = deque(maxlen=kept_entries)
        self._seq = 0
        self._waits: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self.in_flight = 0
        self.connections = 0
        self.clear()

    def clear(self) -> None:
        """Forget all but what is under way. `seq` goes on, so that no auditor mistakes a new entry for an old one."""
        self.started_s = time.monotonic()
        self.calls: dict[str, int] = {}
        self.total = 0
        self.abandoned = 0
        self.peak_in_flight = self.in_flight
        self._by_status: Counter[str] = Counter()
        self._by_action: Counter[str] = Counter()
        self._by_rule: Counter[str] = Counter()
        self._second, self._this_second, self._last_second, self._peak_second = 0, 0, 0, 0
        self._entries.clear()

    @property
    def at_s(self) -> float:
        """Seconds since the start or the last reset."""
        return time.monotonic() - self.started_s

    @property
    def next_seq(self) -> int:
        """The `seq` the next recorded call will have."""
        return self._seq + 1

    def count(self, request_id: str | None) -> int:
        """The number of this call among those of its id, from 1. Calls without an id are each the first."""
        if request_id is None:
            return 1
        number = self.calls.get(request_id, 0) + 1
        self.calls[request_id] = number
        return number

    def record(
        self,
        *,
        request_id: str | None,
        attempt: int | None,
        call: int,
        endpoint: str,
        rule: str | None,
        action: str,
        status: int | None,
    ) -> None:
        """Log one call and add it to the totals."""
        now = time.monotonic()
        self._seq += 1
        self.total += 1
        # A plain tuple of plain values: unlike an Entry, the garbage collector stops looking at it.
        entry = (self._seq, now * 1000, int(time.time() * 1000), request_id, attempt, call, endpoint, rule, action, status)
        self._entries.append(entry)
        self._by_status["none" if status is None else str(status)] += 1
        self._by_action[action] += 1
        if rule is not None:
            self._by_rule[rule] += 1
        self._tick(int(now))
        self._this_second += 1
        if self._sink is not None:
            self._sink(Entry._make(entry).line())
        self._wake()

    def began(self) -> None:
        """A call is under way."""
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        self._wake()

    def ended(self, *, abandoned: bool = False) -> None:
        """A call is answered, or its client has gone."""
        self.in_flight -= 1
        self.abandoned += abandoned
        self._wake()

    def entries(self, since: int, limit: int) -> Iterator[Entry]:
        """Logged calls after `since`, oldest first, at most `limit`; what is no longer kept is left out."""
        if not self._entries:
            return iter(())
        skip = max(0, since + 1 - self._entries[0][0])
        return map(Entry._make, islice(self._entries, skip, skip + limit))

    def stats(self) -> dict[str, object]:
        """Totals since the start or the last reset, ready for JSON."""
        self._tick(int(time.monotonic()))
        return {
            "calls": self.total,
            "ids": len(self.calls),
            "by_status": dict(self._by_status),
            "by_action": dict(self._by_action),
            "by_rule": dict(self._by_rule),
            "in_flight": self.in_flight,
            "peak_in_flight": self.peak_in_flight,
            "abandoned": self.abandoned,
            "connections": self.connections,
            "calls_per_s": self._last_second,
            "peak_calls_per_s": max(self._peak_second, self._this_second),
            "up_s": round(self.at_s, 3),
            "last_seq": self._seq,
            "oldest_seq": self._entries[0][0] if self._entries else None,
        }

    async def wait(self, holds: Callable[[], bool]) -> None:
        """Return when `holds()` does; asked after each change of a counter."""
        if holds():
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waits.append((holds, future))
        try:
            await future
        finally:
            self._waits = [wait for wait in self._waits if wait[1] is not future]

    def _wake(self) -> None:
        for holds, future in self._waits:
            if not future.done() and holds():
                future.set_result(None)

    def _tick(self, second: int) -> None:
        if second != self._second:
            self._last_second = self._this_second if second == self._second + 1 else 0
            self._peak_second = max(self._peak_second, self._this_second)
            self._second, self._this_second = second, 0

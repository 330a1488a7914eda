"""What this process has read of the wheels and not yet moved on: one line a wheel, left only from the head. Pure state.

When a record may go is `schedule`'s; reading and producing is left to `wheels` and `mover`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from headrace.schedule import FINEST, gate_ms, next_wheel, ready_ms

Place = tuple[int, int]
T = TypeVar("T")


class Waiting(NamedTuple, Generic[T]):
    """A record read from a wheel whose time has not come, or whose move is not yet known to be committed."""

    offset: int
    ready_ms: int
    due_ms: int
    size: int
    item: T


class Line(Generic[T]):
    """The head of one wheel's partition: what was read of it and not yet moved on, strictly in offset order.

    Because a record leaves only from the head, the committed offset alone says what is done. `frontier` is that offset.
    """

    MAX_RECORDS = 20_000
    MAX_BYTES = 4 << 20
    SILENCE_MS = 3_000

    def __init__(self, k: int) -> None:
        self.k = k
        self.since = time.monotonic()
        self._silent_since_ms: int | None = None
        self.paused = False
        self.position = -1
        self.committed = -1
        self._waiting: deque[Waiting[T]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def head(self) -> Waiting[T] | None:
        """What leaves first."""
        return self._waiting[0] if self._waiting else None

    @property
    def head_ready_ms(self) -> int | None:
        """When the head may go on; None when nothing is held."""
        return self._waiting[0].ready_ms if self._waiting else None

    def add(self, waiting: Waiting[T]) -> bool:
        """Hold a record; False for one that was read already."""
        if waiting.offset < self.position:
            return False
        self.position = waiting.offset + 1
        self._waiting.append(waiting)
        self._bytes += waiting.size
        return True

    def ended(self, offset: int) -> None:
        """The partition ends at `offset`: gaps up to there are transaction markers and count as done."""
        self.position = max(self.position, offset)

    def ready(self, now_ms: int) -> Iterator[Waiting[T]]:
        """What may go on now, from the head; it stays held until `done`."""
        for waiting in self._waiting:
            if waiting.ready_ms > now_ms:
                return
            yield waiting

    def frontier(self, moved: int = 0) -> int:
        """The next offset to be read after a restart, once the first `moved` of what is held are done; -1: not known yet."""
        return next((w.offset for w in islice(self._waiting, moved, None)), self.position)

    def done(self, moved: int, offset: int) -> None:
        """A settle of the first `moved` is known to be committed, with this offset."""
        for _ in range(moved):
            self._bytes -= self._waiting.popleft().size
        self.committed = offset

    def should_pause(self, now_ms: int, tick_ms: int) -> bool:
        """Whether to stop reading: it holds its fill, or its head is more than two ticks away (hysteresis)."""
        head = self.head_ready_ms
        full = len(self._waiting) >= self.MAX_RECORDS or self._bytes >= self.MAX_BYTES
        return head is not None and (full or head - now_ms > 2 * tick_ms)

    def silent(self, now_ms: int) -> bool:
        """Whether nothing was heard of it for too long after its assignment; true once each such span."""
        if self.position >= 0:
            return False
        if self._silent_since_ms is None:
            self._silent_since_ms = now_ms
        overdue = now_ms - self._silent_since_ms >= self.SILENCE_MS
        if overdue:
            self._silent_since_ms = now_ms
        return overdue

    def should_resume(self, now_ms: int, tick_ms: int) -> bool:
        """Whether to read on: the head's time comes within a tick, so that what follows it is here by then, and there is room."""
        head = self.head_ready_ms
        room = 2 * len(self._waiting) <= self.MAX_RECORDS and 2 * self._bytes <= self.MAX_BYTES
        return room and (head is None or head - now_ms <= tick_ms)


class Move(NamedTuple, Generic[T]):
    """A held record and where it goes: to a wheel, or with None back to the retry topic."""

    source: Place
    waiting: Waiting[T]
    wheel: int | None


class Refusals:
    """Records the broker refused: such a record is tried alone, so that it takes no neighbour with it.

    Refused alone by the retry topic, it goes to a wheel again, a coarser one each time, and waits there for a remedy.
    """

    def __init__(self) -> None:
        self.counts: dict[Place, int] = {}
        self.shunned: set[Place] = set()

    def note(self, refused: list[Place], moves: int) -> bool:
        """Take in what a settle of `moves` was refused for; True when a record was refused alone."""
        for place in refused:
            self.counts.setdefault(place, 0)
        if moves > 1 or not refused or refused[0] in self.shunned:
            return False
        self.counts[refused[0]] += 1
        self.shunned.add(refused[0])
        return True

    def moved(self, place: Place, to: Place | None) -> None:
        """It is committed elsewhere; on a wheel at `to` its count is kept."""
        count = self.counts.pop(place, 0)
        if place in self.shunned and to is not None:
            self.counts[to] = count
        self.shunned.discard(place)

    def forget(self, partition: int) -> None:
        """The partition is no longer ours."""
        self.counts = {place: n for place, n in self.counts.items() if place[0] != partition}
        self.shunned = {place for place in self.shunned if place[0] != partition}


class Taken(NamedTuple, Generic[T]):
    """What a settle takes from a line: the first `moved` of what it holds, and the offset to commit."""

    line: Line[T]
    moved: int
    offset: int


class Lines(Generic[T]):
    """The lines of the partitions this process owns, by partition. Times are epoch ms; `unit_ms` is the wheels' second."""

    def __init__(self, wheels: int, unit_ms: int) -> None:
        self._wheels, self._unit_ms = wheels, unit_ms
        self.owned: dict[int, Line[T]] = {}
        self.refusals = Refusals()

    def assign(self, partitions: Iterable[int]) -> None:
        """These are ours now, read from their committed offset on."""
        self.owned |= {partition: Line(partition + FINEST) for partition in partitions}

    def forget(self, partitions: Iterable[int]) -> None:
        """Revoked or lost: what is held is read again by the new owner."""
        for partition in partitions:
            self.owned.pop(partition, None)
            self.refusals.forget(partition)

    def hold(self, place: Place, append_ms: int, due_ms: int, size: int, item: T) -> None:
        """Keep a record until it may go on. One refused before waits out its wheel, however long past its due time is."""
        partition, offset = place
        line = self.owned[partition]
        ready = gate_ms(append_ms, line.k, self._unit_ms)
        if not self.refusals.counts.get(place):
            ready = ready_ms(append_ms, due_ms, line.k, self._unit_ms)
        line.add(Waiting(offset, ready, due_ms, size, item))

    def next_ready_ms(self) -> int | None:
        """When the soonest head may go on; None when nothing is held."""
        return min((ready for line in self.owned.values() if (ready := line.head_ready_ms) is not None), default=None)

    def choose(self, now_ms: int, limit: int) -> list[Move[T]]:
        """What is ready, the finest wheel first, at most `limit`; a record under suspicion goes alone."""
        moves: list[Move[T]] = []
        for partition in sorted(self.owned):
            for waiting in islice(self.owned[partition].ready(now_ms), limit - len(moves)):
                place = (partition, waiting.offset)
                alone = place in self.refusals.counts
                if alone and moves:
                    break
                moves.append(Move(place, waiting, self._wheel(place, waiting, now_ms)))
                if alone:
                    return moves
        return moves

    def _wheel(self, place: Place, waiting: Waiting[T], now_ms: int) -> int | None:
        if place in self.refusals.shunned:
            return min(FINEST + self.refusals.counts[place], FINEST + self._wheels - 1)
        return next_wheel(waiting.due_ms - now_ms, self._wheels, self._unit_ms)

    def take(self, moves: list[Move[T]]) -> dict[int, Taken[T]]:
        """Per partition what a settle of `moves` commits there, where that is news: an empty line's end of partition is."""
        counts: dict[int, int] = {}
        for move in moves:
            counts[move.source[0]] = counts.get(move.source[0], 0) + 1
        taken: dict[int, Taken[T]] = {}
        for partition, line in self.owned.items():
            moved = counts.get(partition, 0)
            if (moved or not len(line)) and line.frontier(moved) > line.committed:
                taken[partition] = Taken(line, moved, line.frontier(moved))
        return taken

    def still_owned(self, taken: dict[int, Taken[T]]) -> dict[int, Taken[T]]:
        """Of what a settle took, what was not revoked since; an assignment given back is another line."""
        return {partition: part for partition, part in taken.items() if self.owned.get(partition) is part.line}

    def committed(self, moves: list[Move[T]], taken: dict[int, Taken[T]], landed_at: Mapping[Place, Place]) -> None:
        """A settle is known to be committed: let go of what it moved. `landed_at` says where on the wheels it came to stand."""
        for part in self.still_owned(taken).values():
            part.line.done(part.moved, part.offset)
        for source in [move.source for move in moves if move.source in self.refusals.counts]:
            self.refusals.moved(source, landed_at.get(source))

    def flow(self, now_ms: int, tick_ms: int, *, tick: bool) -> tuple[list[int], list[int]]:
        """The partitions to pause, because they are not soon, and on the tick those to resume, because they are.

        A partition that gave not even its end since it was assigned may still be paused in the client, which can keep
        a pause over a rebalance: it is resumed again.
        """
        pause: list[int] = []
        resume: list[int] = []
        for partition, line in self.owned.items():
            if not line.paused and line.should_pause(now_ms, tick_ms):
                line.paused = True
                pause.append(partition)
            elif tick and ((line.paused and line.should_resume(now_ms, tick_ms)) or line.silent(now_ms)):
                line.paused = False
                resume.append(partition)
        return pause, resume

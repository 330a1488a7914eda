"""When a record is due, and where it waits: in the near heap, or on a timing wheel. Pure arithmetic over times it is given.

Reading and moving records is left to `wheels` and the retry lane; how long a failure must wait is `policy`'s.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from headrace.envelope import Header

FINEST = 2
UNIT_MS = 1000
NEAR_MS = UNIT_MS << FINEST
DUE_HEADER = "headrace_next_retry_at"
CLOCKS_APART_MS = 60_000  # two workers, or a worker and a producer, may differ by so much about now
LATEST_DUE_MS = 253_402_300_799_000  # the end of the year 9999, the last that RFC 3339 can say

T = TypeVar("T")


def wheels_for(longest_delay_s: float) -> int:
    """How many wheels a longest delay needs: wheel k = 2, 3, … holds [2ᵏ, 2ᵏ⁺¹) s; wheel k is partition k − 2."""
    k = FINEST
    while 2 ** (k + 1) <= longest_delay_s:
        k += 1
    return k - FINEST + 1


def wheel_of(remaining_ms: int, wheels: int, unit_ms: int = UNIT_MS) -> int:
    """The wheel for a remaining delay. Shorter than the finest takes the finest, longer than the coarsest the coarsest."""
    units = max(remaining_ms, 0) // unit_ms
    return min(max(units.bit_length() - 1, FINEST), FINEST + wheels - 1)


def partition_of(k: int) -> int:
    """The partition of the later topic that is wheel `k`."""
    return k - FINEST


def next_wheel(remaining_ms: int, wheels: int, unit_ms: int = UNIT_MS) -> int | None:
    """Where a record goes from here: a wheel, or None for the retry topic, whose heap holds what is due within 4 units."""
    return None if remaining_ms <= unit_ms << FINEST else wheel_of(remaining_ms, wheels, unit_ms)


def margin_ms(k: int, unit_ms: int = UNIT_MS) -> int:
    """How much sooner than its span wheel `k` is read: time to absorb a burst that is due all at once."""
    return max(unit_ms, unit_ms << (k - 2))


def gate_ms(append_ms: int, k: int, unit_ms: int = UNIT_MS) -> int:
    """When a record appended to wheel `k` at `append_ms` is to be read."""
    return append_ms + (unit_ms << k) - margin_ms(k, unit_ms)


def ready_ms(append_ms: int, due_ms: int, k: int, unit_ms: int = UNIT_MS) -> int:
    """When it may go on: at its gate, or sooner where it stands on too coarse a wheel for its due time."""
    return min(gate_ms(append_ms, k, unit_ms), due_ms - margin_ms(k, unit_ms))


def due_of(headers: Sequence[Header] | None) -> int:
    """The due time in a record's headers, epoch ms, read as `trail` reads it. Absent or garbage is 0: the lane then decides."""
    for name, value in reversed(headers or ()):
        if name == DUE_HEADER and value is not None and len(value) <= 2048:
            try:
                text = value.decode()
            except UnicodeDecodeError:
                continue
            plain = text.isascii() and text.isdigit() and len(text) <= 18
            return min(int(text), LATEST_DUE_MS) if plain else 0
    return 0


class Skew:
    """How far the broker's clock is ahead of ours, from reports that it stamped a record between two of our times.

    Only what contradicts the estimate moves it, and no further than needed, so the time a report takes adds no error.
    """

    def __init__(self) -> None:
        self.ms = 0

    def saw(self, stamped_ms: int, sent_ms: int | None, seen_ms: int) -> None:
        """The broker stamped a record not before `sent_ms` (None: unknown) and not after `seen_ms` of our clock."""
        lowest = stamped_ms - seen_ms
        if self.ms < lowest:
            self.ms = lowest
        elif sent_ms is not None and self.ms > stamped_ms - sent_ms:
            self.ms = stamped_ms - sent_ms


class NearHeap(Generic[T]):
    """What is due soon, in order of due time; equal due times keep the order of their pushes."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T, int]] = []
        self._seq = 0
        self._size = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def size(self) -> int:
        """The sum of the sizes that were pushed and are still here, for a bound on memory."""
        return self._size

    def push(self, due_ms: int, job: T, size: int = 0) -> None:
        """Keep `job` until `due_ms`."""
        self._seq += 1
        self._size += size
        heapq.heappush(self._heap, (due_ms, self._seq, job, size))

    def pop_due(self, now_ms: int, limit: int) -> list[T]:
        """At most `limit` jobs that are due at `now_ms`, the longest due first."""
        due: list[T] = []
        while len(due) < limit and self._heap and self._heap[0][0] <= now_ms:
            _, _, job, size = heapq.heappop(self._heap)
            self._size -= size
            due.append(job)
        return due

    def next_due_ms(self) -> int | None:
        """When the next job is due; None when nothing waits."""
        return self._heap[0][0] if self._heap else None

    def drop(self, predicate: Callable[[T], bool]) -> list[T]:
        """Forget every job of which `predicate` holds (its partition is gone), and give them back."""
        kept: list[tuple[int, int, T, int]] = []
        dropped: list[T] = []
        for entry in self._heap:
            if predicate(entry[2]):
                dropped.append(entry[2])
            else:
                kept.append(entry)
        heapq.heapify(kept)
        self._heap, self._size = kept, sum(entry[3] for entry in kept)
        return dropped

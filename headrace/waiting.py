"""Where jobs wait between decode and admission: in order, or by due time. What is too far away is told to move to a wheel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from headrace.envelope import Job
from headrace.outcome import Moved, Settlement
from headrace.schedule import CLOCKS_APART_MS, NearHeap, wheel_of


class Waiting(Protocol):
    """A lane's schedule. `add` returns what is not to wait here; `take` gives what may go on now."""

    def add(self, jobs: Iterable[Job], now_ms: int) -> list[Settlement]: ...

    def take(self, limit: int, now_ms: int) -> list[Job]: ...

    def next_due_ms(self) -> int | None: ...

    def drop(self, unwanted: Callable[[Job], bool]) -> list[Job]: ...

    def __len__(self) -> int: ...


class InOrder:
    """Main and dlq lane: everything may go on at once, in the order it was read."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, jobs: Iterable[Job], now_ms: int) -> list[Settlement]:
        """Nothing waits for a time here."""
        self._jobs.extend(jobs)
        return []

    def take(self, limit: int, now_ms: int) -> list[Job]:
        """The next `limit` jobs."""
        return [self._jobs.popleft() for _ in range(min(limit, len(self._jobs)))]

    def next_due_ms(self) -> int | None:
        """None: what is here is due."""
        return None

    def drop(self, unwanted: Callable[[Job], bool]) -> list[Job]:
        """Forget what is `unwanted`; gives it back."""
        dropped = [job for job in self._jobs if unwanted(job)]
        self._jobs = deque(job for job in self._jobs if not unwanted(job))
        return dropped


class ByDueTime:
    """Retry lane: due within `near_ms` waits in the heap, later goes to the wheels; beyond the longest delay it goes on, to die."""

    def __init__(self, near_ms: int, longest_ms: int, wheels: int) -> None:
        self._near_ms = near_ms
        self._longest_ms = longest_ms
        self._wheels = wheels
        self._heap: NearHeap[Job] = NearHeap()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, jobs: Iterable[Job], now_ms: int) -> list[Settlement]:
        """Keeps what is near; returns what moves to a wheel. A job with a fault has nothing to wait for."""
        moved: list[Settlement] = []
        for job in jobs:
            due_ms = job.trail.next_retry_at_ms or 0
            remaining_ms = due_ms - now_ms
            if job.fault is not None or remaining_ms > self._longest_ms + CLOCKS_APART_MS:
                self._heap.push(0, job)
            elif remaining_ms > self._near_ms:
                moved.append(Settlement(job, Moved(wheel_of(remaining_ms, self._wheels))))
            else:
                self._heap.push(due_ms, job)
        return moved

    def take(self, limit: int, now_ms: int) -> list[Job]:
        """At most `limit` jobs that are due."""
        return self._heap.pop_due(now_ms, limit)

    def next_due_ms(self) -> int | None:
        """When the next job is due."""
        return self._heap.next_due_ms()

    def drop(self, unwanted: Callable[[Job], bool]) -> list[Job]:
        """Forget what is `unwanted`; gives it back."""
        return self._heap.drop(unwanted)

"""Where a lane takes up its partitions: reads committed offsets and maps off the source's thread, and says which records are lost."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from headrace.assignment import Assignment, TopicPartition
from headrace.committed import Committed, Standing
from headrace.errors import HeadraceError
from headrace.instrument import Tell
from headrace.offsets import Tracker

MARKERS, LOOK_EVERY_S = 16, 5.0


class Restored(NamedTuple):
    """A partition whose offsets were read: it may be dispatched, if it is still ours under this epoch."""

    partition: TopicPartition
    epoch: int
    tracker: Tracker
    committed: int


class Restorer:
    """One for a source. `restore` and `look` only ask, on a thread of its own; `ready` is taken by the source's thread."""

    def __init__(self, group: str, window: int, *, assignment: Assignment, committed: Committed, tell: Tell) -> None:
        self._group = group
        self._window = window
        self._assignment = assignment
        self._committed = committed
        self._tell = tell
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"{group}-restore")
        self._ready: deque[tuple[TopicPartition, int, Standing]] = deque()
        self._reached: dict[TopicPartition, int] = {}  # one past what was last read of a partition
        self._looked_at = float("-inf")
        self._stopping = threading.Event()
        self.failure: BaseException | None = None

    def restore(self, epochs: dict[TopicPartition, int]) -> None:
        """Read where these partitions stand, for as long as they are ours."""
        self._submit(self._read, epochs)

    def ready(self) -> Iterator[Restored]:
        """Those that were read since the last time."""
        while self._ready:
            partition, epoch, standing = self._ready.popleft()
            yield Restored(partition, epoch, self._tracker(partition, standing), standing.committed)

    def passed(self, partition: TopicPartition, run: list[Any], now_s: float) -> None:
        """A run of messages was read. A jump wider than a few transactions' markers: aborted records, or such as were deleted unread."""
        expected, last, found = self._reached.get(partition), run[-1], run[0].offset()
        self._reached[partition] = last.offset() + (last.error() is None)
        if expected is not None and found - expected > MARKERS and now_s - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now_s  # aborted records make such jumps too, and each look is three requests
            self._submit(self._look, partition, expected, found)

    def forget(self, partition: TopicPartition) -> None:
        """It is no longer ours."""
        self._reached.pop(partition, None)

    def stop(self) -> None:
        """Nothing more is read."""
        self._stopping.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, work: Any, *arguments: Any) -> None:
        self._pool.submit(work, *arguments).add_done_callback(self._done)

    def _done(self, future: Future[None]) -> None:
        """A partition that cannot be restored is never dispatched: the process must not go on as if it were."""
        if not future.cancelled() and (error := future.exception()) is not None:
            self.failure = error

    def _read(self, epochs: dict[TopicPartition, int]) -> None:
        wait_s = 0.1
        while not self._stopping.is_set():
            wanted = {tp: epoch for tp, epoch in epochs.items() if self._assignment.epoch(tp) == epoch}
            if not wanted:
                return
            try:
                standings = self._committed.read(wanted)
            except HeadraceError as error:
                self._tell("committed_unreadable", {"group": self._group, "error": str(error)})
                self._stopping.wait(wait_s)
                wait_s = min(wait_s * 2, 2.0)
                continue
            self._ready.extend((tp, wanted[tp], standing) for tp, standing in standings.items())
            return

    def _look(self, partition: TopicPartition, expected: int, found: int) -> None:
        """The log's start says whether reading jumped because records are gone."""
        try:
            start = self._committed.read([partition])[partition].start
        except HeadraceError as error:
            self._tell("committed_unreadable", {"group": self._group, "error": str(error)})
            return
        if (lost := min(start, found) - expected) > 0:
            self._lost(partition, "deleted by retention before they were read", lost)

    def _tracker(self, partition: TopicPartition, standing: Standing) -> Tracker:
        frontier, restored = standing.committed, standing.map
        if frontier > standing.end:  # the topic was made anew, or truncated: the reader starts over, so do we
            self._lost(partition, "committed beyond the log's end", 0)
            frontier, restored = standing.start, None
        elif standing.lost:
            self._lost(partition, "deleted by retention before they were settled", standing.lost)
        if frontier < 0:
            frontier, restored = standing.start, None
        tracker = Tracker(frontier, restored, window=self._window)
        if standing.start > frontier:
            tracker.at_end(standing.start)
        return tracker

    def _lost(self, partition: TopicPartition, reason: str, records: int) -> None:
        self._tell("records_lost", {"partition": f"{partition[0]}/{partition[1]}", "reason": reason, "records": records})

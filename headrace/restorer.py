"""Where a lane takes up its partitions: reads committed offsets and maps off the source's thread, and says which records are lost."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from headrace.assignment import Assignment
from headrace.committed import Committed, Standing
from headrace.errors import HeadraceError
from headrace.instrument import Tell
from headrace.offsets import Tracker
from headrace.vitals import TopicPartition

MARKERS, LOOK_EVERY_S = 16, 5.0


class Gap(NamedTuple):
    """Offsets that reading passed by, from `first` up to but without `end`: markers, aborted or compacted records, or deleted ones."""

    first: int
    end: int

    def lost(self, start: int) -> int:
        """How many of them were deleted unread, by where the log starts a moment later.

        A gap as narrow as a few transactions' markers must end where the log starts, or it only happened to be deleted since.
        """
        narrow = self.end - self.first <= MARKERS
        return 0 if narrow and start > self.end else max(0, min(start, self.end) - self.first)


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
        self._frontiers: dict[TopicPartition, int] = {}  # where reading began
        self._mapped_to: dict[TopicPartition, int] = {}  # where the restored map ends: below it the tracker knows what is lost
        self._told_lost: dict[TopicPartition, int] = {}  # of partitions whose map announced records that were not read yet
        self._gaps: deque[tuple[TopicPartition, Gap]] = deque()
        self._looked_at = float("-inf")
        self._stopping = threading.Event()
        self.failure: BaseException | None = None

    def restore(self, epochs: dict[TopicPartition, int]) -> None:
        """Read where these partitions stand, for as long as they are ours."""
        self._submit(self._read, epochs)

    def ready(self) -> Iterator[Restored]:
        """Those that were read since the last time. To be called often: what was lost is looked for here as well."""
        while self._ready:
            partition, epoch, standing = self._ready.popleft()
            tracker = self._tracker(partition, standing)
            if self._assignment.epoch(partition) == epoch:
                self._frontiers[partition] = tracker.frontier
                self._mapped_to[partition] = standing.map.end if standing.map is not None else 0
                if tracker.unread:
                    self._told_lost[partition] = tracker.lost
            yield Restored(partition, epoch, tracker, standing.committed)
        for partition in list(self._told_lost):
            self._watch(partition)
        self._look_when_due(time.monotonic())

    def passed(self, partition: TopicPartition, run: list[Any], now_s: float) -> None:
        """A run of messages was read. Aborted records and markers make gaps in it too, so the log's start is asked for now and then only."""
        expected, last = self._reached.get(partition, self._frontiers.get(partition)), run[-1]
        self._reached[partition] = reached = last.offset() + (last.error() is None)
        if expected is None or reached - expected == len(run) - (last.error() is not None):
            return
        for message in run:
            found = message.offset()
            if found > expected:
                self._gaps.append((partition, Gap(expected, found)))
            expected = found + (message.error() is None)
        self._look_when_due(now_s)

    def forget(self, partition: TopicPartition) -> None:
        """It is no longer ours."""
        for known in (self._reached, self._frontiers, self._mapped_to, self._told_lost):
            known.pop(partition, None)

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

    def _watch(self, partition: TopicPartition) -> None:
        """What a restored map announced, and reading passed by: deleted, or compacted away."""
        found = self._assignment.with_tracker(partition, lambda tracker: (tracker.lost, tracker.unread))
        if found is None:
            return
        lost, unread = found
        if lost > self._told_lost[partition]:
            self._lost(partition, "gone from the log before they were settled", lost - self._told_lost[partition])
        self._told_lost[partition] = lost
        if not unread:
            del self._told_lost[partition]

    def _look_when_due(self, now_s: float) -> None:
        if not self._gaps or now_s - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now_s
        gaps: dict[TopicPartition, list[Gap]] = {}
        for _ in range(len(self._gaps)):
            partition, gap = self._gaps.popleft()
            if partition not in self._reached:  # no longer ours
                continue
            mapped_to = self._mapped_to.get(partition)
            if mapped_to is None:
                self._gaps.append((partition, gap))
            elif (first := max(gap.first, mapped_to)) < gap.end:
                gaps.setdefault(partition, []).append(Gap(first, gap.end))
        if gaps:
            self._submit(self._look, gaps)

    def _look(self, gaps: Mapping[TopicPartition, list[Gap]]) -> None:
        """The logs' starts say whether reading jumped because records are gone."""
        try:
            standings = self._committed.read(gaps)
        except HeadraceError as error:
            self._tell("committed_unreadable", {"group": self._group, "error": str(error)})
            self._gaps.extend((partition, gap) for partition, found in gaps.items() for gap in found)
            return
        for partition, found in gaps.items():
            if lost := sum(gap.lost(standings[partition].start) for gap in found):
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

"""The partitions this process owns, each with its epoch and its tracker: what the source thread, the loop and the settle thread share.

Every change of ownership makes a new immutable Snapshot; trackers are touched only under the one lock.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.envelope import Record
from headrace.offsets import Commit, Sequence, Tracker
from headrace.vitals import Standing, TopicPartition


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Owned partitions with their epochs, and the group metadata of the same moment. `version` grows with each change of ownership."""

    version: int
    epochs: Mapping[TopicPartition, int]
    metadata: Any = None


@dataclass(slots=True)
class _Owned:
    epoch: int
    tracker: Tracker | None = None
    leaving: bool = False
    committed: int = -1
    map_chars: int = 0
    since: float = field(default_factory=time.monotonic)
    settled_at: float = 0.0

    def standing(self) -> Standing:
        tracker = self.tracker
        if tracker is None:
            return Standing(-1, 0, 0, 0, 0, self.since, self.settled_at, restored=False)
        return Standing(tracker.frontier, tracker.in_flight, tracker.unread, tracker.span, self.map_chars, self.since, self.settled_at)


class Assignment:
    """Thread-safe. `is_current` and `snapshot` take no lock: they read one reference."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs = itertools.count(1)
        self._owned: dict[TopicPartition, _Owned] = {}
        self._dispatchable: Mapping[TopicPartition, int] = {}
        self.snapshot = Snapshot(0, {})

    def assigned(self, partitions: Iterable[TopicPartition], metadata: Any) -> dict[TopicPartition, int]:
        """New partitions, each under a new epoch; nothing of them is dispatched before `restored`."""
        with self._lock:
            epochs = {tp: next(self._epochs) for tp in partitions}
            self._owned.update({tp: _Owned(epoch) for tp, epoch in epochs.items()})
            self._renew(metadata)
            return epochs

    def restored(self, tp: TopicPartition, epoch: int, tracker: Tracker, committed: int) -> bool:
        """The partition's committed offset and map are read. False: it has gone meanwhile, or was assigned anew."""
        with self._lock:
            owned = self._owned.get(tp)
            if owned is None or owned.epoch != epoch:
                return False
            owned.tracker, owned.committed = tracker, committed
            return True

    def refreshed(self, metadata: Any) -> None:
        """Newer group metadata, with the same ownership."""
        old = self.snapshot
        self.snapshot = Snapshot(old.version, old.epochs, metadata)

    def leaving(self, partitions: Iterable[TopicPartition], metadata: Any) -> None:
        """About to be revoked: what is finished may still be settled, with metadata taken inside the callback; nothing new begins."""
        with self._lock:
            for tp in partitions:
                if tp in self._owned:
                    self._owned[tp].leaving = True
            self._renew(metadata)

    def gone(self, partitions: Iterable[TopicPartition], metadata: Any) -> None:
        """Revoked or lost: nothing of them is settled here any more."""
        with self._lock:
            for tp in partitions:
                self._owned.pop(tp, None)
            self._renew(metadata)

    def epoch(self, tp: TopicPartition) -> int | None:
        """The epoch the partition is owned under, leaving or not."""
        return self.snapshot.epochs.get(tp)

    def is_current(self, record: Record) -> bool:
        """Whether work on this record may begin: its partition is still ours, under the epoch it was read in, and not leaving."""
        return self._dispatchable.get((record.topic, record.partition)) == record.epoch

    def track(self, tp: TopicPartition, offsets: Iterable[int]) -> None:
        """Offsets given to the lane, ascending."""
        with self._lock:
            owned = self._owned.get(tp)
            if owned is not None and owned.tracker is not None:
                owned.tracker.track(offsets)

    def with_tracker(self, tp: TopicPartition, use: Callable[[Tracker], Any]) -> Any:
        """`use(tracker)` under the lock; None where there is none yet."""
        with self._lock:
            owned = self._owned.get(tp)
            return use(owned.tracker) if owned is not None and owned.tracker is not None else None

    def commits(
        self, settling: Mapping[TopicPartition, Collection[int]], snapshot: Snapshot, sequence: Sequence
    ) -> dict[TopicPartition, Commit]:
        """What to commit once `settling` is produced: of its partitions, and of those whose frontier moved by itself (ends, gaps)."""
        commits: dict[TopicPartition, Commit] = {}
        with self._lock:
            for tp, owned in self._owned.items():
                if owned.tracker is None or snapshot.epochs.get(tp) != owned.epoch:
                    continue
                offsets = settling.get(tp, ())
                if offsets or owned.tracker.frontier > owned.committed:
                    commits[tp] = owned.tracker.committable(offsets, sequence)
        return commits

    def committed(
        self, settled: Mapping[TopicPartition, Collection[int]], commits: Mapping[TopicPartition, Commit], snapshot: Snapshot
    ) -> None:
        """A settle is known to be committed."""
        now = time.monotonic()
        with self._lock:
            for tp, commit in commits.items():
                owned = self._owned.get(tp)
                if owned is None or owned.tracker is None or snapshot.epochs.get(tp) != owned.epoch:
                    continue
                owned.tracker.resolve(settled.get(tp, ()))
                owned.committed, owned.map_chars, owned.settled_at = commit.frontier, len(commit.metadata), now

    def behind(self) -> bool:
        """Whether a frontier moved without a settle, so that its offset is still to be committed."""
        with self._lock:
            return any(o.tracker is not None and o.tracker.frontier > o.committed for o in self._owned.values())

    def standings(self) -> dict[TopicPartition, Standing]:
        """Every owned partition, those included whose map is not there yet."""
        with self._lock:
            return {tp: owned.standing() for tp, owned in self._owned.items()}

    def frontiers(self) -> dict[TopicPartition, tuple[int, int]]:
        """By partition: its frontier, and how many records are in flight."""
        with self._lock:
            return {tp: (o.tracker.frontier, o.tracker.in_flight) for tp, o in self._owned.items() if o.tracker is not None}

    def _renew(self, metadata: Any) -> None:
        epochs = {tp: o.epoch for tp, o in self._owned.items()}
        self._dispatchable = {tp: o.epoch for tp, o in self._owned.items() if not o.leaving}
        self.snapshot = Snapshot(self.snapshot.version + 1, epochs, metadata)

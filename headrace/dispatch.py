"""From messages read to records dispatched: which of a partition's waiting messages are wanted and have room. Reading is `source`'s."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from headrace.envelope import Record
from headrace.offsets import Tracker
from headrace.trail import headers_of
from headrace.vitals import TopicPartition


class Downstream(Protocol):
    """What stands behind a source. All of it is called on the source's thread."""

    def deliver(self, records: list[Record]) -> None:
        """Take a batch, of one partition and in order."""
        ...

    def ownership_changed(self) -> None:
        """Partitions go: nothing new of them is to begin."""
        ...

    def drain(self, timeout_s: float) -> bool:
        """Settle what is finished; whether that was done in time."""
        ...


def take(tracker: Tracker, tp: TopicPartition, stash: deque[Any], epoch: int) -> list[Record]:
    """Records of the stash that are wanted, in order, until one has no room."""
    records: list[Record] = []
    while stash:
        message = stash[0]
        offset = message.offset()
        if message.error() is not None:
            tracker.at_end(offset)
        elif tracker.wanted(offset):
            if not tracker.room(offset):
                break
            tracker.track((offset,))
            records.append(_record(message, tp, offset, epoch))
        stash.popleft()
    return records


def _record(message: Any, tp: TopicPartition, offset: int, epoch: int) -> Record:
    return Record(*tp, offset, epoch, message.key(), message.value(), headers_of(message), message.timestamp()[1])


def no_room(stash: deque[Any], tracker: Tracker) -> bool:
    """Whether the window is full for the first of a stash."""
    return not tracker.room(stash[0].offset())

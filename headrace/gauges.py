"""What a source knows of each partition it reads: how far it has come, how far it could, and how old the oldest unsettled record is."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import orjson

from headrace.vitals import Reading, Standing, TopicPartition

EVERY_S = 1.0
STATISTICS_MS = 5_000
SPARE_MS = 2_000


class _Stamped(Protocol):
    """A record, as far as it is measured."""

    @property
    def offset(self) -> int: ...

    @property
    def timestamp_ms(self) -> int: ...


class Gauges:
    """Of one source, and used by its thread alone; but `readings` is replaced as a whole, and may be read from anywhere.

    How far a partition can be read (its last stable offset) comes with librdkafka's statistics: asking costs a request each.
    """

    def __init__(self) -> None:
        self.readings: Mapping[TopicPartition, Reading] = {}
        self._steady = self._spare = False
        self._reached: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._marks: dict[TopicPartition, deque[tuple[int, int]]] = {}
        self._measured_at = float("-inf")

    def statistics(self, text: str) -> None:
        """librdkafka's `stats_cb`."""
        told = orjson.loads(text)
        group = told.get("cgrp", {})
        self._spare = group.get("join_state") == "init" and group.get("state") == "up" and group.get("stateage", 0) >= SPARE_MS
        self._steady = group.get("join_state") == "steady"
        for topic, found in told.get("topics", {}).items():
            for number, partition in found.get("partitions", {}).items():
                stable, high = partition.get("ls_offset", -1), partition.get("hi_offset", -1)
                self._ends[topic, int(number)] = stable if stable >= 0 else high

    def joined(self, protocol: str) -> bool:
        """Whether the group has given this member its share, be it nothing: no callback says so under KIP-848, nor does its state move on."""
        return self._steady or (protocol == "consumer" and self._spare)

    def came_to(self, tp: TopicPartition, last: Any) -> None:
        """The last message that was read of it, or the news of its end."""
        self._reached[tp] = last.offset() + (last.error() is None)

    def took(self, tp: TopicPartition, records: Sequence[_Stamped]) -> None:
        """A batch was given to the lane. One mark a batch: its first offset, and its oldest timestamp."""
        if oldest := min((r.timestamp_ms for r in records if r.timestamp_ms > 0), default=0):
            self._marks.setdefault(tp, deque()).append((records[0].offset, oldest))

    def forget(self, tp: TopicPartition) -> None:
        """It is no longer ours."""
        for known in (self._marks, self._ends, self._reached):
            known.pop(tp, None)

    def due(self, now: float) -> bool:
        """Whether it is time to measure again."""
        return now - self._measured_at >= EVERY_S

    def measure(
        self,
        now: float,
        stashes: Mapping[TopicPartition, deque[Any]],
        standings: Mapping[TopicPartition, Standing],
        full: set[TopicPartition],
    ) -> None:
        """Publish. `stashes` are messages read and not dispatched, `full` the partitions whose window has no room for the first of them."""
        self._measured_at = now
        self.readings = {
            tp: Reading(
                self._reached.get(tp, -1), self._ends.get(tp, -1), len(stash), tp in full, self._oldest_ms(tp, stash, standings.get(tp))
            )
            for tp, stash in stashes.items()
        }

    def _oldest_ms(self, tp: TopicPartition, stash: deque[Any], standing: Standing | None) -> int | None:
        marks = self._marks.get(tp)
        if marks and standing is not None:
            while marks and (standing.in_flight == 0 or (len(marks) > 1 and marks[1][0] <= standing.frontier)):
                marks.popleft()
        stamps = [oldest for _, oldest in marks or ()] or [stamp for message in islice(stash, 1) if (stamp := message.timestamp()[1]) > 0]
        return min(stamps, default=None)

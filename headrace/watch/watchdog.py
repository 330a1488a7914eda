"""Watches what this process works on, from a thread of its own: samples, has them judged, tells what changed, keeps the last report.

A blocked event loop cannot tell that it is blocked; so nothing here waits for it.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.instrument import Tell
from headrace.instrument.crash import words_of
from headrace.vitals import LaneSample, PartitionSample, ThreadSample, TopicPartition
from headrace.watch.judgement import PAST_DEADLINE, Bounds, Judged, full_window, hung, judge, near_retention
from headrace.worker_thread import WorkerThread

EVERY_S = 1.0
STOOD_STILL_S = 5.0
FULL_AGAIN_S = 60.0
RETENTION_AGAIN_S = 3600.0
FRAMES = 4


@dataclass(frozen=True, slots=True)
class Report:
    """The last look: when it was, which threads hang, every lane, every partition."""

    at: float
    hung: tuple[tuple[ThreadSample, float], ...] = ()
    lanes: Mapping[str, LaneSample] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, Judged] = field(default_factory=dict)

    @property
    def stalled(self) -> list[Judged]:
        """The partitions that do not move, for no reason that is known."""
        return [judged for judged in self.partitions.values() if judged.stalled]


class Watchdog:
    """`lanes` and `threads` are asked once a second; `retention_ms` is by topic, `now_ms` the fleet's epoch milliseconds."""

    def __init__(
        self,
        lanes: Sequence[Callable[[], LaneSample]],
        threads: Callable[[], Iterable[ThreadSample]],
        bounds: Mapping[str, Bounds],
        *,
        retention_ms: Mapping[str, int],
        now_ms: Callable[[], int],
        tell: Tell,
    ) -> None:
        self._lanes = lanes
        self._threads = threads
        self._bounds = bounds
        self._retention_ms = retention_ms
        self._now_ms = now_ms
        self._tell = tell
        self._told_at: dict[tuple[object, ...], float] = {}
        self._looked_at = self._awake_since = time.monotonic()
        self.report = Report(self._looked_at)
        self.thread = WorkerThread("watchdog", self._work, last_words=self._failed)

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End; whether it did in time."""
        return self.thread.stop(timeout_s)

    def _work(self) -> None:
        while not self.thread.stopping.wait(EVERY_S):
            self.look(self.thread.turned())

    def _failed(self, error: BaseException) -> None:
        self._tell("watchdog_failed", {"error": words_of(error)})

    def look(self, now: float) -> None:
        """Once."""
        if now - self._looked_at > STOOD_STILL_S:  # so did all that is watched; nobody is to blame for it
            self._awake_since = now
        self._looked_at = now
        lanes = {lane.lane: lane for lane in (sample() for sample in self._lanes)}
        partitions = {judged.key: judged for lane in lanes.values() for judged in self._judged(lane, now)}
        threads = tuple(hung(self._threads(), now, self._awake_since))
        for key, judged in partitions.items():
            self._tell_partition(self.report.partitions.get(key), judged, now)
        self._tell_threads(threads)
        self._warn(lanes.values(), now)
        self.report = Report(now, tuple(threads), lanes, partitions)

    def _judged(self, lane: LaneSample, now: float) -> Iterable[Judged]:
        for partition in lane.partitions:
            before = self.report.partitions.get((partition.topic, partition.partition))
            yield judge(before, lane, partition, now, self._bounds[lane.lane], awake_since=self._awake_since)

    def _tell_partition(self, before: Judged | None, judged: Judged, now: float) -> None:
        """What changed since the last look."""
        named = {"lane": judged.lane, "topic": judged.sample.topic, "partition": judged.sample.partition}
        was_stalled = before is not None and before.stalled is not None
        if judged.stalled and not was_stalled:
            held = {"held_by": judged.stalled.by, "remedy": judged.stalled.remedy}
            self._tell("stalled", {**named, "for_s": round(now - judged.quiet_since), "lag": judged.sample.lag, **held})
        elif was_stalled and not judged.stalled:
            self._tell("progressing", named)
        if judged.full and self._again(("window_full", *judged.key), FULL_AGAIN_S, now):
            self._tell("window_full", {**named, **full_window(judged, now)})
        if judged.late is not None and (before is None or before.late != judged.late):
            self._tell("call_overdue", {**named, "offset": judged.late, "remedy": PAST_DEADLINE})

    def _tell_threads(self, threads: Sequence[tuple[ThreadSample, float]]) -> None:
        before, names = {thread.name for thread, _ in self.report.hung}, {thread.name for thread, _ in threads}
        for thread, still_s in threads:
            if thread.name not in before:
                self._tell("thread_hung", {"thread": thread.name, "still_s": round(still_s), "at": standing_at(thread.ident)})
        for name in before - names:
            self._tell("thread_turns", {"thread": name})

    def _warn(self, lanes: Iterable[LaneSample], now: float) -> None:
        """Of records that retention will delete before they are settled, once an hour a topic."""
        by_topic: dict[str, list[PartitionSample]] = {}
        for partition in (partition for lane in lanes for partition in lane.partitions):
            by_topic.setdefault(partition.topic, []).append(partition)
        for topic, samples in by_topic.items():
            kept_ms = self._retention_ms.get(topic, -1)
            found = near_retention(samples, kept_ms, self._now_ms())
            if found is not None and self._again(("retention_near", topic), RETENTION_AGAIN_S, now):
                fields = {"partition": found[0].partition, "oldest_s": found[1] // 1000, "retention_s": kept_ms // 1000}
                self._tell("retention_near", {"topic": topic, **fields, "remedy": "raise retention.ms, or add workers and partitions"})

    def _again(self, what: tuple[object, ...], every_s: float, now: float) -> bool:
        """Whether this is to be told now: not within `every_s` of the last time."""
        if now - self._told_at.get(what, float("-inf")) < every_s:
            return False
        self._told_at[what] = now
        return True


def standing_at(ident: int | None) -> str:
    """Where a thread of this process stands, innermost first: files, lines and functions, nothing of their values."""
    frame = sys._current_frames().get(ident or 0)  # noqa: SLF001  documented, and the only way to see another thread's stack
    if frame is None:
        return "unknown"
    stack = traceback.extract_stack(frame)[-FRAMES:]
    return " < ".join(f"{Path(found.filename).name}:{found.lineno} {found.name}" for found in reversed(stack))

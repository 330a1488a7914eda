"""Whether a partition makes progress: a pure function over samples. Sampling, telling and answering probes are others' work.

A partition is quiet while it settles nothing, has something to do, and waits for no reason that is known. Quiet for
longer than a call and a settle can take, it is stalled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from headrace.vitals import LaneSample, PartitionSample, ThreadSample, TopicPartition

MARGIN_S = 10.0
NEAR = 0.8
PAST_DEADLINE = "the handler goes on past its deadline: mend it, or restart the worker"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a call may take, and how long a partition may be quiet: a call, and what settling and a takeover add to it."""

    call_s: float
    quiet_s: float


class Paused(NamedTuple):
    """Why a partition waits by intention, and since when."""

    why: str
    since: float


class Held(NamedTuple):
    """What holds a partition, and what helps."""

    by: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Judged:
    """One partition, judged. `quiet_since` and `moved_at` (its frontier's last move) are moments, `stalled` and `late` say what is wrong.

    `late` is an offset whose call has gone on past its deadline; the partition may settle others all the same.
    """

    lane: str
    sample: PartitionSample
    quiet_since: float
    moved_at: float
    paused: Paused | None = None
    stalled: Held | None = None
    late: int | None = None

    @property
    def key(self) -> TopicPartition:
        """Its topic and number."""
        return self.sample.topic, self.sample.partition

    @property
    def full(self) -> bool:
        """Whether its window has no room for what was read."""
        return self.sample.reading.no_room


def judge(
    before: Judged | None, lane: LaneSample, partition: PartitionSample, now: float, bounds: Bounds, *, awake_since: float = 0.0
) -> Judged:
    """How a partition stands now, given how it stood at the last sample. Time before `awake_since` is nobody's fault."""
    why = explanation(lane, partition, now, bounds)
    standing = partition.standing
    if why is not None or (partition.heard and not partition.lag):
        quiet_since = now
    else:
        quiet_since = max(before.quiet_since if before else now, standing.since, standing.settled_at, awake_since)
    moved = before is None or before.sample.standing.frontier != standing.frontier
    call = partition.call
    return Judged(
        lane.lane,
        partition,
        quiet_since,
        moved_at=now if before is None or moved else before.moved_at,
        paused=None if why is None else before.paused if before and before.paused and before.paused.why == why else Paused(why, now),
        stalled=holder(lane, partition, now, bounds) if now - quiet_since > bounds.quiet_s else None,
        late=call.offset if call is not None and now - call.began_at > bounds.call_s + MARGIN_S else None,
    )


def explanation(lane: LaneSample, partition: PartitionSample, now: float, bounds: Bounds) -> str | None:
    """Why a partition may wait, if there is a reason. That others are served first counts only while they are settled."""
    if lane.pauses:
        return "; ".join(lane.pauses)
    if partition.call is not None or now - lane.settled_at > bounds.quiet_s:
        return None
    if lane.work.busy >= lane.work.concurrency and partition.standing.in_flight:
        return "every caller is busy"
    if lane.full and partition.heard and not partition.standing.in_flight:
        return "the lane is full"
    idle = not lane.work.busy and not lane.unsettled and partition.reading.reached >= partition.reading.end
    if idle and lane.work.late_ms is not None and lane.work.late_ms < 0:
        return "nothing is due yet"
    return None


def holder(lane: LaneSample, partition: PartitionSample, now: float, bounds: Bounds) -> Held:
    """What a partition that does not move waits for, the likeliest first."""
    standing, reading, call = partition.standing, partition.reading, partition.call
    behind = "; the window is full behind it" if reading.no_room else ""
    if call is not None and now - call.began_at > bounds.call_s:
        return Held(f"offset {call.offset} has been called for {now - call.began_at:.0f} s{behind}", PAST_DEADLINE)
    if lane.unsettled:
        return Held(f"{lane.unsettled} outcomes wait for a settle", "see what the broker refuses: settle_blocked, settle_again")
    if not partition.heard:
        return Held("nothing was heard of it since it was assigned", "see the broker's log; a restart joins the group anew")
    if standing.in_flight:
        return Held(
            f"{standing.in_flight} records from offset {standing.frontier} on wait to be called{behind}", "a restart takes them up again"
        )
    unread = max(0, reading.end - reading.reached)
    return Held(f"{unread + reading.held} records from offset {reading.reached} on are not read", "a restart joins the group anew")


def full_window(judged: Judged, now: float) -> dict[str, object]:
    """What there is to say of a window that is full: its head, and since when that has been the head."""
    standing = judged.sample.standing
    return {
        "head": standing.frontier,
        "head_age_s": round(now - judged.moved_at),
        "behind": standing.span,
        "remedy": "more partitions, or a shorter time-out",
    }


def hung(threads: Iterable[ThreadSample], now: float, awake_since: float) -> list[tuple[ThreadSample, float]]:
    """Threads that did not come round within their patience, and for how many seconds. Time in which the process stood still does not count."""
    still = ((thread, now - max(thread.turned_at, awake_since)) for thread in threads)
    return [(thread, still_s) for thread, still_s in still if still_s > thread.patience_s]


def near_retention(samples: Iterable[PartitionSample], retention_ms: int, now_ms: int) -> tuple[PartitionSample, int] | None:
    """The partition with the oldest unsettled record, and its age in ms, where that is 80 % of what the topic keeps. -1 keeps for ever."""
    ages = [(now_ms - sample.reading.oldest_ms, sample) for sample in samples if sample.reading.oldest_ms is not None]
    if retention_ms <= 0 or not ages:
        return None
    age_ms, sample = max(ages, key=lambda pair: pair[0])
    return (sample, age_ms) if age_ms >= NEAR * retention_ms else None

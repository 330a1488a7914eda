"""How the wheels stand, in the terms of any lane: a wheel lags where its head's time has come."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Message

from headrace.vitals import AtWork, LaneSample, PartitionSample, Reading, Standing
from headrace.wheels.lines import Line


def sampled(owned: Mapping[int, Line[Message]], topic: str, now_ms: int, *, settled_at: float, away: bool) -> LaneSample:
    """A sample of these lines. All of them are settled by one loop, the finest first, so `settled_at` is of all."""
    ready = [line.head_ready_ms for line in owned.values() if line.head_ready_ms is not None]
    return LaneSample(
        lane="wheels",
        partitions=tuple(_partition(line, topic, number, now_ms, settled_at) for number, line in owned.items()),
        pauses=("no broker can be reached",) if away else (),
        work=AtWork(waiting=sum(map(len, owned.values())), late_ms=now_ms - min(ready) if ready else None),
        settled_at=settled_at,
    )


def _partition(line: Line[Message], topic: str, number: int, now_ms: int, settled_at: float) -> PartitionSample:
    head = line.head
    overdue = int(head is not None and head.ready_ms <= now_ms)
    standing = Standing(line.frontier(), overdue, 0, len(line), 0, line.since, settled_at)
    oldest_ms = head.item.timestamp()[1] if head is not None else None
    return PartitionSample(topic, number, standing, Reading(line.position, line.position, len(line), oldest_ms=oldest_ms))

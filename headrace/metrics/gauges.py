"""What stands in a worker at the moment of a scrape: its lanes, partitions, targets and dead letters, as rows. Pure over samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.dlq.open import Standing
from headrace.metrics import definitions as d
from headrace.metrics.labels import CLASSES, HEALTH, OUT, PAUSES, PAUSING, LabelSets, class_of, one_of
from headrace.metrics.metric import Row
from headrace.pauses import Pause
from headrace.redact import OTHER
from headrace.vitals import EndpointSample, LaneSample
from headrace.watch.judgement import Judged
from headrace.watch.watchdog import Report

_EVERY_PAUSE = (*PAUSES.values(), OTHER)
WHEELS = "wheels"


@dataclass(frozen=True, slots=True)
class Moment:
    """When it is: by the monotonic clock, and in the fleet's epoch ms."""

    now: float
    now_ms: int


@dataclass(frozen=True, slots=True)
class Process:
    """What is of the process, and not of a lane: what is shut, the endpoints, and Redis, where it is used."""

    beat_at: float
    pauses: tuple[Pause, ...] = ()
    endpoints: tuple[EndpointSample, ...] = ()
    calls: bool = True
    admission_open: bool = True
    epoch: int = 0


def of_report(report: Report, moment: Moment) -> Iterator[Row]:
    """Every lane and every partition this process owns."""
    for name, lane in report.lanes.items():
        yield from _wheels(lane) if name == WHEELS else _lane(lane, moment)
    for judged in report.partitions.values():
        yield from _partition(judged, moment)
    yield Row(d.HUNG, (), len(report.hung))
    yield Row(d.LOOK_AGE, (), max(0.0, moment.now - report.at))


def _lane(lane: LaneSample, moment: Moment) -> Iterator[Row]:
    name, work = (lane.lane,), lane.work
    reasons = {one_of(PAUSES, pause) for pause in lane.pauses}
    yield Row(d.RECEIVED, name, lane.received)
    yield Row(d.RECEIVED_BYTES, name, lane.received_bytes)
    yield Row(d.IN_FLIGHT, name, work.busy)
    yield Row(d.SLOTS, name, work.concurrency)
    yield Row(d.WAITING, name, work.waiting)
    yield Row(d.UNSETTLED, name, lane.unsettled)
    yield Row(d.FULL, name, lane.full)
    yield Row(d.JOINED, name, lane.joined)
    yield Row(d.SETTLED_AGO, name, max(0.0, moment.now - lane.settled_at))
    yield from (Row(d.PAUSED, (lane.lane, reason), reason in reasons) for reason in _EVERY_PAUSE)


def _wheels(lane: LaneSample) -> Iterator[Row]:
    yield Row(d.WHEELS_HELD, (), lane.work.waiting)
    yield Row(d.WHEELS_LATE, (), max(0, lane.work.late_ms or 0) / 1000)


def _partition(judged: Judged, moment: Moment) -> Iterator[Row]:
    sample = judged.sample
    labels = judged.lane, sample.topic, str(sample.partition)
    oldest_ms, call = sample.reading.oldest_ms, sample.call
    yield Row(d.LAG, labels, sample.lag)
    yield Row(d.FRONTIER, labels, max(0, sample.standing.frontier))
    yield Row(d.FRONTIER_AGE, labels, max(0.0, moment.now - judged.moved_at))
    yield Row(d.PARTITION_IN_FLIGHT, labels, sample.standing.in_flight)
    yield Row(d.OLDEST, labels, 0.0 if oldest_ms is None else max(0, moment.now_ms - oldest_ms) / 1000)
    yield Row(d.OLDEST_CALL, labels, 0.0 if call is None else max(0.0, moment.now - call.began_at))
    yield Row(d.WINDOW, labels, sample.standing.span)
    yield Row(d.STALLED, labels, judged.stalled is not None)


def of_process(process: Process, sets: LabelSets, moment: Moment, retention_ms: Mapping[str, int]) -> Iterator[Row]:
    """Pauses by provider, Redis, the event loop, and how long topics keep what they hold."""
    yield Row(d.LOOP_AGE, (), max(0.0, moment.now - process.beat_at))
    for topic, kept_ms in retention_ms.items():
        yield Row(d.RETENTION, (sets.topic(topic),), kept_ms / 1000 if kept_ms >= 0 else -1.0)
    if not process.calls:
        return
    yield Row(d.ADMISSION, (), process.admission_open)
    yield Row(d.EPOCH, (), process.epoch)
    for endpoint in process.endpoints:
        yield from _endpoint(endpoint)
    yield from _pauses(process.pauses, sets, moment.now_ms)


def _endpoint(one: EndpointSample) -> Iterator[Row]:
    named = one.provider, one.address
    why = one.out if one.out is None or one.out in OUT else OTHER
    yield Row(d.ENDPOINT_CALLS, named, one.in_flight)
    yield from (Row(d.ENDPOINT_OUT, (*named, reason), reason == why) for reason in (*OUT, OTHER))
    yield from (Row(d.ENDPOINT_HEALTH, (*named, state), HEALTH[one.healthy] == state) for state in HEALTH.values())


def _pauses(pauses: Iterable[Pause], sets: LabelSets, now_ms: int) -> Iterator[Row]:
    ends: dict[tuple[str, str], list[int]] = {(name, why): [] for name in sets.providers for why in PAUSING}
    for pause in pauses:
        if pause.until_ms > now_ms:
            ends.setdefault((sets.provider(pause.scope.provider), class_of(pause.error_class)), []).append(pause.until_ms)
    for labels, until in ends.items():
        yield Row(d.PROVIDER_PAUSED, labels, len(until))
        yield Row(d.PROVIDER_REOPENS, labels, max((ms - now_ms for ms in until), default=0) / 1000)


def of_letters(standing: Standing, moment: Moment) -> Iterable[Row]:
    """Open dead letters, once they are known: what is counted half way would alarm at each start."""
    yield Row(d.FOLLOWED, (), standing.progress)
    if not standing.caught_up:
        return
    for error_class in (*CLASSES, OTHER):
        yield Row(d.OPEN, (error_class,), standing.open.get(error_class, 0))
    oldest_ms = standing.oldest_ms
    yield Row(d.OLDEST_OPEN, (), 0.0 if oldest_ms is None else max(0, moment.now_ms - oldest_ms) / 1000)
    yield Row(d.UNTRACKED, (), standing.untracked)

"""What a worker answers to those who ask how it does: alive, ready, and the whole picture. Pure over the watchdog's last report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.vitals import LaneSample
from headrace.watch.health import Answer, Routes
from headrace.watch.judgement import Judged
from headrace.watch.watchdog import Report

STALE_S = 20.0


class Probes:
    """`report` gives the watchdog's last one, `more` what `/status` shows beside the lanes. Set `stopping` when the process begins to stop."""

    def __init__(
        self,
        report: Callable[[], Report],
        lanes: tuple[str, ...],
        now: Callable[[], float] = time.monotonic,
        *,
        more: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._report = report
        self._lanes = lanes
        self._now = now
        self._more = more
        self.stopping = False

    def routes(self) -> Routes:
        """By path."""
        return {"/livez": self.live, "/readyz": self.ready, "/status": self.status}

    def live(self) -> Answer:
        """Not, if a partition is stalled or a thread hangs: a restart is the remedy then. A pause whose reason is known is no stall."""
        report, now = self._report(), self._now()
        stalled = [
            {
                "lane": judged.lane, "topic": judged.sample.topic, "partition": judged.sample.partition,
                "for_s": round(now - judged.quiet_since), "held_by": judged.stalled.by, "remedy": judged.stalled.remedy,
            }
            for judged in report.stalled if judged.stalled
        ]  # fmt: skip
        hung = [{"thread": thread.name, "still_s": round(still_s)} for thread, still_s in report.hung]
        if now - report.at > STALE_S:
            hung.append({"thread": "watchdog", "still_s": round(now - report.at)})
        well = not stalled and not hung
        return Answer(well, {"status": "ok"} if well else {"status": "stalled", "stalled": stalled, "hung": hung})

    def ready(self) -> Answer:
        """Once every lane has joined its group and reads, and Redis is there or done without; not while stopping."""
        lanes = self._report().lanes
        waiting: list[str] = ["the worker stops"] if self.stopping else []
        for name in self._lanes:
            lane = lanes.get(name)
            if lane is None or not lane.joined:
                waiting.append(f"{name} has not joined its group yet")
            elif lane.store_away:
                waiting.append(f"{name}: {'; '.join(lane.pauses)}")
        return Answer(not waiting, {"status": "waiting", "for": waiting} if waiting else {"status": "ok"})

    def status(self) -> Answer:
        """Every lane and partition, every endpoint and what is shut: numbers and reasons, no record's content, id or key."""
        report, now = self._report(), self._now()
        by_lane: dict[str, list[Judged]] = {}
        for judged in report.partitions.values():
            by_lane.setdefault(judged.lane, []).append(judged)
        lanes = {name: _lane(lane, by_lane.get(name, []), now) for name, lane in report.lanes.items()}
        return Answer(well=True, body={"looked_s_ago": round(now - report.at, 1), "lanes": lanes, **self._more()})


def _lane(lane: LaneSample, partitions: list[Judged], now: float) -> dict[str, Any]:
    work = lane.work
    return {
        "joined": lane.joined, "pauses": lane.pauses, "full": lane.full, "busy": work.busy, "callers": work.concurrency,
        "waiting": work.waiting, "late_ms": work.late_ms, "unsettled": lane.unsettled, "settled_s_ago": round(now - lane.settled_at, 1),
        "partitions": [_partition(judged, now) for judged in sorted(partitions, key=lambda one: one.key)],
    }  # fmt: skip


def _partition(judged: Judged, now: float) -> dict[str, Any]:
    sample = judged.sample
    standing, reading, call = sample.standing, sample.reading, sample.call
    return {
        "topic": sample.topic, "partition": sample.partition, "lag": sample.lag,
        "frontier": standing.frontier, "frontier_age_s": round(now - judged.moved_at, 1),
        "settled_s_ago": round(now - standing.settled_at, 1) if standing.settled_at else None,
        "in_flight": standing.in_flight, "window": standing.span, "window_full": judged.full, "map_chars": standing.map_chars,
        "read_ahead": reading.held, "read_to": reading.reached, "log_end": reading.end,
        "oldest_call": {"offset": call.offset, "for_s": round(now - call.began_at, 1)} if call else None,
        "paused": {"why": judged.paused.why, "for_s": round(now - judged.paused.since, 1)} if judged.paused else None,
        "stalled": judged.stalled.by if judged.stalled else None,
    }  # fmt: skip

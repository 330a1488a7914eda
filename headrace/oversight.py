"""Who watches a process: the watchdog, the probes, the metrics and their server, put together over its lanes, opened and closed."""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from headrace.attempt import longest_s
from headrace.config import Settings
from headrace.dlq.follower import Follower
from headrace.lane import RunningLane, Shared, calls_models
from headrace.llm.standing import standing_of
from headrace.metrics.gauges import Moment, Process, of_letters, of_process, of_report
from headrace.metrics.metric import Row
from headrace.metrics.page import MetricsPage
from headrace.vitals import EndpointSample, LettersSample, ThreadSample
from headrace.watch.health import Health
from headrace.watch.judgement import Bounds
from headrace.watch.probes import Probes
from headrace.watch.targets import targets
from headrace.watch.watchdog import Watchdog
from headrace.wheels import Wheels

BEAT_S = 0.5
FOLLOWER_S = 5.0
LOOP_PATIENCE_S = 20.0
TAKEOVER_S = 30.0  # the claim of a killed worker lapses (15 s), its session ends (10 s), and all of that a little late


class Oversight:
    """Built inside the running loop, which is watched too."""

    def __init__(self, shared: Shared, lanes: Sequence[RunningLane], wheels: Wheels | None) -> None:
        self._tell = shared.tell
        self._lanes = lanes
        self._wheels = wheels
        self._loop_thread = threading.get_ident()
        self._beat_at = time.monotonic()
        self._watchdog = Watchdog(
            [lane.monitor.sample for lane in lanes] + ([wheels.sample] if wheels is not None else []),
            self._threads,
            bounds_of(shared.settings, [*(lane.name for lane in lanes), "wheels"]),
            retention_ms=shared.retention_ms,
            now_ms=shared.clock.now_ms,
            tell=shared.tell,
        )
        names = tuple(lane.name for lane in lanes)
        self._shared = shared
        self._probes = Probes(lambda: self._watchdog.report, names, more=self._targets)
        self._calls = calls_models(names)
        self._process = Process(self._beat_at, calls=self._calls)
        self._follower = Follower(shared.settings, tell=shared.tell) if "dlq" in names else None
        shared.store.timed = shared.meters.redis_took
        page = MetricsPage([shared.meters.rows, self._rows], names, shared.tell)
        http = shared.settings.http
        self._health = Health(http.host, http.metrics_port, self._probes.routes(), {"/metrics": page.page})

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch and answer, until left. Raises ConfigError where the port is taken."""
        self._tell("health_listening", {"address": self._health.open()})
        self._watchdog.start()
        if self._follower is not None:
            self._follower.start()
        beat = asyncio.create_task(self._beat(), name="beat")
        try:
            yield
        finally:
            beat.cancel()
            self._watchdog.thread.stopping.set()
            if self._follower is not None:
                await asyncio.to_thread(self._follower.stop, FOLLOWER_S)
            await asyncio.to_thread(self._health.close)

    def stopping(self) -> None:
        """The process begins to stop: no longer ready."""
        self._probes.stopping = True

    def endpoints(self) -> tuple[EndpointSample, ...]:
        """As of the last beat; none where nothing is called."""
        return self._process.endpoints

    def letters(self) -> LettersSample | None:
        """The open dead letters, if this process follows them and has read what there is."""
        standing = self._follower.standing if self._follower is not None else None
        if standing is None or not standing.caught_up:
            return None
        return LettersSample(standing.open, standing.oldest_ms, standing.untracked)

    async def _beat(self) -> None:
        """The loop's own turns; each of them publishes what the lanes are at."""
        while True:
            self._beat_at = time.monotonic()
            for lane in self._lanes:
                lane.monitor.work = lane.pipeline.at_work()
            self._process = self._now()
            await asyncio.sleep(BEAT_S)

    def _now(self) -> Process:
        """What belongs to the loop, and must not be read from another thread."""
        shared = self._shared
        if not self._calls:
            return Process(self._beat_at, calls=False)
        pauses = shared.pauses.snapshot(shared.clock.now_ms())
        return Process(
            self._beat_at,
            tuple(pauses),
            standing_of(shared.llm.endpoints()),
            admission_open=shared.recovery.is_open,
            epoch=zlib.crc32(shared.store.epochs.value),
        )

    def _targets(self) -> dict[str, Any]:
        """From the probes' thread: what the loop published last."""
        process, shared = self._process, self._shared
        return targets(process.endpoints, process.pauses, shared.clock.now_ms(), shared.meters.sets.model) if process.calls else {}

    def _rows(self) -> Iterable[Row]:
        """At a scrape, on the scraper's thread."""
        shared = self._shared
        moment = Moment(time.monotonic(), shared.clock.now_ms())
        yield from of_report(self._watchdog.report, moment)
        yield from of_process(self._process, shared.meters.sets, moment, shared.retention_ms)
        if self._follower is not None:
            yield from of_letters(self._follower.standing, moment)

    def _threads(self) -> Iterator[ThreadSample]:
        yield ThreadSample("event loop", self._beat_at, LOOP_PATIENCE_S, self._loop_thread)
        for lane in self._lanes:
            yield from lane.monitor.threads()
        if self._wheels is not None and self._wheels.thread.alive and not self._wheels.sample().pauses:
            thread = self._wheels.thread
            yield ThreadSample(thread.name, thread.turned_at, thread.patience_s, thread.ident)


def bounds_of(settings: Settings, lanes: Sequence[str]) -> dict[str, Bounds]:
    """By lane. Only main and retry call; a settle may have to wait for two transactions to time out, its own and a killed worker's."""
    margin_s = TAKEOVER_S + 2 * settings.kafka.transaction_timeout_ms / 1000
    call_s = {lane: longest_s(settings) if lane in ("main", "retry") else 0.0 for lane in lanes}
    return {lane: Bounds(call_s[lane], call_s[lane] + margin_s) for lane in lanes}

"""A lane as a running thing: its source, its pipeline and its settler put together, started, watched and stopped."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.assignment import Assignment
from headrace.attempt import Attempts
from headrace.client_config import producer_config
from headrace.clock import Clock
from headrace.committed import Committed
from headrace.config import Settings
from headrace.context import Contexts
from headrace.decode import decode_any, decode_main, decode_retry
from headrace.dlq.alerts import Alerts
from headrace.ending import together
from headrace.envelope import Job, Record
from headrace.errors import HeadraceError
from headrace.flow import Flow
from headrace.guard import Guard
from headrace.guard.waiters import claim_of
from headrace.handler import Handler
from headrace.instrument import Tell
from headrace.instrument.crash import words_of
from headrace.llm import Llm
from headrace.metrics.meters import Meters
from headrace.monitor import Monitor
from headrace.outcome import Noted, Outcome, Settlement
from headrace.outputs import Outputs
from headrace.pauses import Pauses
from headrace.pipeline import SHUT, Admitting, Lane, Pipeline
from headrace.recovery import Recovery
from headrace.schedule import NEAR_MS, wheels_for
from headrace.settle import Settler
from headrace.shared_controls import SharedControls
from headrace.source import Source
from headrace.store import Store
from headrace.transaction import Transactions
from headrace.unguarded import Everybody
from headrace.waiting import ByDueTime, InOrder, Waiting

LANES = ("main", "retry", "dlq")
HELD = "paused by an operator"
SMALL_QUEUE_KBYTES, LARGE_QUEUE_KBYTES = 2_048, 16_384


@dataclass(frozen=True, slots=True)
class Shared:
    """What the lanes of one process share. By topic: `limits` are `max.message.bytes`, `partitions` counts, `retention_ms` how long it keeps."""

    settings: Settings
    incarnation: str
    store: Store
    recovery: Recovery
    clock: Clock
    llm: Llm
    pauses: Pauses
    controls: SharedControls
    handler: Handler
    alerts: Alerts
    limits: Mapping[str, int]
    partitions: Mapping[str, int]
    tell: Tell
    meters: Meters
    retention_ms: Mapping[str, int] = field(default_factory=dict)


def calls_models(lanes: Sequence[str]) -> bool:
    """Whether any of these lanes handles requests: the dead-letter lane needs neither a model nor Redis."""
    return tuple(lanes) != ("dlq",)


def group_of(settings: Settings, lane: str) -> str:
    """The consumer group of a lane."""
    return f"{settings.namespace}.{lane}"


def groups(settings: Settings) -> dict[str, str]:
    """Which group reads which topic: any process can look up where another lane stands."""
    names = settings.topics
    lanes = {names.main: "main", names.retry: "retry", names.later: "wheels", names.dlq: "dlq"}
    return {topic: group_of(settings, lane) for topic, lane in lanes.items()}


class RunningLane:
    """One lane of this process. Built inside the running loop."""

    def __init__(self, name: str, shared: Shared) -> None:
        settings = shared.settings
        limits = settings.limits
        self.name = name
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = threading.Event()
        self.assignment = Assignment()
        self._committed = Committed(settings, groups(settings))
        flow = Flow(max(limits.read_ahead_records, 2 * limits.concurrency), limits.read_ahead_bytes)
        transactional_id = f"{settings.namespace}.{name}.{settings.instance or shared.incarnation}"
        outputs = Outputs(settings.topics, shared.limits, settings.duplicate_notices)
        self.source: Source
        self._settler = Settler(
            name,
            limits,
            assignment=self.assignment,
            transactions=Transactions(
                producer_config(settings, f"{name}.settle", transactional_id, batch_bytes=min(shared.limits.values())),
                tell=shared.tell,
                frozen_within=lambda seconds: self.source.frozen_within(seconds),  # noqa: PLW0108  the source is made after the settler
                stopping=self._stopping,
                named=settings.instance is not None,
            ),
            outputs=outputs,
            committed=self._committed,
            on_settled=self._settled,
            on_gone=self._gone,
            tell=shared.tell,
            stopping=self._stopping,
        )
        self.source = Source(
            settings,
            group_of(settings, name),
            [getattr(settings.topics, name)],
            assignment=self.assignment,
            flow=flow,
            committed=self._committed,
            downstream=self,
            tell=shared.tell,
            queue_kbytes=LARGE_QUEUE_KBYTES if name == "main" else SMALL_QUEUE_KBYTES,
        )
        self.monitor = Monitor(
            name,
            assignment=self.assignment,
            flow=flow,
            source=self.source,
            settler=self._settler,
            shut=lambda: None if self._may_call() else self._why_shut(),
            closed=lambda: name != "dlq" and not shared.recovery.is_open,
            waits=settings.redis.on_outage == "pause",
        )
        self._admission = self._admitting()
        self.pipeline = Pipeline(
            Lane(name, self._schedule(), _DECODERS[name], self._admission, self._conclude(), self._may_call, self._why_shut),
            assignment=self.assignment,
            flow=flow,
            settler=self._settler,
            clock=shared.clock,
            concurrency=limits.concurrency,
            unsettled=limits.unsettled_outcomes,
            tell=shared.tell,
        )

    def deliver(self, records: list[Record]) -> None:
        """From the source."""
        self.pipeline.deliver(records)

    def ownership_changed(self) -> None:
        """From the source."""
        self.pipeline.ownership_changed()

    def drain(self, timeout_s: float) -> bool:
        """From the source."""
        return self._settler.drain(timeout_s)

    async def run(self) -> None:
        """Start, and work until cancelled. Raises what ended a thread of it."""
        self._settler.start()
        self.source.start()
        await together({f"{self.name}-pipeline": self.pipeline.run(), f"{self.name}-watch": self._watch()})

    async def stop(self, grace_s: float) -> bool:
        """Begin nothing more, wait for calls in flight, settle, leave the group. Whether nothing was cut off."""
        self.source.hold("stop")
        return await self.pipeline.close(grace_s)

    async def leave(self, within_s: float) -> None:
        """After the calls have ended or were cancelled: settle what is finished, leave the group, write the marks. Within one bound for all."""
        until = time.monotonic() + within_s
        for step in (self._settler.drain, self.source.stop, self._settler.stop):
            await asyncio.to_thread(step, max(1.0, until - time.monotonic()))
        await asyncio.sleep(0)  # the settle thread's last reports are queued on this loop
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(1.0, until - time.monotonic()))
        try:
            async with asyncio.timeout(max(1.0, until - time.monotonic())):
                await self._admission.close()
        except TimeoutError:
            self._shared.tell("marks_left", {"lane": self.name, "error": "Redis did not answer in time"})

    async def _watch(self) -> None:
        while True:
            for thread in (self.source, self._settler):
                if thread.failure is not None:
                    raise thread.failure
            await asyncio.sleep(0.1)

    def _settled(self, settlements: Sequence[Settlement]) -> None:
        self.pipeline.left(settlements)
        self._on_loop(self._admission.settled(settlements))

    def _gone(self, settlements: Sequence[Settlement]) -> None:
        self.pipeline.left(settlements)
        self._on_loop(self._admission.hand_over(settlements))

    def _on_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """From the settle thread."""
        self._loop.call_soon_threadsafe(self._keep, work)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._shared.tell("mark_failed", {"lane": self.name, "error": words_of(error)})

    def _admitting(self) -> Admitting:
        if self.name == "dlq":
            return Everybody()
        shared = self._shared
        guard = Guard(
            shared.store,
            self._committed,
            shared.clock,
            incarnation=shared.incarnation,
            current=self.assignment.is_current,
            gate=shared.recovery,
            on_outage=shared.settings.redis.on_outage,
            strict_replays=self.name == "main",
            tell=self.monitor.hearing(shared.tell),
        )
        shared.recovery.join(guard)
        return guard

    def _schedule(self) -> Waiting:
        if self.name != "retry":
            return InOrder()
        limits = self._shared.settings.limits
        return ByDueTime(NEAR_MS, int(limits.longest_delay_s * 1000), wheels_for(limits.longest_delay_s))

    def _conclude(self) -> Any:
        if self.name == "dlq":
            return self._note
        shared = self._shared
        claim = partial(claim_of, incarnation=shared.incarnation, strict=self.name == "main")
        return Attempts(
            shared.settings, shared.handler, shared.llm, shared.pauses, shared.clock, tell=shared.tell, rng=random.Random(),  # noqa: S311  jitter
            contexts=Contexts(shared.clock, shared.store.steps, claim), controls=shared.controls,
        )  # fmt: skip

    async def _note(self, job: Job) -> Outcome:
        self._shared.alerts.note_record(job.record)
        return Noted()

    def _may_call(self) -> bool:
        return self.name == "dlq" or not self._shared.pauses.all_shut(self._shared.clock.now_ms())

    def _why_shut(self) -> str:
        return HELD if self._shared.pauses.all_held(self._shared.clock.now_ms()) else SHUT


_DECODERS = {"main": decode_main, "retry": decode_retry, "dlq": decode_any}


def failed_by_itself(error: BaseException) -> HeadraceError | None:
    """The reason in an exception group of a lane's tasks, if it is one of ours."""
    if isinstance(error, BaseExceptionGroup):
        found = [reason for inner in error.exceptions if (reason := failed_by_itself(inner)) is not None]
        return found[0] if found else None
    return error if isinstance(error, HeadraceError) else None

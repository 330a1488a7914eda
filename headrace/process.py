"""A worker process: checks everything it relies on, builds its lanes, runs them until a signal, and stops them gracefully.

Exit codes are `errors.Exit`. The first SIGTERM or SIGINT begins the grace; a second one skips what is left of it.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from collections.abc import Sequence
from typing import Any

from headrace import topics
from headrace.clock import Clock
from headrace.config import Settings
from headrace.dlq.alerts import build_alerts
from headrace.errors import ConfigError, Exit, HeadraceError, StoreUnavailable
from headrace.handler import load_handler
from headrace.instrument import Hook, Tell, tell_all
from headrace.instrument.log import LogHook
from headrace.instrument.progress import Progress
from headrace.lane import LANES, RunningLane, Shared, failed_by_itself
from headrace.llm import Llm
from headrace.loading import load, missing_keys
from headrace.pauses import Pauses
from headrace.shared_pauses import SharedPauses
from headrace.store import Store
from headrace.wheels import Wheels

WHEELS_STOP_S = 10.0


def run(settings: Settings, lanes: Sequence[str], *, hooks: Sequence[Hook] = ()) -> Exit:
    """Run these lanes (`all` is every one) until stopped; the process's exit code. Raises ConfigError before anything starts."""
    names = LANES if "all" in lanes else tuple(dict.fromkeys(lanes))
    tell = tell_all(LogHook(), Progress(), *hooks)
    if sys.platform == "win32":
        return asyncio.run(serve(settings, names, tell=tell))
    import uvloop

    return uvloop.run(serve(settings, names, tell=tell))


async def serve(settings: Settings, lanes: Sequence[str], *, tell: Tell) -> Exit:
    """As `run`, inside a running loop. Installs the signal handlers, and takes them away again."""
    stop = asyncio.Event()
    hurry = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        return await _Process(settings, lanes, tell).run(stop, hurry)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


class _Process:
    def __init__(self, settings: Settings, lanes: Sequence[str], tell: Tell) -> None:
        self._settings = settings
        self._names = lanes
        self._tell = tell
        self._incarnation = secrets.token_hex(6)
        self._clock = Clock()
        self._store = Store(settings.redis.url.get_secret_value(), settings.namespace)

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> Exit:
        """config → checks → build → run → stop."""
        handler = load_handler(self._settings.handler)
        if self._names != ("dlq",) and (keyless := missing_keys(self._settings)):
            raise ConfigError(keyless)
        facts = await asyncio.to_thread(topics.check, self._settings)
        if facts.faults:
            raise ConfigError(list(facts.faults))
        for note in facts.notes:
            self._tell("topics_differ", {"note": note})
        if self._names != ("dlq",):
            await self._open_store()
        llm = Llm(self._settings.providers, pool=self._settings.limits.concurrency * 2, now_ms=self._clock.now_ms)
        alerts = build_alerts(self._settings, tell=self._tell)
        alerts.start()
        shared = Shared(
            settings=self._settings,
            incarnation=self._incarnation,
            store=self._store,
            clock=self._clock,
            llm=llm,
            pauses=Pauses(self._settings.pause, llm.targets, tell=self._tell),
            handler=handler,
            alerts=alerts,
            limits=facts.max_message_bytes,
            tell=self._tell,
        )
        try:
            return await self._lanes(shared, stop, hurry)
        finally:
            await alerts.close(5.0)
            await llm.close()
            await self._store.close()

    async def _open_store(self) -> None:
        try:
            await self._store.open()
            await self._store.check_server()
            self._clock.sync(await self._store.time_ms())
        except StoreUnavailable as error:
            if self._settings.redis.on_outage == "pause":
                raise ConfigError([f"redis.url: {error}; or start without dedup: redis.on_outage: continue"]) from error
            self._tell("store_unavailable", {"error": str(error), "on_outage": "continue"})

    async def _lanes(self, shared: Shared, stop: asyncio.Event, hurry: asyncio.Event) -> Exit:
        lanes = [RunningLane(name, shared) for name in self._names]
        wheels = Wheels(self._settings, self._clock, tell=self._tell) if "retry" in self._names else None
        if wheels is not None:
            wheels.start()
        tasks = [asyncio.create_task(lane.run(), name=lane.name) for lane in lanes]
        sharing = SharedPauses(shared.pauses, self._store, self._clock, tell=self._tell)
        if self._names != ("dlq",):
            tasks.append(asyncio.create_task(sharing.run(), name="pauses"))
        self._tell("started", {"lanes": list(self._names), "incarnation": self._incarnation, "instance": self._settings.instance})
        waiter = asyncio.create_task(stop.wait())
        watcher = asyncio.create_task(_died(wheels))
        everything: set[asyncio.Task[Any]] = {waiter, watcher, *tasks}
        done, _ = await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        watcher.cancel()
        whole = await self._stop(lanes, tasks, wheels, hurry, 0.0 if done - {waiter} else self._settings.grace_s)
        reason = _reason(done - {waiter})
        self._tell("stopped", {"lanes": list(self._names), "cut_off": not whole, "reason": str(reason) if reason else "asked to"})
        if reason is not None:
            raise reason
        return Exit.DONE

    async def _stop(
        self, lanes: list[RunningLane], tasks: list[asyncio.Task[None]], wheels: Wheels | None, hurry: asyncio.Event, grace_s: float
    ) -> bool:
        in_flight = sum(lane.pipeline.in_flight for lane in lanes)
        again = "; a second signal cuts them off" if in_flight else ""
        self._tell("stopping", {"calls_in_flight": in_flight, "note": f"waiting for them up to {grace_s:g} s{again}"})
        closing = [asyncio.create_task(lane.stop(grace_s)) for lane in lanes]
        hurried = asyncio.create_task(hurry.wait())
        while not hurried.done() and not all(task.done() for task in closing):
            await asyncio.wait({hurried, *(task for task in closing if not task.done())}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        whole = all(task.done() and task.result() for task in closing)
        for unfinished in closing:
            unfinished.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(lane.leave() for lane in lanes))
        if wheels is not None:
            await asyncio.to_thread(wheels.stop, WHEELS_STOP_S)
        return whole


async def _died(wheels: Wheels | None) -> None:
    """Returns never, or raises what ended the wheels' thread."""
    while True:
        if wheels is not None and wheels.failure is not None:
            raise wheels.failure
        await asyncio.sleep(0.2)


def _reason(ended: set[asyncio.Task[Any]]) -> BaseException | None:
    for task in ended:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            return failed_by_itself(error) or error
    return None


def main(lane: str) -> int:
    """The body of `python -m workers.<lane>`: config → build → run → signals."""
    from headrace.instrument.log import configure

    configure()
    try:
        return run(load(), [lane])
    except HeadraceError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code

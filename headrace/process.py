"""A worker process: runs its lanes until a signal, and stops them gracefully. What it relies on is checked and opened by `build`.

Exit codes are `errors.Exit`. The first SIGTERM or SIGINT begins the grace; a second one skips what is left of it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.build import built
from headrace.committed import Committed
from headrace.config import Settings
from headrace.ending import LastResort, cancelled
from headrace.errors import Exit, HeadraceError
from headrace.instrument import Hook, Tell, tell_all
from headrace.instrument.crash import words_of
from headrace.instrument.log import LogHook
from headrace.instrument.progress import Progress
from headrace.instrument.requests import Requests
from headrace.lane import LANES, RunningLane, Shared, calls_models, failed_by_itself, groups
from headrace.llm.keys import Keys
from headrace.loading import load_all
from headrace.oversight import Oversight
from headrace.parked import Parked, counter
from headrace.roster import Heartbeat
from headrace.shared_pauses import SharedPauses
from headrace.wheels import Wheels

LEAVE_S = 15.0  # after the calls have ended: for the last settle, the group and the marks, together

THREADS = 32


def run(settings: Settings, lanes: Sequence[str], *, hooks: Sequence[Hook] = ()) -> Exit:
    """Run these lanes (`all` is every one) until stopped; the process's exit code. Raises ConfigError before anything starts."""
    names = LANES if "all" in lanes else tuple(dict.fromkeys(lanes))
    tell = tell_all(LogHook(), Progress(), Requests(), *hooks)
    last = LastResort()
    try:
        if sys.platform == "win32":
            return asyncio.run(_served(settings, names, tell, last))
        import uvloop

        return uvloop.run(_served(settings, names, tell, last))
    finally:
        last.disarm()


async def _served(settings: Settings, lanes: Sequence[str], tell: Tell, last: LastResort) -> Exit:
    # a step that waits for Kafka in one of them must not keep another from beginning, and there are few on a small machine
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "blocking"))
    code = Exit.ERROR
    try:
        code = await serve(settings, lanes, tell=tell)
    except HeadraceError as error:
        code = error.exit_code
        raise
    finally:
        last.arm(code)
    return code


async def serve(settings: Settings, lanes: Sequence[str], *, tell: Tell) -> Exit:
    """As `run`, inside a running loop. Installs the signal handlers, and takes them away again."""
    stop = asyncio.Event()
    hurry = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    keys: list[Keys] = []

    def on_hangup() -> None:
        for known in keys:
            known.reread()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    # keys in files are read again; everything else needs a restart. From the start on: unheard, it would end a worker that waits for Redis
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    try:
        async with built(settings, lanes, tell=tell) as shared:
            keys.append(shared.llm.keys)
            return await _Process(shared, lanes).run(stop, hurry)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


class _Process:
    def __init__(self, shared: Shared, lanes: Sequence[str]) -> None:
        self._shared = shared
        self._settings = shared.settings
        self._names = lanes
        self._tell = shared.tell

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> Exit:
        """run → signals → stop."""
        lanes = [RunningLane(name, self._shared) for name in self._names]
        wheels = Wheels(self._settings, self._shared.clock, tell=self._tell) if "retry" in self._names else None
        oversight = Oversight(self._shared, lanes, wheels)
        async with oversight.watching():
            return await self._run(lanes, wheels, oversight, stop, hurry)

    async def _run(
        self, lanes: list[RunningLane], wheels: Wheels | None, oversight: Oversight, stop: asyncio.Event, hurry: asyncio.Event
    ) -> Exit:
        if wheels is not None:
            wheels.start()
        tasks = [asyncio.create_task(lane.run(), name=lane.name) for lane in lanes]
        tasks += [asyncio.create_task(work) for work in self._beside(lanes, oversight)]
        self._tell(
            "started",
            {"lanes": list(self._names), "incarnation": self._shared.incarnation, "instance": self._settings.instance},
        )
        recovering = asyncio.create_task(self._shared.recovery.run()) if calls_models(self._names) else None
        waiter = asyncio.create_task(stop.wait())
        watcher = asyncio.create_task(_died(wheels))
        everything: set[asyncio.Task[Any]] = {waiter, watcher, *tasks, *([recovering] if recovering else [])}
        done, _ = await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        watcher.cancel()
        oversight.stopping()
        whole = await self._stop(lanes, tasks, wheels, hurry)
        if recovering is not None:
            recovering.cancel()  # only now: what the lanes leave behind may have to be claimed again first
        reason = _reason(done - {waiter})
        self._tell("stopped", {"lanes": list(self._names), "cut_off": not whole, "reason": words_of(reason) if reason else "asked to"})
        if reason is not None:
            raise reason
        return Exit.DONE

    def _beside(self, lanes: Sequence[RunningLane], oversight: Oversight) -> Iterator[Coroutine[Any, Any, None]]:
        """What runs once a process, beside its lanes."""
        shared = self._shared
        if calls_models(self._names):
            yield SharedPauses(shared.pauses, shared.store, shared.clock, tell=self._tell).run()
            yield shared.controls.run()
            if shared.llm.watches:
                yield shared.llm.run()
        samples = [lane.monitor.sample for lane in lanes]
        yield Heartbeat(
            shared.store, shared.clock, lambda: [sample() for sample in samples],
            incarnation=shared.incarnation, instance=self._settings.instance, tell=self._tell,
            endpoints=oversight.endpoints, letters=oversight.letters,
        ).run()  # fmt: skip
        for lane in lanes:
            if lane.name == "main":
                count = counter(Committed(self._settings, groups(self._settings)), self._settings.topics, shared.partitions)
                yield Parked(lane.source, count, self._settings.limits.parked_records, tell=self._tell).run()

    async def _stop(self, lanes: list[RunningLane], tasks: list[asyncio.Task[None]], wheels: Wheels | None, hurry: asyncio.Event) -> bool:
        """Whether no call was cut off. A lane that failed is not waited for: its calls were cancelled. The others have their grace."""
        grace_s = self._settings.grace_s
        failed = {task.get_name() for task in tasks if task.done()}
        in_flight = sum(lane.pipeline.in_flight for lane in lanes)
        again = "; a second signal cuts them off" if in_flight else ""
        self._tell("stopping", {"calls_in_flight": in_flight, "note": f"waiting for them up to {grace_s:g} s{again}"})
        closing = [asyncio.create_task(lane.stop(0.0 if lane.name in failed else grace_s)) for lane in lanes]
        hurried = asyncio.create_task(hurry.wait())
        while not hurried.done() and not all(task.done() for task in closing):
            await asyncio.wait({hurried, *(task for task in closing if not task.done())}, return_when=asyncio.FIRST_COMPLETED)
        whole = all(task.done() and task.result() for task in closing)
        await cancelled([hurried, *closing, *tasks])
        here = asyncio.current_task()
        if clinging := [task.get_name() for task in asyncio.all_tasks() if task.cancelling() and task is not here]:
            self._tell("cancel_ignored", {"tasks": clinging, "note": "left behind; the process ends without them"})
        leaving = [lane.leave(LEAVE_S) for lane in lanes]
        await asyncio.gather(*leaving, *([asyncio.to_thread(wheels.stop, LEAVE_S)] if wheels is not None else []))
        return whole


def configured() -> Settings:
    """The configuration, with a word on which provider is called, where that was said, and what was not used."""
    loaded, say = load_all(), LogHook()
    for provider in loaded.providers:
        say("provider", provider.fields())
    for note in loaded.notes:
        say("not_used", {"note": note})
    return loaded.settings


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

    try:
        configure()
        return run(configured(), [lane])
    except HeadraceError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code

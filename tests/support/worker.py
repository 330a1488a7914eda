"""A worker as a process of its own, to be killed, frozen and asked to stop; its events are read as they are told.

Run as a module it is that process: settings from stdin, events as JSON lines on stdout. `dies_at` names a call of the store
before which it kills itself; `ahead_s` is by how much its wall clock is wrong, and SIGUSR1 and SIGUSR2 step it by an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

import orjson
from pydantic import SecretStr

from headrace.config import Settings
from headrace.errors import HeadraceError

STEP_S = 3_600.0
_started: deque[Worker] = deque(maxlen=4)


def accounts() -> str:
    """What the workers started last have to say: for whoever waits in vain for what they should have done."""
    return "; ".join(worker.account for worker in _started) or "no worker was started"


class Worker:
    """`with Worker(settings, "main") as worker:`. Killed at the end if it still lives."""

    def __init__(
        self, settings: Settings, *lanes: str, dies_at: str | None = None, ahead_s: float = 0.0, closed_s: float | None = None
    ) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self._changed = threading.Condition()
        self._ended = False
        command = [sys.executable, "-m", "tests.support.worker", *(lanes or ("main", "retry"))]
        command += ["--dies-at", dies_at] if dies_at else []
        command += ["--ahead-s", str(ahead_s)] if ahead_s else []
        command += ["--closed-s", str(closed_s)] if closed_s is not None else []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdin is not None, "a pipe"
        self.process.stdin.write(orjson.dumps(settings.model_dump(mode="python"), default=_plain, option=orjson.OPT_NON_STR_KEYS))
        self.process.stdin.close()
        self._said = b""
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._listen, self._overhear)]
        for thread in self._threads:
            thread.start()
        _started.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)

    def kill(self) -> None:
        """`kill -9`."""
        self.signal(signal.SIGKILL)
        self.process.wait(10)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.process.pid, number)

    async def exit_code(self, timeout_s: float = 40) -> int:
        """Its exit code, once it has ended. One that does not end in time is made to say where its threads are."""
        try:
            return await asyncio.to_thread(self.process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGABRT)
            await asyncio.to_thread(self.process.wait, 10)
            await asyncio.to_thread(self._threads[1].join, 10)
            raise AssertionError(f"it did not end within {timeout_s:g} s: {self.account}\n{self.said}") from None

    @property
    def account(self) -> str:
        """Whether it runs, its last events, and the end of what it wrote to stderr."""
        code = self.process.poll()
        state = "runs" if code is None else f"ended with {code}"
        return f"worker {self.process.pid} {state}, told {[name for name, _ in self.told[-12:]]}, said {self.said[-1500:]!r}"

    def named(self, name: str) -> list[dict[str, Any]]:
        """The fields of every event of a name."""
        return [fields for told, fields in list(self.told) if told == name]

    async def event(self, name: str, *, count: int = 1, timeout_s: float = 20) -> dict[str, Any]:
        """The `count`-th event of a name."""
        await self.until(lambda: len(self.named(name)) >= count, f"{count} × {name}", timeout_s)
        return self.named(name)[count - 1]

    async def until(self, holds: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
        """Until `holds()`, asked again after every event."""
        await asyncio.to_thread(self._wait, holds, what, timeout_s)

    def _wait(self, holds: Callable[[], bool], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not holds():
                left = deadline - time.monotonic()
                assert left > 0, f"no {what} in {timeout_s} s; {self.account}"
                assert not self._ended, f"no {what}: {self.account}"
                self._changed.wait(left)

    @property
    def said(self) -> str:
        """What it wrote to stderr."""
        return self._said.decode("utf-8", "replace")

    def _listen(self) -> None:
        assert self.process.stdout is not None, "a pipe"
        for line in self.process.stdout:
            name, fields = orjson.loads(line)
            with self._changed:
                self.told.append((name, fields))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _overhear(self) -> None:
        assert self.process.stderr is not None, "a pipe"
        for line in self.process.stderr:
            self._said += line


def _plain(value: object) -> object:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _tell(name: str, fields: Mapping[str, Any]) -> None:
    if name != "settled":
        os.write(1, orjson.dumps([name, dict(fields)], default=str, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS))


class _WallClock:
    """This process's wall clock, as Python code reads it. What librdkafka stamps on records is not stepped."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s
        real_s, real_ns = time.time, time.time_ns
        time.time = lambda: real_s() + self._ahead_s
        time.time_ns = lambda: real_ns() + int(self._ahead_s * 1e9)
        for number, step_s in ((signal.SIGUSR1, STEP_S), (signal.SIGUSR2, -STEP_S)):
            signal.signal(number, lambda *_, step_s=step_s: self._step(step_s))

    def _step(self, step_s: float) -> None:
        self._ahead_s += step_s
        _tell("wall_clock_stepped", {"by_s": step_s, "reads": time.time()})


def _die_at(name: str) -> None:
    """From now on a call of the store by that name ends the process as `kill -9` would, before anything is sent."""
    from headrace.store import Store

    async def die(_self: Store, *_: object) -> None:
        os.write(1, orjson.dumps(["dying", {"at": name}], option=orjson.OPT_APPEND_NEWLINE))
        os.kill(os.getpid(), signal.SIGKILL)

    assert callable(getattr(Store, name)), f"the store has no {name}"
    setattr(Store, name, die)


def _closes_for(closed_s: float) -> None:
    """How long admission stays closed after a loss in Redis, at least: shorter than in earnest, where all workers are well."""
    from headrace import build
    from headrace.recovery import Recovery

    build.Recovery = partial(Recovery, wait_ms=int(closed_s * 1000))  # type: ignore[misc, assignment]


def main() -> int:
    """The process."""
    options = argparse.ArgumentParser()
    options.add_argument("lanes", nargs="+")
    options.add_argument("--dies-at")
    options.add_argument("--ahead-s", type=float, default=0.0)
    options.add_argument("--closed-s", type=float)
    given = options.parse_args()
    _WallClock(given.ahead_s)
    faulthandler.enable()  # SIGABRT asks where the threads are
    from headrace.instrument.log import configure
    from headrace.process import run

    configure(level="error")  # to stderr; stdout is for the events
    settings = Settings.model_validate_json(sys.stdin.buffer.read())
    if given.closed_s is not None:
        _closes_for(given.closed_s)
    if given.dies_at:
        _die_at(given.dies_at)
    try:
        return run(settings, given.lanes, hooks=[_tell])
    except HeadraceError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

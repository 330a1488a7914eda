"""A worker as a process of its own, to be killed, frozen and asked to stop; its events are read as they are told.

Run as a module it is that process: settings from stdin, events as JSON lines on stdout.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import orjson
from pydantic import SecretStr

from headrace.config import Settings
from headrace.errors import HeadraceError


class Worker:
    """`with Worker(settings, "main") as worker:`. Killed at the end if it still lives."""

    def __init__(self, settings: Settings, *lanes: str) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self._changed = threading.Condition()
        command = [sys.executable, "-m", "tests.support.worker", *(lanes or ("main", "retry"))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdin is not None, "a pipe"
        self.process.stdin.write(orjson.dumps(settings.model_dump(mode="python"), default=_plain, option=orjson.OPT_NON_STR_KEYS))
        self.process.stdin.close()
        self._said = b""
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._listen, self._overhear)]
        for thread in self._threads:
            thread.start()

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
        """Its exit code, once it has ended."""
        return await asyncio.to_thread(self.process.wait, timeout_s)

    def named(self, name: str) -> list[dict[str, Any]]:
        """The fields of every event of a name."""
        return [fields for told, fields in list(self.told) if told == name]

    async def event(self, name: str, *, count: int = 1, timeout_s: float = 20) -> dict[str, Any]:
        """The `count`-th event of a name."""
        await asyncio.to_thread(self._wait, lambda: len(self.named(name)) >= count, f"{count} × {name}", timeout_s)
        return self.named(name)[count - 1]

    def _wait(self, holds: Callable[[], bool], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not holds():
                left = deadline - time.monotonic()
                assert left > 0, f"no {what} in {timeout_s} s; {[n for n, _ in self.told[-12:]]}; {self.said[-2000:]}"
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

    def _overhear(self) -> None:
        assert self.process.stderr is not None, "a pipe"
        for line in self.process.stderr:
            self._said += line


def _plain(value: object) -> object:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _tell(name: str, fields: Mapping[str, Any]) -> None:
    if name != "settled":
        os.write(1, orjson.dumps([name, dict(fields)], default=str, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS))


def main() -> int:
    """The process."""
    from headrace.instrument.log import configure
    from headrace.process import run

    configure(level="error")  # to stderr; stdout is for the events
    settings = Settings.model_validate_json(sys.stdin.buffer.read())
    try:
        return run(settings, sys.argv[1:], hooks=[_tell])
    except HeadraceError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

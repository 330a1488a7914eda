"""A server process on a leash: started, waited for by a line of its log, stopped. Leaves its command to others."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from headrace.errors import StackError
from headrace.local import leash

_LEASH_PATIENCE_S = 10.0  # beyond the child's own grace
_POLL_S = 0.05
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Startup:
    """How a start tells of its progress, and hears that it is not wanted any more."""

    say: Callable[[str], None] = lambda _text: None
    cancelled: threading.Event = field(default_factory=threading.Event)

    def step(self, text: str) -> None:
        """Tell what happens now. Raises StackError if the start was cancelled meanwhile."""
        self.check()
        self.say(text)

    def check(self) -> None:
        """Raise StackError if the start was cancelled."""
        if self.cancelled.is_set():
            raise StackError("the start was cancelled")


@dataclass(frozen=True, slots=True)
class Leashed:
    """A running server: `pid` is the server's own, `log` what it printed."""

    name: str
    pid: int
    log: Path
    _leash: subprocess.Popen[str]
    _grace_s: float

    def exit_code(self) -> int | None:
        """Return the exit code of the server, or None while it runs."""
        return self._leash.poll()

    def stop(self) -> None:
        """End the server and wait for it: SIGTERM, then SIGKILL after its grace. Does nothing if it has ended."""
        if self._leash.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended, or was stopped before
                # Closing alone says nothing while a process that we forked holds the other copy.
                self._leash.stdin.write("stop\n")
                self._leash.stdin.close()
        try:
            self._leash.wait(self._grace_s + _LEASH_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._leash.kill()  # the kernel then kills the server, where it can
            self._leash.wait()
        if self._leash.stdout is not None:
            self._leash.stdout.close()

    def wait_for(self, pattern: str, log: Path, startup: Startup, timeout_s: float) -> re.Match[str]:
        """Wait until a line of `log` matches, and return the match.

        Raises StackError, quoting the last lines, if the server ends first, the time is over or the start is cancelled.
        """
        sought = re.compile(pattern)
        return self.wait_until(lambda: sought.search(_text(log)), log, startup, timeout_s)

    def wait_until(self, ready: Callable[[], _T | None], log: Path, startup: Startup, timeout_s: float) -> _T:
        """Wait until `ready` gives something, and return it. Raises StackError as `wait_for` does."""
        deadline = time.monotonic() + timeout_s
        while True:
            startup.check()
            ended = self.exit_code()  # before the log is read, so that its last words count
            if (found := ready()) is not None:
                return found
            if ended is not None:
                raise StackError(f"{self.name} ended at start with code {ended}:\n{tail(self.log, log)}")
            if time.monotonic() > deadline:
                raise StackError(f"{self.name} was not ready in {timeout_s:g} s:\n{tail(self.log, log)}")
            time.sleep(_POLL_S)


def start(
    name: str,
    command: Sequence[str],
    log: Path,
    *,
    grace_s: float = 5.0,
    cleanup: str | None = None,
    keep: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
) -> Leashed:
    """Start `command` on a leash, its output going to `log`, in this process's environment or in `env`.

    The descriptors in `keep` stay open until the server has ended, even if this process dies first: that is how a
    folder stays locked. `cleanup` is a command run at the end in any case. Raises StackError if it cannot be started.
    """
    log.write_bytes(b"")
    options = ["--log", str(log), "--grace", str(grace_s), *(["--cleanup", cleanup] if cleanup else [])]
    process = subprocess.Popen(
        [sys.executable, "-I", leash.__file__, *options, "--", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a terminal's Ctrl-C reaches us, and we stop the server in order
        pass_fds=tuple(keep),
        env=None if env is None else dict(env),
    )
    said = process.stdout.readline() if process.stdout else ""
    word, _, rest = said.strip().partition(" ")
    if word != "pid":
        process.wait()
        raise StackError(f"{name} could not be started: {rest or 'its supervisor ended'}")
    return Leashed(name, int(rest), log, process, grace_s)


def tail(*logs: Path, lines: int = 15) -> str:
    """Return the last lines of the logs, indented, for an error message."""
    found = [line for log in dict.fromkeys(logs) for line in _text(log).splitlines()[-lines:]]
    return "\n".join(f"    {line[:300]}" for line in found) or "    (it printed nothing)"


def _text(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:  # the server has not opened it yet
        return ""

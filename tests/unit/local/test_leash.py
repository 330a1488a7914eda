"""The leash, with children that are cheap: Python scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from headrace.errors import StackError
from headrace.local import process
from headrace.local.process import Startup

_SLEEPER = [sys.executable, "-u", "-c", "import time; print('ready', flush=True); time.sleep(600)"]
_STUBBORN = [
    sys.executable,
    "-u",
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
]
# A process that starts a server, tells its pid, and then does `{then}`.
_PARENT = """
import os, sys, time
from pathlib import Path
from headrace.local import process
server = process.start("server", {command!r}, Path({log!r}), grace_s=1)
server.wait_for("ready", Path({log!r}), process.Startup(), 20)
{then}
print(server.pid, server._leash.pid, flush=True)
time.sleep(600)
"""

Parent = Callable[..., tuple[subprocess.Popen[str], psutil.Process, psutil.Process]]


@pytest.fixture
def parent(tmp_path: Path) -> Parent:
    """Give a starter of a parent process; it returns the parent, the server and the leash."""

    def start(command: list[str] = _SLEEPER, then: str = "") -> tuple[subprocess.Popen[str], psutil.Process, psutil.Process]:
        code = textwrap.dedent(_PARENT).format(command=command, log=str(tmp_path / "log"), then=then)
        running = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert running.stdout is not None
        server, leash = (psutil.Process(int(pid)) for pid in running.stdout.readline().split())
        return running, server, leash

    return start


def _kill(running: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    running.send_signal(number)
    running.wait()
    assert running.stdout is not None
    running.stdout.close()


def test_kill_9_of_the_parent_ends_the_server(parent: Parent) -> None:
    """A parent that is killed leaves neither the server nor its leash behind."""
    running, server, leash = parent()
    _kill(running)
    assert psutil.wait_procs([server, leash], timeout=10)[1] == []


def test_a_server_that_ignores_sigterm_is_killed(parent: Parent) -> None:
    """After the grace the server is killed, however it takes the polite signal."""
    running, server, leash = parent(_STUBBORN)
    _kill(running)
    assert psutil.wait_procs([server, leash], timeout=10)[1] == []


def test_a_forked_child_that_holds_the_pipe_does_not_keep_the_server(parent: Parent) -> None:
    """The pipe stays open in a process the parent forked; the leash sees the parent's end all the same."""
    running, server, leash = parent(then="keeper = os.fork()\nif keeper == 0: time.sleep(20); os._exit(0)")
    keeper = [child for child in psutil.Process(running.pid).children() if child.pid != leash.pid]
    assert keeper
    try:
        _kill(running)
        assert psutil.wait_procs([server, leash], timeout=10)[1] == []
    finally:
        for child in keeper:
            child.kill()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux kills a child with its parent")
def test_kill_9_of_the_leash_ends_the_server(parent: Parent) -> None:
    """Where the kernel can tie a child to its parent, even a killed leash leaves no server."""
    running, server, leash = parent()
    try:
        leash.kill()
        assert psutil.wait_procs([server], timeout=10)[1] == []
    finally:
        _kill(running)


def test_a_terminals_ctrl_c_does_not_reach_the_server(parent: Parent) -> None:
    """Server and leash are in other process groups than the parent, so it can stop them in order."""
    running, server, leash = parent()
    try:
        assert len({os.getpgid(pid) for pid in (os.getpid(), server.pid, leash.pid)}) == 3
        assert os.getsid(server.pid) != os.getsid(running.pid)
    finally:
        _kill(running)


def test_stop_ends_the_server_and_may_be_repeated(tmp_path: Path) -> None:
    """`stop` returns when the server is gone; a second one does nothing."""
    log = tmp_path / "log"
    server = process.start("server", _SLEEPER, log)
    server.wait_for("ready", log, Startup(), 20)
    server.stop()
    server.stop()
    assert not psutil.pid_exists(server.pid)
    assert server.exit_code() == 128 + signal.SIGTERM


def test_the_cleanup_runs_when_the_server_has_ended(tmp_path: Path) -> None:
    """The command given as cleanup is run at the end, as a container's removal needs."""
    server = process.start("server", _SLEEPER, tmp_path / "log", cleanup=f"touch {tmp_path / 'cleaned'}")
    assert not (tmp_path / "cleaned").exists()
    server.stop()
    assert (tmp_path / "cleaned").exists()


def test_a_server_that_ends_at_start_is_quoted(tmp_path: Path) -> None:
    """The error of a failed start has the exit code and the server's last words."""
    log = tmp_path / "log"
    server = process.start("server", [sys.executable, "-c", "import sys; print('no such luck'); sys.exit(3)"], log)
    with pytest.raises(StackError, match=r"(?s)code 3.*no such luck"):
        server.wait_for("ready", log, Startup(), 20)
    server.stop()


def test_a_command_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    """A missing executable is reported by name, and no leash stays."""
    before = set(psutil.Process().children())
    with pytest.raises(StackError, match=r"server could not be started: .*no-such-program"):
        process.start("server", ["/no-such-program"], tmp_path / "log")
    assert set(psutil.Process().children()) <= before


def test_a_cancelled_start_does_not_wait(tmp_path: Path) -> None:
    """Once the start is cancelled, nobody waits for readiness any more."""
    startup = Startup()
    server = process.start("server", _SLEEPER, tmp_path / "log")
    startup.cancelled.set()
    try:
        with pytest.raises(StackError, match="cancelled"):
            server.wait_for("never printed", tmp_path / "log", startup, 20)
    finally:
        server.stop()

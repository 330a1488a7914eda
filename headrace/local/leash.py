"""A supervisor of one child: however its parent dies, the child ends too. Run by path, so it imports only the standard library.

Its stdin is a pipe whose other end the parent holds; a word in it, or its end, is the order to stop. Leaves to `process.py` to start it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_TICK_S = 0.5
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command until it ends or the parent is gone. Prints `pid N` or `error …` first; returns the child's code."""
    options = _parser().parse_args(argv)
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = _orders()
    try:
        child = _spawn(options.command, options.log)
    except OSError as error:
        _report(f"error {error}")
        return 127
    _report(f"pid {child.pid}")
    try:
        _watch(child, parent, orders)
    finally:
        _end(child, options.grace)
        if options.cleanup:
            subprocess.run(shlex.split(options.cleanup), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="leash")
    parser.add_argument("--log", type=Path, required=True, help="the child's stdout and stderr, appended")
    parser.add_argument("--grace", type=float, default=5.0, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("--cleanup", help="a command run once the child has ended")
    parser.add_argument("command", nargs="+")
    return parser


def _orders() -> int:
    """Return a descriptor that becomes readable on SIGTERM or when the child ends: no signal handler does any work."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return read


def _spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    # A group of its own, so that the last signal reaches the child's children too.
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
            preexec_fn=_tie_to_us(),  # noqa: PLW1509 - this process has one thread
        )


def _tie_to_us() -> Callable[[], None] | None:
    """Return a hook by which the kernel kills the child if we are killed ourselves. Linux only; elsewhere None."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    us = os.getpid()

    def hook() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != us:  # we died between fork and prctl
            os._exit(1)

    return hook


def _report(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent is gone already: the watch sees it next
        os.write(1, f"{line}\n".encode())


def _watch(child: subprocess.Popen[bytes], parent: int, orders: int) -> None:
    """Return when the child ended, the pipe was written to or closed, a SIGTERM came, or the parent is another.

    The pipe alone is not enough: a process that our parent forked, without exec, keeps its end open.
    """
    while child.poll() is None and os.getppid() == parent:
        ready, _, _ = select.select([0, orders], [], [], _TICK_S)
        if 0 in ready:
            return
        if orders in ready and {signal.SIGTERM, signal.SIGHUP} & set(os.read(orders, 64)):
            return


def _end(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """Terminate, wait, kill: the child first, then whatever is left of its group."""
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


if __name__ == "__main__":
    sys.exit(main())

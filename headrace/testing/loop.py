"""An event loop whose time jumps to the next timer as soon as nothing is left to do. Real only while something outside is waited for."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import selectors
import time
from collections.abc import Callable
from typing import Any

_OWN_FDS = 1  # the loop's self-pipe


class FrozenTime:
    """Seconds that pass only when somebody waits for them; loops hand it on to their successors."""

    def __init__(self) -> None:
        self.s = 0.0


class JumpingLoop(asyncio.SelectorEventLoop):
    """`time` is what `loop.time()`, and so every sleep and time-out, goes by."""

    def __init__(self, frozen: FrozenTime) -> None:
        self._frozen = frozen
        self._at_work: set[_Work] = set()
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Seconds."""
        return self._frozen.s

    def pass_by(self, seconds: float) -> None:
        """Time goes on."""
        self._frozen.s += seconds

    @property
    def outside(self) -> bool:
        """Whether a thread is at work, or a socket is open: then time is real."""
        selector: Any = self._selector  # type: ignore[attr-defined]  # the base class's own
        return bool(self._at_work) or len(selector.get_map()) > _OWN_FDS

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]  # as wide, without type variables
        """As ever; until it has ended, time is real. A thread goes on after its awaiting was cancelled."""
        work = _Work(self, func, args)
        self._at_work.add(work)
        future = super().run_in_executor(executor, work)
        future.add_done_callback(lambda _: self._unbegun(work))
        return future

    def _unbegun(self, work: _Work) -> None:
        """Its awaiting has ended; where it was cancelled in time, it never begins."""
        if not work.began:
            self._at_work.discard(work)

    def worked(self, work: _Work) -> None:
        """In the thread: it has ended."""
        self._at_work.discard(work)
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile: nobody waits
            self.call_soon_threadsafe(lambda: None)


class _Work:
    """A function for a thread."""

    def __init__(self, loop: JumpingLoop, func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._loop = loop
        self._func = func
        self._args = args
        self.began = False

    def __call__(self) -> Any:
        self.began = True
        try:
            return self._func(*self._args)
        finally:
            self._loop.worked(self)


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting until the next timer is due, moves the time there."""

    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        if not self._loop.outside:
            ready = super().select(0)
            self._loop.pass_by(0.0 if ready else timeout)
            return ready
        began = time.monotonic()
        ready = super().select(timeout)
        self._loop.pass_by(min(timeout, time.monotonic() - began))
        return ready


def abandon(loop: asyncio.AbstractEventLoop) -> None:
    """Leave a loop as `kill -9` leaves a process: nothing of it ever goes on, no `finally`, no `__exit__`.

    A coroutine that is thrown away is told so, and runs them. So those of this loop are never thrown away.
    """
    for task in asyncio.all_tasks(loop):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))
    loop.close()

"""How things end although somebody's code will not: tasks that ignore their cancellation are left behind, and at last the process."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

CANCEL_S = 5.0
LAST_S = 5.0


async def together(work: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Runs all of `work`, by name, until one of it ends, and ends with it: raises what that one raised.

    Unlike a TaskGroup it does not wait for ever for those it cancels: a handler may ignore that.
    """
    tasks = [asyncio.create_task(coroutine, name=name) for name, coroutine in work.items()]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancelled(tasks)
    for task in done:
        task.result()


async def cancelled(tasks: Iterable[asyncio.Task[Any]], within_s: float = CANCEL_S) -> list[str]:
    """Cancels tasks and waits for their end; the names of those that did not end within that time."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=within_s)
    return [task.get_name() for task in running if not task.done()]


class LastResort:
    """Ends the process when what is left in it (a task that ignores everything, a thread in a call that does not return) would keep it."""

    def __init__(self, within_s: float = LAST_S) -> None:
        self._within_s = within_s
        self._timer: threading.Timer | None = None

    def arm(self, code: int) -> None:
        """From now on there is so much time left."""
        self._timer = threading.Timer(self._within_s, _exit, (code,))
        self._timer.daemon = True
        self._timer.start()

    def disarm(self) -> None:
        """It ended by itself."""
        if self._timer is not None:
            self._timer.cancel()


def _exit(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

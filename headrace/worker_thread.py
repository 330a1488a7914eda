"""A thread that works until it is told to stop: started once, watched for its turns, its failure kept. What it does is its owner's."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable


class WorkerThread:
    """`body` runs until `stopping` is set, and calls `turned` each time round, so that a hang is seen from outside.

    `last_words` hears what ended it. They may not raise: nobody would hear that, and `failure` says it all the same.
    `patience_s` is how long one turn may take at most when all is well.
    """

    def __init__(
        self,
        name: str,
        body: Callable[[], None],
        *,
        last_words: Callable[[BaseException], None],
        stopping: threading.Event | None = None,
        patience_s: float = 30.0,
    ) -> None:
        self.name = name
        self.patience_s = patience_s
        self.failure: BaseException | None = None
        self.stopping = stopping or threading.Event()
        self._body = body
        self._last_words = last_words
        self._turned_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin. Once only."""
        self.turned()
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ask it to end, and wait for that; whether it ended in time. One that was never started has ended."""
        self.stopping.set()
        return self.join(timeout_s)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until it ends by itself; whether it did in time."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def ident(self) -> int | None:
        """Python's number of the thread; None before its start."""
        return self._thread.ident

    def turned(self) -> float:
        """From inside: it has come round once more. The moment, of the monotonic clock."""
        self._turned_at = time.monotonic()
        return self._turned_at

    @property
    def turned_at(self) -> float:
        """When it came round last, by the monotonic clock."""
        return self._turned_at

    def _run(self) -> None:
        try:
            self._body()
        except BaseException as error:  # noqa: BLE001  the thread's edge: whoever started it asks `failure`
            self.failure = error
            with contextlib.suppress(Exception):
                self._last_words(error)

"""Ctrl-C during a call of Kafka's client, whose binding may lose the KeyboardInterrupt of a callback and raise a SystemError in its place."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def kept() -> Iterator[None]:
    """A SystemError after SIGINT or SIGTERM was handled is a KeyboardInterrupt again. Beside the main thread, which gets no signals, nothing."""
    heard: list[int] = []
    before: dict[int, _Handler] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                before[number] = handler
                signal.signal(number, _hearing(handler, heard))
    try:
        yield
    except SystemError as error:
        if not heard:
            raise
        raise KeyboardInterrupt from error
    finally:
        for caught, earlier in before.items():
            signal.signal(caught, earlier)


def _hearing(handler: _Handler, heard: list[int]) -> _Handler:
    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        handler(number, frame)

    return hear

"""A line about what a handler raised: where and what kind, few a second. Values are not shown; HEADRACE_DEBUG=1 adds the whole traceback."""

from __future__ import annotations

import os
import sysconfig
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.bucket import Bucket
from headrace.instrument.crash import words_of

PER_S = 20.0
BURST = 50
FRAMES = 6
_NOT_THEIRS = (str(Path(__file__).parents[1]), sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"))


class Failures:
    """Of one lane, and used on its loop alone."""

    def __init__(self, tell: Callable[[str, Mapping[str, Any]], None], *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._now_s = now_s
        self._room = Bucket(burst=BURST, per_s=PER_S)
        self._unsaid = 0

    def __call__(self, request_id: str, attempt: int, error: BaseException) -> None:
        """Say it, if there is room; else it is counted, and the next line has the count."""
        now = self._now_s()
        if self._room.wait_s(now) > 0:
            self._unsaid += 1
            return
        self._room.take(now)
        fields: dict[str, Any] = {"request_id": request_id, "attempt": attempt, "type": type(error).__name__, "error": words_of(error)}
        fields |= _place(error)
        if self._unsaid:
            fields["unsaid"], self._unsaid = self._unsaid, 0
        if os.environ.get("HEADRACE_DEBUG") == "1":
            fields["traceback"] = "".join(traceback.format_exception(error))
        self._tell("handler_failed", fields)


def _place(error: BaseException) -> dict[str, str]:
    """The innermost line that is the user's own, and the last frames, innermost first."""
    frames = [(code.co_filename, line, code.co_name) for code, line in _frames(error)]
    if not frames:
        return {"where": "unknown"}
    theirs = [frame for frame in frames if not frame[0].startswith(_NOT_THEIRS)] or frames
    stack = (f"{Path(file).name}:{line} {name}" for file, line, name in reversed(frames[-FRAMES:]))
    return {"where": f"{Path(theirs[-1][0]).name}:{theirs[-1][1]}", "stack": " < ".join(stack)}


def _frames(error: BaseException) -> list[tuple[Any, int]]:
    return [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]

"""A finite provider: slots, one token rate shared by all who generate, and a bounded queue.

Knows no HTTP and no client: a call whose client has gone goes on consuming, as at a real provider.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field


class CapacitySpec(BaseModel):
    """What the server can do. None is no bound. With `for_s`, what held before comes back after that many seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    slots: Annotated[int, Field(ge=0)] | None = None
    token_rate: Annotated[float, Field(gt=0)] | None = None
    queue: Annotated[int, Field(ge=0)] | None = None
    overflow: Literal["server_is_overloaded", "engine_overloaded", "ollama_busy", "anthropic_overloaded", "rate_limited"] = (
        "server_is_overloaded"
    )
    for_s: Annotated[float, Field(gt=0, le=86_400)] | None = None


class Timers(Protocol):
    """The part of an event loop that is needed here; times in seconds."""

    def time(self) -> float:
        """Monotonic now."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Run `callback` in `delay` seconds."""


@dataclass(slots=True)
class _Job:
    tokens: int
    hold_s: float
    done: Callable[[], None]


class Capacity:
    """Processor sharing: n calls that generate get each an n-th of the rate, whatever the rate becomes meanwhile.

    A virtual clock counts the tokens each has received; a call is done when the clock has gone on by its tokens.
    """

    def __init__(self, timers: Timers, spec: CapacitySpec) -> None:
        self._timers = timers
        self._spec = spec
        self._base = spec
        self._restore: asyncio.TimerHandle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._waiting: deque[_Job] = deque()
        self._generating: list[tuple[float, int, _Job]] = []
        self._received = 0.0
        self._at = timers.time()
        self._count = 0
        self._filling = False
        self.active = 0

    @property
    def spec(self) -> CapacitySpec:
        """What holds now."""
        return self._spec

    @property
    def waiting(self) -> int:
        """Calls without a slot yet."""
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether a call would get a slot or a place in the queue."""
        return self._free or self._spec.queue is None or len(self._waiting) < self._spec.queue

    @property
    def _free(self) -> bool:
        return self._spec.slots is None or self.active < self._spec.slots

    def enter(self, tokens: int, hold_s: float, done: Callable[[], None]) -> bool:
        """Take a slot or a place in the queue; False if both are full.

        `done` is called once: `hold_s` after the slot is had, plus the time the tokens take.
        """
        if not self.has_room:
            return False
        self._waiting.append(_Job(tokens, hold_s, done))
        self._fill()
        return True

    def set(self, spec: CapacitySpec) -> None:
        """Change what the server can do, from now on; calls under way are kept."""
        if self._restore is not None:
            self._restore.cancel()
            self._restore = None
        if spec.for_s is None:
            self._base = spec
        else:
            self._restore = self._timers.call_later(spec.for_s, lambda: self.set(self._base))
        self._advance()
        self._spec = spec
        self._collect()

    def close(self) -> None:
        """Forget all calls and timers."""
        for timer in (self._restore, self._alarm):
            if timer is not None:
                timer.cancel()
        self._waiting.clear()
        self._generating.clear()

    def _begin(self, job: _Job) -> None:
        self.active += 1
        if job.hold_s > 0:
            self._timers.call_later(job.hold_s, lambda: self._generate(job))
        else:
            self._generate(job)

    def _generate(self, job: _Job) -> None:
        if self._spec.token_rate is None or job.tokens <= 0:
            self._finish(job)
            return
        self._advance()
        self._count += 1
        heapq.heappush(self._generating, (self._received + job.tokens, self._count, job))
        self._arm()

    def _advance(self) -> None:
        now = self._timers.time()
        if self._generating and self._spec.token_rate is not None:
            self._received += (now - self._at) * self._spec.token_rate / len(self._generating)
        self._at = now

    def _collect(self) -> None:
        """End what has its tokens, start what now fits, and set the alarm for the next."""
        self._advance()
        while self._generating and (self._spec.token_rate is None or self._generating[0][0] <= self._received + 1e-6):
            self._finish(heapq.heappop(self._generating)[2])
        self._fill()
        self._arm()

    def _fill(self) -> None:
        # A call that costs nothing ends while it begins, and frees its slot: without the flag each would nest deeper.
        if self._filling:
            return
        self._filling = True
        while self._waiting and self._free:
            self._begin(self._waiting.popleft())
        self._filling = False

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        rate = self._spec.token_rate
        if self._generating and rate is not None:
            missing = self._generating[0][0] - self._received
            self._alarm = self._timers.call_later(max(0.0, missing * len(self._generating) / rate), self._collect)

    def _finish(self, job: _Job) -> None:
        self.active -= 1
        self._fill()
        job.done()

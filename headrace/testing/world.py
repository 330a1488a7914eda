"""What outlives a worker of a test, and what every worker of it is made of."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from headrace.clock import Clock
from headrace.config import Settings
from headrace.envelope import Job
from headrace.handler import Handler
from headrace.instrument import Tell
from headrace.llm import Transport
from headrace.outcome import Outcome
from headrace.store.memory import MemoryServer
from headrace.testing.crashes import Crashes
from headrace.testing.loop import FrozenTime
from headrace.testing.topics import MemoryTopics


class FrozenClock(Clock):
    """`start_ms` (epoch) plus what has passed of the frozen time."""

    def __init__(self, start_ms: int, frozen: FrozenTime) -> None:
        super().__init__()
        self._start_ms = start_ms
        self._frozen = frozen

    def now_ms(self, *, monotonic_s: float | None = None) -> int:
        """Epoch milliseconds."""
        return self._start_ms + int(self._frozen.s * 1000 + 1e-6)

    def sync(self, server_ms: float, *, monotonic_s: float | None = None) -> None:
        """Redis' time is this very clock's."""


@dataclass(frozen=True, slots=True)
class World:
    """One for a FakePipeline. `settled` hears of every outcome."""

    settings: Settings
    handler: Handler
    transport: Transport
    topics: MemoryTopics
    server: MemoryServer
    clock: Clock
    crashes: Crashes
    rng: random.Random
    tell: Tell
    settled: Callable[[Job, Outcome], None]

"""A clock in the test's hand."""

from __future__ import annotations

from headrace.clock import Clock


class HandClock(Clock):
    """It moves when `at_ms` is set; `synced_with` is what it was told of the server's time, and does not take."""

    def __init__(self, at_ms: int) -> None:
        super().__init__()
        self.at_ms = at_ms
        self.synced_with: list[float] = []

    def now_ms(self, *, monotonic_s: float | None = None) -> int:
        return self.at_ms

    def sync(self, server_ms: float, *, monotonic_s: float | None = None) -> None:
        self.synced_with.append(server_ms)

"""A token bucket: how soon the next may go. Pure; time is passed in."""

from __future__ import annotations


class Bucket:
    """`burst` at once, then `per_s` a second. Times are seconds of any clock that only grows."""

    def __init__(self, *, burst: int, per_s: float) -> None:
        if burst < 1 or per_s <= 0:
            raise ValueError("a bucket needs a burst of at least 1 and a rate above 0")
        self._burst = float(burst)
        self._per_s = per_s
        self._tokens = float(burst)
        self._at_s: float | None = None

    def wait_s(self, now_s: float) -> float:
        """Seconds until a token is there; 0 when one is."""
        self._fill(now_s)
        return 0.0 if self._tokens >= 1.0 else (1.0 - self._tokens) / self._per_s

    def take(self, now_s: float) -> None:
        """Take a token, also one that is not there yet: the next waits the longer."""
        self._fill(now_s)
        self._tokens -= 1.0

    def _fill(self, now_s: float) -> None:
        if self._at_s is not None:
            self._tokens = min(self._burst, self._tokens + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s

"""One sink's own waiting room: counts what comes, tells the first at once and the rest as digests, and repeats what failed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.bucket import Bucket
from headrace.dlq.alert import Alert, Fingerprint, Sink, SinkBusy, SinkRefused
from headrace.instrument import Tell


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a sink hears something. Seconds, except for the counts.

    A fingerprint is told at once, then at most every `window_s` with the count in between; the bucket bounds all
    fingerprints together, and at most `fingerprints` are told apart.
    """

    burst: int = 10
    per_s: float = 0.2
    window_s: float = 60.0
    fingerprints: int = 200
    send_timeout_s: float = 15.0
    backoff_s: float = 1.0
    backoff_cap_s: float = 60.0


class Outlet:
    """Feeds one sink. `note` never waits and never raises; `run` sends, alone, until `close`. Not thread-safe: one event loop."""

    def __init__(self, sink: Sink, *, tell: Tell, pace: Pace | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._sink = sink
        self._tell = tell
        self._pace = pace or Pace()
        self._now_s = now_s
        self._bucket = Bucket(burst=self._pace.burst, per_s=self._pace.per_s)
        self._waiting: dict[Fingerprint, Alert] = {}
        self._quiet_until_s: dict[Fingerprint, float] = {}
        self._shut_until_s = 0.0
        self._failed_in_a_row = 0
        self._woken = asyncio.Event()
        self._closing = False

    @property
    def unsent(self) -> int:
        """Dead letters noted and not yet told."""
        return sum(alert.count for alert in self._waiting.values())

    def note(self, alert: Alert) -> None:
        """Have this told, now or in a digest."""
        if self._full(alert.fingerprint):
            alert = alert.folded()
        known = self._waiting.get(alert.fingerprint)
        self._waiting[alert.fingerprint] = known.plus(alert) if known else alert
        if known is None:
            self._woken.set()

    async def run(self) -> None:
        """Send what is due. Ends after `close`, when nothing waits any more; a failing sink is tried again for ever."""
        while self._waiting or not self._closing:
            self._woken.clear()
            wait_s, fingerprint = self._next()
            if fingerprint is not None and wait_s <= 0:
                await self._send(self._waiting.pop(fingerprint))
            else:
                await self._sleep(wait_s if fingerprint is not None else None)

    def close(self) -> None:
        """Tell what waits without regard to windows and rate, then end."""
        self._closing = True
        self._woken.set()

    def _full(self, fingerprint: Fingerprint) -> bool:
        if fingerprint in self._waiting or fingerprint in self._quiet_until_s:
            return False
        if len(self._waiting) + len(self._quiet_until_s) >= self._pace.fingerprints:
            now_s = self._now_s()
            self._quiet_until_s = {known: until for known, until in self._quiet_until_s.items() if until > now_s}
        return len(self._waiting) + len(self._quiet_until_s) >= self._pace.fingerprints

    def _next(self) -> tuple[float, Fingerprint | None]:
        """The fingerprint that is due first, and in how many seconds; the longest waiting of several."""
        if not self._waiting:
            return 0.0, None
        now_s = self._now_s()
        shut_s = self._shut_until_s - now_s
        if self._closing:
            return shut_s, next(iter(self._waiting))
        due = min(self._waiting, key=lambda known: max(0.0, self._quiet_until_s.get(known, 0.0) - now_s))
        quiet_s = self._quiet_until_s.get(due, 0.0) - now_s
        return max(shut_s, quiet_s, self._bucket.wait_s(now_s)), due

    async def _sleep(self, wait_s: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._woken.wait()

    async def _send(self, alert: Alert) -> None:
        self._bucket.take(self._now_s())
        try:
            # Not wait_for: on Python 3.11 it lets the sink's error stand for a cancellation that comes in the same moment, and a
            # sink that fails for ever would keep the process from ending.
            async with asyncio.timeout(self._pace.send_timeout_s):
                await self._sink.send(alert)
        except asyncio.CancelledError:
            self._put_back(alert)
            raise
        except SinkRefused as refused:
            self._tell("alert_refused", self._fields(alert, error=str(refused)))
        except Exception as error:  # noqa: BLE001 - sinks are plug-ins: whatever one raises is counted and tried again
            self._put_back(alert)
            self._back_off(alert, error)
            return
        else:
            self._tell("alert_sent", self._fields(alert))
        self._failed_in_a_row = 0
        self._quiet_until_s[alert.fingerprint] = self._now_s() + self._pace.window_s

    def _put_back(self, alert: Alert) -> None:
        newer = self._waiting.get(alert.fingerprint)
        self._waiting[alert.fingerprint] = alert.plus(newer) if newer else alert

    def _back_off(self, alert: Alert, error: Exception) -> None:
        again_s = min(self._pace.backoff_cap_s, self._pace.backoff_s * 2.0 ** min(self._failed_in_a_row, 16))
        if isinstance(error, SinkBusy):
            again_s = max(again_s, error.retry_after_s)
        self._failed_in_a_row += 1
        self._shut_until_s = self._now_s() + again_s
        # An HTTP library's error text may hold the address with its key: the type must do.
        self._tell("alert_failed", self._fields(alert, error=type(error).__name__, again_in_s=again_s))

    def _fields(self, alert: Alert, **more: object) -> dict[str, object]:
        return {"sink": self._sink.name, "error_class": alert.error_class, "count": alert.count, **more}

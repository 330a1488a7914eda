"""Field case 26: whatever dies, and however often, each sink hears a bounded number of alerts, and the counts are right."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog
from structlog.testing import capture_logs

from headrace.dlq.alert import Alert, SinkBusy, SinkRefused
from headrace.dlq.alerts import Alerts
from headrace.dlq.console import Console
from headrace.dlq.outlet import Outlet, Pace

from .letters import API_KEY, CANARY, letter, record

FAST = Pace(burst=1000, per_s=1000.0, window_s=0.0, backoff_s=0.001, backoff_cap_s=0.002)


class Ear:
    """A sink that remembers, and fails as often as it is told to; `heard` is set once `want` dead letters arrived."""

    name = "ear"

    def __init__(self, want: int = 0, faults: list[Exception] | None = None) -> None:
        self.alerts: list[Alert] = []
        self.faults = faults or []
        self.want = want
        self.heard = asyncio.Event()
        self.gate: asyncio.Event | None = None

    @property
    def count(self) -> int:
        return sum(alert.count for alert in self.alerts)

    async def send(self, alert: Alert) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.faults:
            raise self.faults.pop(0)
        self.alerts.append(alert)
        if self.count >= self.want:
            self.heard.set()


class Broken(Ear):
    """A sink that always fails."""

    async def send(self, alert: Alert) -> None:
        raise OSError


class Silent:
    """A console's log that says nothing."""

    def error(self, event: str, **fields: object) -> None:
        """Say nothing."""


class Told:
    """Collects what would be counted."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        self.events.append((name, fields))

    def names(self) -> Counter[str]:
        return Counter(name for name, _ in self.events)


def alerts_of(*sinks: Ear, tell: Told | None = None, pace: Pace = FAST) -> Alerts:
    return Alerts(Console(Silent()), sinks, pipeline="headrace", tell=tell or Told(), pace=pace)


async def test_two_alternating_errors_ten_thousand_times() -> None:
    """Two alternating errors × 10,000 are two alerts at once and two digests at the end; the counts add up to all of them."""
    ear = Ear(want=2)
    alerts = alerts_of(ear, pace=Pace())
    alerts.start()
    pair = [letter(headers={"error_class": name}) for name in ("timeout", "server_error")]
    for n in range(20_000):
        alerts.note(pair[n % 2])
        if n == 1:
            await asyncio.wait_for(ear.heard.wait(), 5)
    await alerts.close(5.0)
    assert len(ear.alerts) == 4
    assert [alert.count for alert in ear.alerts] == [1, 1, 9_999, 9_999]


async def test_many_names_are_folded() -> None:
    """Ten thousand random model names cannot make ten thousand alerts: beyond the bound they are told as `other`."""
    ear = Ear()
    alerts = alerts_of(ear, pace=Pace(fingerprints=50))
    base = letter()
    for n in range(10_000):
        alerts.note(replace(base, model=f"model-{n}"))
    alerts.start()
    await alerts.close(5.0)
    assert len(ear.alerts) <= 51
    assert ear.count == 10_000


async def test_the_bucket_bounds_different_causes() -> None:
    """Different causes share the sink's bucket: only the burst goes at once."""
    ear = Ear(want=3)
    outlet = Outlet(ear, tell=Told(), pace=Pace(burst=3, per_s=0.01), now_s=lambda: 100.0)
    base = letter()
    for n in range(20):
        alert = Alert("p", "timeout", "openai", f"m-{n}", "t", 1, 1, str(base.position), str(base.origin))
        outlet.note(alert)
    task = asyncio.create_task(outlet.run())
    await asyncio.wait_for(ear.heard.wait(), 5)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(ear.alerts) == 3
    assert outlet.unsent == 17
    outlet.close()
    await asyncio.wait_for(task, 5)
    assert outlet.unsent == 0


async def test_a_failing_sink_is_tried_again_and_counted() -> None:
    """A sink that fails three times gets the alert at the fourth try, with what came meanwhile; each failure is counted."""
    ear, told = Ear(want=1, faults=[OSError("https://key@host"), TimeoutError(), SinkBusy(0.001)]), Told()
    alerts = alerts_of(ear, tell=told)
    alerts.start()
    alerts.note(letter())
    await asyncio.wait_for(ear.heard.wait(), 5)
    await alerts.close(1.0)
    assert ear.count == 1
    assert told.names() == {"alert_failed": 3, "alert_sent": 1}
    assert "key@host" not in repr(told.events)


async def test_a_failing_sink_does_not_touch_the_others() -> None:
    """One sink that hangs and one that fails for ever neither block `note` nor keep the third from hearing at once."""
    hanging, failing, good, told = Ear(), Broken(), Ear(want=5), Told()
    hanging.gate, hanging.name, failing.name = asyncio.Event(), "hanging", "failing"
    alerts = alerts_of(hanging, failing, good, tell=told)
    alerts.start()
    began = time.monotonic()
    for _ in range(5):
        alerts.note(letter())
    assert time.monotonic() - began < 0.5
    await asyncio.wait_for(good.heard.wait(), 5)
    await alerts.close(0.05)
    unsent = {str(fields["sink"]): fields["count"] for name, fields in told.events if name == "alerts_unsent"}
    assert unsent == {"hanging": 5, "failing": 5}


async def test_a_refused_alert_is_not_repeated() -> None:
    """What a sink refuses for good is counted and dropped, and the next goes through."""
    ear, told = Ear(want=1, faults=[SinkRefused("400")]), Told()
    alerts = alerts_of(ear, tell=told)
    alerts.start()
    alerts.note(letter(headers={"error_class": "timeout"}))
    alerts.note(letter(headers={"error_class": "auth"}))
    await asyncio.wait_for(ear.heard.wait(), 5)
    await alerts.close(1.0)
    assert told.names() == {"alert_refused": 1, "alert_sent": 1}


async def test_one_log_line_each_without_the_prompt() -> None:
    """Each dead letter is one structured line with the facts, and the prompt is not in it."""
    alerts = Alerts(Console(structlog.get_logger()), [], pipeline="headrace")
    with capture_logs() as lines:
        for n in range(3):
            alerts.note_record(record(request_id=f"r-{n}", offset=n, headers={"error_message": f"{CANARY} {API_KEY}"}))
    assert [line["request_id"] for line in lines] == ["r-0", "r-1", "r-2"]
    assert lines[0] == {
        "event": "dead_letter",
        "log_level": "error",
        "request_id": "r-0",
        "trace_id": None,
        "error_class": "timeout",
        "code": "read_timeout",
        "dead_at": "2026-09-21T14:15:00.000Z",
        "attempts": 3,
        "provider": "openai",
        "model": "gpt-4o-mini",
        "origin": "llm_requests_main/0/0",
        "position": "llm_requests_dlq/0/0",
        "replay_count": 0,
    }
    assert "CANARY" not in repr(lines)


async def test_a_broken_log_does_not_stop_the_lane() -> None:
    """A log that cannot be written to is counted; the sinks still hear."""

    class Broken:
        def error(self, event: str, **fields: object) -> None:
            raise BrokenPipeError

    ear, told = Ear(want=1), Told()
    alerts = Alerts(Console(Broken()), [ear], pipeline="headrace", tell=told, pace=FAST)
    alerts.start()
    alerts.note(letter())
    await asyncio.wait_for(ear.heard.wait(), 5)
    await alerts.close(1.0)
    assert told.names() == {"alert_failed": 1, "alert_sent": 1}

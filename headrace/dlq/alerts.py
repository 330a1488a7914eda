"""Tells everyone who wants to know about a dead letter: a log line each at once, and the sinks at their own pace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.config import Settings
from headrace.dlq.alert import Sink, alert_of
from headrace.dlq.console import Console
from headrace.dlq.letter import Letter, read_letter
from headrace.dlq.outlet import Outlet, Pace
from headrace.envelope import Record
from headrace.instrument import Tell, silent

CANCEL_S = 1.0


class Alerts:
    """`start` inside a running loop, `note` each dead letter from that loop, `close` at the end.

    `note` never blocks and never raises, so no sink can hold up the lane. What could not be told when it closes is
    told as `alerts_unsent`; the log line of each was written before.
    """

    def __init__(self, console: Console, sinks: Sequence[Sink], *, pipeline: str, tell: Tell = silent, pace: Pace | None = None) -> None:
        self._console = console
        self._pipeline = pipeline
        self._tell = tell
        self._outlets = {sink.name: Outlet(sink, tell=tell, pace=pace) for sink in sinks}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Begin sending."""
        self._tasks = {name: asyncio.create_task(outlet.run(), name=f"alerts-{name}") for name, outlet in self._outlets.items()}

    def note_record(self, record: Record) -> Letter:
        """Read a record of the dead-letter topic, tell everyone about it, and give it back as a letter."""
        letter = read_letter(record)
        self.note(letter)
        return letter

    def note(self, letter: Letter) -> None:
        """Log the letter, and have the sinks told."""
        alert = alert_of(letter, self._pipeline)
        try:
            self._console.write(alert)
        except Exception as error:  # noqa: BLE001 - a closed or full log must not stop the lane; it is counted
            self._tell("alert_failed", {"sink": "console", "error_class": alert.error_class, "count": 1, "error": type(error).__name__})
        for outlet in self._outlets.values():
            outlet.note(alert)

    async def close(self, within_s: float) -> None:
        """Tell what waits, for at most `within_s` seconds."""
        for outlet in self._outlets.values():
            outlet.close()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=within_s)
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=CANCEL_S)  # a sink that clings to its work is left behind
        for name, outlet in self._outlets.items():
            if outlet.unsent:
                self._tell("alerts_unsent", {"sink": name, "count": outlet.unsent})


def build_alerts(settings: Settings, *, tell: Tell = silent) -> Alerts:
    """The console, and Sentry where a DSN is configured. Raises ConfigError for a DSN that is none."""
    sinks: list[Sink] = []
    if settings.sentry_dsn is not None and settings.sentry_dsn.get_secret_value():
        # Imported here: the SDK takes long to import, and most runs have no DSN.
        from headrace.dlq.sentry import Sentry

        sinks.append(Sentry(settings.sentry_dsn))
    return Alerts(Console(), sinks, pipeline=settings.namespace, tell=tell)

"""One structured log line per dead letter, always. How lines are rendered is configured elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import structlog

from headrace.dlq.alert import Alert


def iso(epoch_ms: int) -> str:
    """RFC 3339, UTC, milliseconds."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Console:
    """Writes through structlog, as an error: a dead letter is work that somebody must look at."""

    def __init__(self, log: Any = None) -> None:
        self._log: Any = log if log is not None else structlog.get_logger("headrace.dlq")

    def write(self, alert: Alert) -> None:
        """Write the line. No prompt, no key and no free text of a provider is in it."""
        self._log.error(
            "dead_letter",
            request_id=alert.request_id,
            trace_id=alert.trace_id,
            error_class=alert.error_class,
            code=alert.code,
            dead_at=iso(alert.last_at_ms),
            attempts=alert.attempts,
            provider=alert.provider,
            model=alert.model,
            origin=alert.origin,
            position=alert.position,
            replay_count=alert.replay_count,
        )

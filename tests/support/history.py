"""What a test did and saw, in order: append-only, with times, for the auditor and for whoever reads a failure."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple


class Event(NamedTuple):
    """One thing that happened; `at_ms` is epoch time."""

    at_ms: int
    kind: str
    fields: Mapping[str, Any]


class History:
    """`events` only grows. Safe to add to from several threads."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def produced(self, request_id: str) -> None:
        """A record of this id was acknowledged by the broker."""
        self.note("produced", request_id=request_id)

    def killed(self, calls_in_flight: int, unsettled: int) -> None:
        """A worker ended without grace: so many calls of it were cut off, so many outcomes were not settled."""
        self.note("killed", calls_in_flight=calls_in_flight, unsettled=unsettled)

    def committed(self, topic: str, partition: int, offset: int) -> None:
        """A committed offset as it was seen; the auditor checks that they only grow."""
        self.note("committed", topic=topic, partition=partition, offset=offset)

    def note(self, kind: str, **fields: Any) -> None:
        """Anything else."""
        self.events.append(Event(int(time.time() * 1000), kind, fields))

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        """The fields of every event of a kind, oldest first."""
        return [event.fields for event in list(self.events) if event.kind == kind]

    @property
    def bound(self) -> int:
        """How many calls may have been made twice."""
        return sum(event["calls_in_flight"] + event["unsettled"] for event in self.of("killed"))

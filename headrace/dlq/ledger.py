"""Where it is written down who replayed what. The default writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from headrace.envelope import Position

Kind = Literal["replay_started", "replay_sent", "replay_ended"]


@dataclass(frozen=True, slots=True)
class LedgerEvent:
    """Something that was done to dead letters. `positions` are theirs; `at_ms` is epoch milliseconds."""

    kind: Kind
    replay_id: str
    at_ms: int
    positions: tuple[Position, ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict)


class Ledger(Protocol):
    """Takes events in the order they happen; `replay_started` before the first record is sent."""

    def record(self, event: LedgerEvent) -> None:
        """Write the event down. May raise: then the replay stops before it goes on."""


class NoLedger:
    """Writes nothing."""

    def record(self, event: LedgerEvent) -> None:
        """Forget the event."""

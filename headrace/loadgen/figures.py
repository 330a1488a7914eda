"""What a load came to: counts, and times as percentiles. Times are from the moment a record was due, not from when it could be sent."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

POINTS = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))


class Times:
    """Seconds, eight bytes each."""

    def __init__(self) -> None:
        self._all = array("d")

    def add(self, seconds: float) -> None:
        self._all.append(seconds)

    def __len__(self) -> int:
        return len(self._all)

    def percentiles(self) -> dict[str, float]:
        """Milliseconds by name; empty without any."""
        ordered = sorted(self._all)
        return {name: round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2) for name, share in POINTS if ordered}

    def latest(self, since: int) -> float:
        """The worst of those from `since` on, in milliseconds; 0 without any."""
        return 1000 * max(self._all[since:], default=0.0)


@dataclass(slots=True)
class Figures:
    """`late`: until handed to Kafka's client; `taken`: until the broker had it; `answered`: until its end was read. `ends` by status."""

    rate: float
    offered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    late: Times = field(default_factory=Times)
    taken: Times = field(default_factory=Times)
    answered: Times = field(default_factory=Times)
    took_s: float = 0.0
    unanswered: int | None = None

    def summary(self) -> dict[str, Any]:
        """All of it, as plain values. `achieved_rate` is what was handed over a second."""
        sent = self.offered.total()
        return {
            "sent": sent,
            "kinds": dict(self.offered),
            "rate": self.rate,
            "achieved_rate": round(sent / self.took_s, 2) if self.took_s else 0.0,
            "took_s": round(self.took_s, 2),
            "refused": dict(self.refused),
            "late_ms": self.late.percentiles(),
            "taken_ms": self.taken.percentiles(),
            "ends": dict(self.ends),
            "unanswered": self.unanswered,
            "answered_ms": self.answered.percentiles(),
        }

"""What a metric is: its name, kind, unit, labels and meaning, and a histogram's counts. The list of them is `definitions`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram", "info"]
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """`name` is without the suffixes of its kind (`_total`, `_bucket`, `_info`), and ends with its unit, if it has one (OpenMetrics, 5)."""

    name: str
    kind: Kind
    labels: Labels
    help: str
    unit: str = ""
    buckets: tuple[float, ...] = ()
    per: str = "lane"

    @property
    def shown(self) -> str:
        """The name as it is queried; of a histogram without the suffix."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its samples."""
        return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum")) if self.kind == "histogram" else (self.shown,)


class Histogram:
    """How many values fell below each bound, and their sum. Not thread-safe: whoever holds it has the lock."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, values: Iterable[float]) -> None:
        """Count these."""
        counts, bounds = self._counts, self._bounds
        total = 0.0
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total += value
        self._sum += total

    def shown(self) -> Shown:
        """What is to be shown, cumulative."""
        running, buckets = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            running += count
            buckets.append((bound, float(running)))
        return Shown(tuple(buckets), self._sum)


class Shown(NamedTuple):
    """A histogram at one moment: (upper bound, how many are not above it), and the sum of all."""

    buckets: tuple[tuple[str, float], ...]
    total: float


class Row(NamedTuple):
    """One value of one metric, under its labels."""

    metric: Metric
    labels: Labels
    value: float | Shown

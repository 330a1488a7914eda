"""What the broker says of the lanes and the dead letters. Blocking; every function raises KafkaUnavailable, or ConfigError for a topic that is missing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.committed import Committed, Standing
from headrace.config import Settings
from headrace.dlq.letter import read_cause
from headrace.envelope import Position
from headrace.log import scan, span
from headrace.status.picture import Lag, Letters
from headrace.topics import Topics

ASK_S = 5.0
SCAN_S = 10.0
NEAR = 0.8


@dataclass(frozen=True, slots=True)
class Deaths:
    """The newest dead letter of each request, by where it began: class, request id, when it died."""

    newest: Mapping[Position, tuple[str, str | None, int]]
    total: int
    whole: bool

    def counted(self, states: Mapping[str, str | None] | None) -> Letters:
        """`states` are what Redis holds of their ids; None: it could not be asked."""
        there = self.newest.values() if states is None else [one for one in self.newest.values() if _is_open(one[1], states)]
        by_class = Counter(error_class for error_class, _, _ in there)
        oldest_ms = min((died_ms for _, _, died_ms in there), default=None)
        return Letters(self.total, None if states is None else len(there), dict(by_class.most_common()), oldest_ms, self.whole)

    def ids(self) -> list[str]:
        """Those that have one."""
        return list({request_id for _, request_id, _ in self.newest.values() if request_id is not None})


def _is_open(request_id: str | None, states: Mapping[str, str | None]) -> bool:
    """Not answered since, and not on its way again. `dead` lapses after a day: nothing held is a dead letter that was left alone."""
    return request_id is None or states.get(request_id) in (None, "d")


def lags(settings: Settings, groups: Mapping[str, str], committed: Committed, now_ms: int) -> tuple[Lag, ...]:
    """How far each lane is behind, by the offsets and maps that are committed."""
    shapes = Topics(settings, timeout_s=ASK_S).existing(groups)
    standings = committed.read([(topic, p) for topic in groups for p in range(shapes[topic].partitions)])
    found = []
    for topic, group in groups.items():
        own = {partition: standing for (name, partition), standing in standings.items() if name == topic}
        near = _near(settings, topic, own, shapes[topic].number("retention.ms") or -1, now_ms)
        lag, lost = sum(one.lag for one in own.values()), sum(one.lost for one in own.values())
        found.append(Lag(group.rsplit(".", 1)[-1], topic, lag, lost, near))
    return tuple(found)


def _near(settings: Settings, topic: str, standings: Mapping[int, Standing], retention_ms: int, now_ms: int) -> tuple[int, ...]:
    """Partitions whose oldest unsettled record was written before 80 % of the retention: the first one since lies behind it."""
    behind = {p: max(one.committed, one.start) for p, one in standings.items() if one.lag}
    if retention_ms <= 0 or not behind:
        return ()
    since_ms = now_ms - int(NEAR * retention_ms)
    firsts = span(settings, topic, since_ms=since_ms, end="high", partitions=frozenset(behind), timeout_s=ASK_S)
    return tuple(p for p, frontier in sorted(behind.items()) if firsts[p][0] > frontier)


def deaths(settings: Settings) -> Deaths:
    """The dead letters of the topic, read for at most `SCAN_S`."""
    until = time.monotonic() + SCAN_S
    newest: dict[Position, tuple[str, str | None, int]] = {}
    total = 0
    for record in scan(settings, settings.topics.dlq, timeout_s=ASK_S):
        cause = read_cause(record)
        total += 1
        known = newest.get(cause.origin)
        if known is None or known[2] <= cause.dead_at_ms:
            newest[cause.origin] = (cause.error_class, cause.request_id, cause.dead_at_ms)
        if time.monotonic() > until:
            return Deaths(newest, total, whole=False)
    return Deaths(newest, total, whole=True)

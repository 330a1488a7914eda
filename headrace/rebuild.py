"""Which requests are completed, read from `llm_results`: what Redis must know again after it has lost its data. Keys and headers suffice."""

from __future__ import annotations

from collections.abc import Iterator

from headrace import log
from headrace.claims import DoneMark
from headrace.committed import Committed
from headrace.config import Settings
from headrace.envelope import Position, Record
from headrace.recovery import Step

STEP = 5_000
TIMEOUT_S = 20.0


class CompletedResults:
    """The results of one namespace's topics. `partitions` is how many main has. Blocking."""

    def __init__(self, settings: Settings, committed: Committed, partitions: int) -> None:
        self._settings = settings
        self._topic = settings.topics.results
        self._committed = committed
        self._main = [(settings.topics.main, number) for number in range(partitions)]
        self._read_to: dict[int, int] = {}

    def untouched(self) -> bool:
        """Whether there is no result and no committed offset of main. Raises KafkaUnavailable."""
        if any(log.end_offsets(self._settings, self._topic, end="high").values()):
            return False
        return all(standing.committed < 0 for standing in self._committed.read(self._main).values())

    def completed(self, since_ms: int) -> Iterator[Step]:
        """Those appended from `since_ms` (epoch) on, up to the high watermark of now: open transactions are waited for. Raises KafkaUnavailable."""
        return self._steps(log.span(self._settings, self._topic, since_ms=since_ms or None, end="high"))

    def later(self) -> Iterator[Step]:
        """Those behind what `completed` has read, up to the high watermark of now. Raises KafkaUnavailable."""
        ends = log.end_offsets(self._settings, self._topic, end="high")
        return self._steps({p: (min(self._read_to.get(p, 0), stop), stop) for p, stop in ends.items()})

    def _steps(self, span: log.Span) -> Iterator[Step]:
        total = sum(stop - first for first, stop in span.values())
        marks: list[DoneMark] = []
        read = 0
        for record in log.scan(self._settings, self._topic, within=span, timeout_s=TIMEOUT_S):
            read += 1
            if (mark := _mark(record)) is not None:
                marks.append(mark)
            if read % STEP == 0:
                yield Step(marks, read, total)
                marks = []
        self._read_to = {partition: stop for partition, (_, stop) in span.items()}
        yield Step(marks, read, total)


def _mark(record: Record) -> DoneMark | None:
    """The mark of a completed result; None for any other record. What is not ours to read is no mark."""
    headers = dict(record.headers)
    if headers.get("headrace_status") != b"completed" or not record.key:
        return None
    try:
        origin = Position.parse((headers.get("headrace_origin") or b"").decode())
        fingerprint = (headers.get("headrace_fingerprint") or b"").decode()
        return DoneMark(record.key.decode(), origin, fingerprint, record.timestamp_ms)
    except ValueError:  # UnicodeDecodeError is one
        return None

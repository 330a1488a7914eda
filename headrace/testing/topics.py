"""The topics in memory: one partition each, what was written to them, and which offsets are resolved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.config import TopicNames
from headrace.envelope import Header, Position, Record
from headrace.outcome import Output


def nobody(record: Record) -> None:
    """No worker is there to hear of a record."""


class MemoryTopics:
    """What the workers of one test read and write. `now_ms` stamps records, `arrived` hears of each."""

    def __init__(self, names: TopicNames, now_ms: Callable[[], int]) -> None:
        self.names = names
        self._now_ms = now_ms
        self._records: dict[str, list[Record]] = {name: [] for name in names.model_dump().values()}
        self._resolved: set[Position] = set()
        self.arrived: Callable[[Record], None] = nobody

    def write(self, output: Output) -> Record:
        """Append a record."""
        there = self._records[output.topic]
        headers: Sequence[Header] = list(output.headers)
        record = Record(output.topic, 0, len(there), 0, output.key, output.value, headers, self._now_ms())
        there.append(record)
        self.arrived(record)
        return record

    def of(self, topic: str) -> list[Record]:
        """Everything in a topic."""
        return list(self._records[topic])

    def resolve(self, position: Position) -> None:
        """Settled."""
        self._resolved.add(position)

    def unresolved(self) -> list[Record]:
        """What the workers have still to settle, main first."""
        waiting = (self.names.main, self.names.retry)
        return [record for topic in waiting for record in self._records[topic] if record.position not in self._resolved]

    async def resolved(self, positions: Sequence[Position]) -> list[bool | None]:
        """As `committed.Committed`'s: nothing here is below the log's start."""
        return [position in self._resolved for position in positions]

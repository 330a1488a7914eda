"""In which order the ends of an id came: whether it was completed twice, and what came after it was completed."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from headrace.envelope import Position

CLOCKS_APART_MS = 1_000
_NEVER = -1


class Endings:
    """Of each id (by index) the first `completed`; of other ends, and of further ones, all."""

    def __init__(self) -> None:
        self._done = (array("i"), array("q"), array("q"))
        self._others = (array("i"), array("i"), array("q"), array("q"))
        self._again: list[tuple[int, Position]] = []
        self._topic = ""

    def completed(self, request: int, position: Position, at_ms: int) -> None:
        """A `completed` result."""
        self._topic = position.topic
        partitions, offsets, times = self._done
        if (missing := request + 1 - len(partitions)) > 0:
            partitions.extend([_NEVER] * missing)
            offsets.extend([0] * missing)
            times.extend([0] * missing)
        if partitions[request] != _NEVER:
            self._again.append((request, position))
            return
        partitions[request], offsets[request], times[request] = position.partition, position.offset, at_ms

    def other(self, request: int, position: Position, at_ms: int) -> None:
        """A `failed` or `degraded` one."""
        self._topic = position.topic
        for column, value in zip(self._others, (request, position.partition, position.offset, at_ms), strict=True):
            column.append(value)

    def again(self) -> list[tuple[int, Position]]:
        """Every `completed` behind an id's first."""
        return self._again

    def late(self) -> Iterator[tuple[int, Position]]:
        """Every other end that came after the first `completed`: within a partition by offset, else clearly later by time."""
        done_in, done_at, done_ms = self._done
        for request, partition, offset, at_ms in zip(*self._others, strict=True):
            if request >= len(done_in) or done_in[request] == _NEVER:
                continue
            same = done_in[request] == partition
            if offset > done_at[request] if same else at_ms > done_ms[request] + CLOCKS_APART_MS:
                yield request, Position(self._topic, partition, offset)

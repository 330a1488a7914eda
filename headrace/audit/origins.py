"""Every source record by its position, in columns: some fifty bytes each. What may come out of it is judged elsewhere."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from headrace.audit.facts import Source
from headrace.envelope import Position

UNSEEN = -1
"""The id of an origin whose record was not read."""


class Origins:
    """A slot for each origin, whether its record was read or only named. Records of one partition come in order.

    The columns are by slot: `ids` (an index, or UNSEEN), `prints`, `contents`, `at_ms` of the first record;
    `injected`, `results`, and tokens unsettled `before` and `after` the reading are counts.
    """

    def __init__(self) -> None:
        self._topics: dict[tuple[str, int], _Log] = {}
        self._logs: list[_Log] = []
        self._named: dict[Position, int] = {}
        self._again: dict[int, list[_Again]] = {}
        self._log_of, self._offset_of = array("I"), array("q")
        self.ids, self.prints, self.contents, self.at_ms = array("i"), array("Q"), array("Q"), array("q")
        self.injected, self.results, self.before, self.after = array("I"), array("I"), array("I"), array("I")

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, source: Source, request: int) -> int:
        """A source record of the id with index `request`; its slot. A replay counts for the origin it names."""
        if source.origin != source.position:
            slot = self.slot(source.origin)
            self._again.setdefault(slot, []).append(_Again(request, source.fingerprint, source.content))
        else:
            slot = self._original(source.position)
            self.ids[slot], self.at_ms[slot] = request, source.at_ms
            self.prints[slot], self.contents[slot] = source.fingerprint, source.content
        self.injected[slot] += 1
        return slot

    def slot(self, origin: Position) -> int:
        """The slot of an origin; a new one where nothing is known of it yet."""
        log = self._topics.get(origin[:2])
        if log is not None:
            place = bisect_left(log.offsets, origin.offset)
            if place < len(log.offsets) and log.offsets[place] == origin.offset:
                return log.slots[place]
        if (slot := self._named.get(origin)) is None:
            slot = self._named[origin] = self._new(origin)
        return slot

    def seen(self, slot: int) -> bool:
        """Whether the record at this origin was read itself."""
        return self.contents[slot] != 0

    def alike(self, slot: int, content: int) -> bool:
        """Whether that is the content of the origin's record, or of one of its replays."""
        return self.contents[slot] == content or any(again.content == content for again in self._again.get(slot, ()))

    def asked(self, slot: int, request: int, fingerprint: int | None) -> bool:
        """Whether the origin's record, or a replay, asked for that id, and with that fingerprint (None: whatever it is)."""
        first = (self.ids[slot], self.prints[slot])
        pairs = [first, *((again.request, again.fingerprint) for again in self._again.get(slot, ()))]
        return any(request == wanted and fingerprint in (None, content) for wanted, content in pairs)

    def requests(self, slot: int) -> Iterator[int]:
        """The ids asked for from this origin."""
        if self.ids[slot] != UNSEEN:
            yield self.ids[slot]
        yield from (again.request for again in self._again.get(slot, ()))

    def position(self, slot: int) -> Position:
        """Where the slot's record stands."""
        log = self._logs[self._log_of[slot]]
        return Position(log.topic, log.partition, self._offset_of[slot])

    def _original(self, position: Position) -> int:
        slot = self._named.pop(position, None) if self._named else None
        if slot is None:
            slot = self._new(position)
        log = self._log(position)
        log.offsets.append(position.offset)
        log.slots.append(slot)
        return slot

    def _new(self, position: Position) -> int:
        self._log_of.append(self._log(position).number)
        self._offset_of.append(position.offset)
        self.ids.append(UNSEEN)
        for column in (self.prints, self.contents, self.at_ms, self.injected, self.results, self.before, self.after):
            column.append(0)
        return len(self.ids) - 1

    def _log(self, position: Position) -> _Log:
        key = position[:2]
        if (log := self._topics.get(key)) is None:
            log = self._topics[key] = _Log(len(self._logs), *key)
            self._logs.append(log)
        return log


class _Log:
    """One partition: the offsets that were read, ascending, and their slots."""

    __slots__ = ("number", "offsets", "partition", "slots", "topic")

    def __init__(self, number: int, topic: str, partition: int) -> None:
        self.number, self.topic, self.partition = number, topic, partition
        self.offsets, self.slots = array("q"), array("I")


class _Again(NamedTuple):
    """What a replay asked for."""

    request: int
    fingerprint: int
    content: int

"""Takes in what an audit reads, record by record, and keeps what judging needs. It finds nothing: that is `judge`'s.

The order and the ends of the reading make the sums right while workers go on; `reader` says how.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.audit.calls import Asks
from headrace.audit.endings import Endings
from headrace.audit.facts import HandedOn, Letter, Notice, Source
from headrace.audit.ids import PLACES, Ids
from headrace.audit.origins import UNSEEN, Origins
from headrace.audit.verdict import Broken, Rule
from headrace.committed import Standing
from headrace.config import TopicNames
from headrace.envelope import Position

Standings = Mapping[tuple[str, int], Standing]
Ends = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Frame:
    """What was asked of the broker before a record was read.

    `before` is where the groups stood, taken first; `ends` (by topic and partition) bound what counts; `ended` is the
    end of the results up to which no transaction was open. `silent`: duplicates leave no notice, by configuration.
    `compacted` topics may lack records anywhere.
    """

    names: TopicNames
    before: Standings
    ends: Ends
    ended: Mapping[int, int]
    silent: bool = False
    compacted: frozenset[str] = frozenset()

    def counts(self, position: Position) -> bool:
        """Whether a record stands before the ends that were taken first."""
        return position.offset < self.ends.get(position.topic, {}).get(position.partition, 0)

    def open(self, standings: Standings, position: Position) -> bool:
        """Whether the record at `position` was not settled."""
        standing = standings.get(position[:2])
        return standing is None or standing.resolved(position.offset) is not True


class Doubt(NamedTuple):
    """An output that did not match its origin when it was met. `content` is None for a notice."""

    slot: int
    position: Position
    request: int
    content: int | None
    fingerprint: int | None = None


@dataclass(slots=True)
class Pair:
    """Dead letters of one origin and the notices that go with them. `letters` and `needing` must have their counterpart."""

    letters: int = 0
    letters_all: int = 0
    letter_at_ms: int = 0
    needing: int = 0
    notices_all: int = 0
    notice_at_ms: int = 0


class Tokens(NamedTuple):
    """Records that were not settled when the reading began, in columns: origin's slot, id, place, partition, offset, calls spent."""

    slots: array[int]
    requests: array[int]
    places: array[int]
    partitions: array[int]
    offsets: array[int]
    counts: array[int]

    def each(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """The columns as rows."""
        return zip(*self, strict=True)


def _tokens() -> Tokens:
    return Tokens(array("I"), array("i"), array("B"), array("i"), array("q"), array("I"))


@dataclass(slots=True)
class Book:
    """Everything that was read. Feed main, then retry, later, dead letters and results."""

    frame: Frame
    with_calls: bool = False
    origins: Origins = field(default_factory=Origins)
    ids: Ids = field(default_factory=Ids)
    tokens: Tokens = field(default_factory=_tokens)
    pairs: dict[int, Pair] = field(default_factory=dict)
    doubts: list[Doubt] = field(default_factory=list)
    endings: Endings = field(default_factory=Endings)
    asks: Asks = field(default_factory=Asks)
    replayed: set[tuple[int, str]] = field(default_factory=set)
    broken: Broken = field(default_factory=Broken)
    read: dict[str, int] = field(default_factory=dict)
    first_at_ms: dict[tuple[str, int], int] = field(default_factory=dict)

    def source(self, source: Source) -> None:
        """A record somebody sent."""
        place = 0 if source.position.topic == self.frame.names.main else 1
        self._count(PLACES[place])
        request = self.ids.index(source.request_id or str(source.origin))
        slot = self.origins.add(source, request)
        self.ids.add("sources", request)
        self._token(slot, request, place, source.position, source.spent)
        if self.with_calls:
            self.ids.spent[request] -= source.spent
            self.asks.source(slot, request, source)

    def handed_on(self, record: HandedOn) -> None:
        """A record Headrace wrote to retry or later."""
        place = 1 if record.position.topic == self.frame.names.retry else 2
        self._count(PLACES[place])
        if not self.frame.counts(record.position):
            return
        slot = self.origins.slot(record.origin)
        request = self.origins.ids[slot]
        self._token(slot, request, place, record.position, record.spent)
        self._compare(slot, record.position, record.content)
        if record.replayed is not None:
            self._replayed(slot, request, record.replayed)
        if self.with_calls and place == 1:
            self.asks.handed_on(slot, record)

    def _replayed(self, slot: int, request: int, sending: str) -> None:
        """A dead letter that was sent to retry, since main had no room for it: another record that somebody sent, however often it is met."""
        if (slot, sending) in self.replayed:
            return
        self.replayed.add((slot, sending))
        self.origins.injected[slot] += 1
        if request != UNSEEN:
            self.ids.add("sources", request)

    def letter(self, letter: Letter) -> None:
        """A dead letter."""
        self._count("dlq")
        self._first(letter.position, letter.at_ms)
        slot = self.origins.slot(letter.origin)
        pair = self.pairs.setdefault(slot, Pair())
        pair.letters_all += 1
        if not self.frame.counts(letter.position):
            return
        pair.letters += 1
        pair.letter_at_ms = max(pair.letter_at_ms, letter.at_ms)
        if (request := self.origins.ids[slot]) != UNSEEN:
            self.ids.add("letters", request)
        self._compare(slot, letter.position, letter.content)

    def notice(self, notice: Notice) -> None:
        """A result or a notice."""
        self._count("results")
        self._first(notice.position, notice.at_ms)
        counts = self.frame.counts(notice.position)
        if notice.fault is not None and counts:
            text = f"a result that Headrace did not write: it {notice.fault}"
            self.broken(Rule.NEVER_SENT, notice.request_id, notice.position, text)
        if notice.origin is not None:
            self._of_origin(notice, notice.origin, counts=counts)
        if counts and (name := notice.request_id or (notice.origin and str(notice.origin))):
            self._of_id(notice, self.ids.index(name))

    def _of_origin(self, notice: Notice, origin: Position, *, counts: bool) -> None:
        slot = self.origins.slot(origin)
        if notice.with_letter:
            pair = self.pairs.setdefault(slot, Pair())
            pair.notices_all += 1
            if notice.position.offset < self.frame.ended.get(notice.position.partition, 0):
                pair.needing += 1
                pair.notice_at_ms = max(pair.notice_at_ms, notice.at_ms)
        if not counts:
            return
        self.origins.results[slot] += 1
        request = self.ids.index(notice.request_id or str(origin))
        if not self.origins.asked(slot, request, notice.fingerprint):
            self.doubts.append(Doubt(slot, notice.position, request, None, notice.fingerprint))

    def _of_id(self, notice: Notice, request: int) -> None:
        if notice.status != "unknown":
            self.ids.add(notice.status, request)
        self.ids.spent[request] += notice.spent
        if notice.status == "completed":
            self.endings.completed(request, notice.position, notice.at_ms)
        elif notice.status in ("failed", "degraded"):
            self.endings.other(request, notice.position, notice.at_ms)

    def _token(self, slot: int, request: int, place: int, position: Position, count: int) -> None:
        if not self.frame.open(self.frame.before, position):
            return
        self.origins.before[slot] += 1
        if request != UNSEEN:
            self.ids.add("unsettled", request)
        row = (slot, request, place, position.partition, position.offset, count)
        for column, value in zip(self.tokens, row, strict=True):
            column.append(value)

    def _compare(self, slot: int, position: Position, content: int | None) -> None:
        origins = self.origins
        if not origins.injected[slot] or (content is not None and not origins.alike(slot, content)):
            self.doubts.append(Doubt(slot, position, origins.ids[slot], content or 0))

    def _count(self, role: str) -> None:
        self.read[role] = self.read.get(role, 0) + 1

    def _first(self, position: Position, at_ms: int) -> None:
        self.first_at_ms.setdefault(position[:2], at_ms)

"""Which dead letters a replay would send, and why not the others. Pure; sending is `replay`'s work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.dlq.filters import Filters
from headrace.dlq.letter import Letter
from headrace.envelope import Position
from headrace.errors import ErrorClass

NOT_BY_ITSELF = frozenset({ErrorClass.UNDECODABLE.value, ErrorClass.TOO_LARGE.value, ErrorClass.CANCELLED.value})


class Entry(NamedTuple):
    """What is remembered of a dead letter between the two readings of the topic."""

    position: Position
    origin: Position
    request_id: str | None
    error_class: str
    replay_count: int
    dead_at_ms: int
    deadline_at_ms: int | None
    cut: bool


class _Newest(NamedTuple):
    rank: tuple[int, int, int]
    entry: Entry
    matched: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """What a replay may send. `cap` bounds how often a request was replayed before; None: no bound. `limit` None: all.

    `at_ms` is when it would be sent, `deadline_at_ms` the deadline it would be sent with, if another than its own.
    """

    cap: int | None
    limit: int | None = None
    at_ms: int = 0
    deadline_at_ms: int | None = None


@dataclass(slots=True)
class Selection:
    """What was found: `chosen` in the order of partition and offset, and what was left out, by reason."""

    chosen: dict[Position, Entry] = field(default_factory=dict)
    over_cap: list[Entry] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    superseded: int = 0
    beyond_limit: int = 0
    expired: int = 0

    @property
    def classes(self) -> Counter[str]:
        """How many of each error class are chosen."""
        return Counter(entry.error_class for entry in self.chosen.values())

    @property
    def matched(self) -> int:
        """How many dead letters the filters meant, sent or not."""
        return len(self.chosen) + len(self.over_cap) + self.skipped.total() + self.superseded + self.beyond_limit


def select(letters: Iterable[Letter], filters: Filters, rules: Rules) -> Selection:
    """Choose among all letters of the topic.

    Of one origin only the newest counts, whether the filters mean it or not: an older one would come with a hop that
    was seen already, and be a Duplicate. Takes about a kilobyte of memory a letter.
    """
    selection = Selection()
    newest: dict[Position, _Newest] = {}
    for letter in letters:
        found = _Newest(_rank(letter), _entry(letter), filters.match(letter))
        known = newest.get(letter.origin)
        if known is None:
            newest[letter.origin] = found
            continue
        older, newer = (found, known) if known.rank > found.rank else (known, found)
        newest[letter.origin] = newer
        selection.superseded += older.matched
    for entry in sorted(kept.entry for kept in newest.values() if kept.matched):
        _place(entry, selection, filters, rules)
    return selection


def _place(entry: Entry, selection: Selection, filters: Filters, rules: Rules) -> None:
    if entry.cut:
        selection.skipped["cut"] += 1
    elif entry.error_class in NOT_BY_ITSELF and entry.error_class not in filters.classes:
        selection.skipped[entry.error_class] += 1
    elif rules.cap is not None and entry.replay_count >= rules.cap:
        selection.over_cap.append(entry)
    elif rules.limit is not None and len(selection.chosen) >= rules.limit:
        selection.beyond_limit += 1
    else:
        selection.chosen[entry.position] = entry
        deadline_ms = rules.deadline_at_ms or entry.deadline_at_ms
        selection.expired += deadline_ms is not None and deadline_ms <= rules.at_ms


def _rank(letter: Letter) -> tuple[int, int, int]:
    return (letter.trail.hop, letter.dead_at_ms, letter.position.offset)


def _entry(letter: Letter) -> Entry:
    return Entry(
        position=letter.position,
        origin=letter.origin,
        request_id=letter.request_id,
        error_class=letter.error_class,
        replay_count=letter.replay_count,
        dead_at_ms=letter.dead_at_ms,
        deadline_at_ms=letter.trail.deadline_at_ms,
        cut=letter.cut is not None,
    )

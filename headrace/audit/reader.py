"""Reads what an audit judges, in an order that is right beside working workers. Nothing is joined, committed or written.

1. where the groups stand, stable: what they call settled has its outcome in the log by now
2. up to where no transaction is open in the results, then the ends of every topic an outcome goes to
3. main to its end of now: whatever stands before the ends of 2 came from a record that is read here
4. retry, later, dead letters, then results; beyond the ends of 2 only to find what belongs to what stands before them
5. where the groups stand now: what stands before the ends of 2 and is settled, is settled here

So no sum can be wrong by what happens meanwhile: with 1 nothing is missed that is on its way, with 5 nothing counts twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import orjson

from headrace.audit import facts
from headrace.audit.book import Book, Frame, Standings
from headrace.audit.facts import Call
from headrace.audit.judge import Told, judge
from headrace.audit.verdict import Verdict
from headrace.committed import Committed
from headrace.config import Settings
from headrace.envelope import Record
from headrace.errors import ConfigError
from headrace.log import End, end_offsets, scan
from headrace.topics import Topics

Say = Callable[[str, int], None]
"""Hears the topic that is read, and how many records of all were read."""
_SAY_EVERY = 1_000


def audit(
    settings: Settings, *, calls: Iterable[Call] | None = None, told: Told | None = None, say: Say = lambda _topic, _count: None
) -> Verdict:
    """Read all five topics and judge them. Blocking. Raises KafkaUnavailable, ConfigError where a topic does not exist.

    `calls` is taken after the topics are read.
    """
    reader = _Reader(settings, say)
    book = Book(reader.frame(), with_calls=calls is not None)
    # what was produced may stand behind a transaction that is open in main; nobody else has to wait for its end
    reader.read(book, "stable" if told is None else "high")
    return judge(book, reader.standings(), calls=calls, told=told)


class _Reader:
    def __init__(self, settings: Settings, say: Say) -> None:
        self._settings = settings
        self._names = settings.topics
        self._say = say
        self._count = 0
        group = f"{settings.namespace}.".__add__
        groups = {self._names.main: group("main"), self._names.retry: group("retry"), self._names.later: group("wheels")}
        # nobody commits to the last two under this group: of them only where the log starts and ends is wanted
        self._committed = Committed(settings, groups | {self._names.dlq: group("main"), self._names.results: group("main")})

    def frame(self) -> Frame:
        """Steps 1 and 2."""
        topics = list(self._names.model_dump().values())
        shapes = Topics(self._settings).existing(topics)
        compacted = frozenset(name for name, shape in shapes.items() if "compact" in shape.config.get("cleanup.policy", ""))
        before = self.standings()
        ended = end_offsets(self._settings, self._names.results, end="stable")
        outputs = (self._names.results, self._names.dlq, self._names.later, self._names.retry)
        ends = {topic: end_offsets(self._settings, topic, end="high") for topic in outputs}
        return Frame(self._names, before, ends, ended, silent=not self._settings.duplicate_notices, compacted=compacted)

    def standings(self) -> Standings:
        """Where the groups stand, and where the logs start and end."""
        shapes = Topics(self._settings).existing(self._names.model_dump().values())
        return self._committed.read((name, partition) for name, shape in shapes.items() for partition in range(shape.partitions))

    def read(self, book: Book, end: End) -> None:
        """Steps 3 and 4; `end` is main's."""
        names = self._names
        for topic in (names.main, names.retry, names.later, names.dlq, names.results):
            for record in self._records(topic, end if topic == names.main else "high"):
                feed(book, record)

    def _records(self, topic: str, end: End) -> Iterator[Record]:
        for record in scan(self._settings, topic, end=end):
            self._count += 1
            if self._count % _SAY_EVERY == 0:
                self._say(topic, self._count)
            yield record


def feed(book: Book, record: Record) -> None:
    """Enter a record in the book, as what its topic makes of it."""
    names = book.frame.names
    if record.topic == names.main:
        book.source(facts.source(record, trusted=False))
    elif record.topic == names.dlq:
        book.letter(facts.letter(record))
    elif record.topic == names.results:
        book.notice(facts.notice(record))
    elif facts.is_handed_on(record):
        book.handed_on(facts.handed_on(record))
    elif record.topic == names.retry:
        book.source(facts.source(record, trusted=True))


def calls_in(path: Path) -> Iterator[Call]:
    """The calls in the stub's log: NDJSON. Raises ConfigError naming the line that is none."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = orjson.loads(line)
                yield Call(_text(row["request_id"]), row["attempt"], int(row["wall_ms"]), row.get("status"))
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
                raise ConfigError([f"{path} line {number}: is no call; give the file that `headrace stub-llm --log` writes"]) from None


def _text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError("a request id is text")
    return value

"""Topics and lanes in memory: records are written as Headrace writes them, offsets are committed with them, and an audit may begin at any moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import orjson

from headrace.audit import Call, Told, Verdict, judge
from headrace.audit.book import Book, Frame, Standings
from headrace.audit.reader import feed
from headrace.committed import Standing
from headrace.config import TopicNames
from headrace.decode import decode_main, decode_retry
from headrace.dlq.letter import read_letter
from headrace.dlq.replay import Terms, replayed
from headrace.envelope import Attempt, Header, Job, Record, Response
from headrace.errors import ErrorClass, Failure
from headrace.offsets import Map
from headrace.offsets import Sequence as SettleSequence
from headrace.outcome import Completed, Dead, Deferred, Degraded, Dropped, Duplicate, Moved, Outcome, Output, Retry, Settlement
from headrace.outputs import Outputs

NAMES = TopicNames()
NOW = 1_800_000_000_000
FAILURE = Failure(ErrorClass.TIMEOUT, "no answer", provider="stub", called=True)
FAILED = (Attempt("timeout", 5, "stub"),)
Step = Callable[[], None]


def completed() -> Outcome:
    """An answer."""
    return Completed(Response(b"{}"), (Attempt(None, 5, "stub"),), NOW, 5)


def degraded() -> Outcome:
    """A substitute answer."""
    return Degraded(Response(b"{}"), FAILURE, FAILED, NOW, 5)


def retry(due_ms: int = NOW) -> Outcome:
    """Another call later."""
    return Retry(FAILURE, FAILED, due_ms, 5, NOW)


def dead() -> Outcome:
    """A death after a call."""
    return Dead(FAILURE, NOW, FAILED)


def undecodable() -> Outcome:
    """Bytes that are no request."""
    return Dead(Failure(ErrorClass.UNDECODABLE, "no JSON"), NOW, claimed=False)


def conflict() -> Outcome:
    """The same id, another content."""
    return Dead(Failure(ErrorClass.ID_CONFLICT, "known"), NOW, claimed=False)


def deferred(due_ms: int = NOW, *, copy: bool = False) -> Outcome:
    """Not now."""
    return Deferred(due_ms, "limit", copy)


def duplicate() -> Outcome:
    """A copy."""
    return Duplicate("completed", NOW, NOW)


def dropped() -> Outcome:
    """By a rate rule."""
    return Dropped(Failure(ErrorClass.RATE_RULE, "low priority"), NOW)


def moved() -> Outcome:
    """To a timing wheel."""
    return Moved(3)


@dataclass(slots=True)
class Log:
    """One partition: its records by offset, what is settled of them, where it starts."""

    records: list[Record] = field(default_factory=list)
    settled: set[int] = field(default_factory=set)
    start: int = 0
    end: int = 0

    def standing(self) -> Standing:
        """As the broker tells it; markers and other gaps count as settled."""
        wanted = [r.offset for r in self.records if r.offset not in self.settled]
        frontier = wanted[0] if wanted else self.end
        unresolved = sum(1 << (offset - frontier) for offset in wanted)
        return Standing(frontier, Map(frontier, self.end, unresolved, SettleSequence("w", 1)), self.start, self.end)


class World:
    """Two partitions of every topic. `now_ms` moves a millisecond with each record."""

    def __init__(self, *, notices: bool = True) -> None:
        self.logs = {(topic, partition): Log() for topic in NAMES.model_dump().values() for partition in (0, 1)}
        self.outputs = Outputs(NAMES, {}, notices)
        self.notices = notices
        self.now_ms = NOW
        self._replays = 0
        self.calls: list[Call] = []
        self.told_standings: list[Standings] = []

    def log(self, role: str, partition: int = 0) -> Log:
        """A partition of one of the five topics."""
        return self.logs[getattr(NAMES, role), partition]

    def append(self, output: Output, partition: int | None = None) -> Record:
        """Write a record; without a `partition`, where its key says."""
        chosen = sum(output.key or b"\0") % 2 if partition is None else partition
        log = self.logs[output.topic, chosen]
        self.now_ms += 1
        record = Record(output.topic, chosen, log.end, 0, output.key, output.value, tuple(output.headers), self.now_ms)
        log.records.append(record)
        log.end += 1
        return record

    def send(
        self, request_id: str | None, *, prompt: str = "hello", role: str = "main", headers: Sequence[Header] = (), **fields: object
    ) -> Record:
        """A request, or, without an id, bytes that are none."""
        value = b"\xff" if request_id is None else orjson.dumps({"request_id": request_id, "prompt": prompt, **fields})
        return self.append(Output(getattr(NAMES, role), (request_id or "k").encode(), value, [("mine", b"1"), *headers]))

    def settle(self, record: Record, outcome: Outcome) -> list[Record]:
        """End a record: its outputs, and its offset. Where its outcome says so, the model was called for it."""
        job = self.job(record)
        if getattr(outcome, "attempts", ()):
            self.calls.append(Call(job.request_id, job.trail.retry_count + 1, max(self.now_ms, job.trail.next_retry_at_ms or 0)))
        self.logs[record.topic, record.partition].settled.add(record.offset)
        written = [self.append(output) for output in self.outputs.of(Settlement(job, outcome))]
        self._marker({(w.topic, w.partition) for w in written})
        return written

    def back(self, record: Record) -> Record:
        """A wheel gives a record back to retry."""
        self.logs[record.topic, record.partition].settled.add(record.offset)
        return self.append(Output(NAMES.retry, record.key, record.value, record.headers))

    def replay(self, record: Record, role: str = "main") -> Record:
        """A dead letter goes back to main, or, where main has no room for it, to retry."""
        self._replays += 1
        return self.append(replayed(read_letter(record), Terms(getattr(NAMES, role), f"replay-{self._replays}"), self.now_ms))

    @staticmethod
    def job(record: Record) -> Job:
        """The record as its lane reads it."""
        return decode_main(record) if record.topic == NAMES.main else decode_retry(record)

    def open(self) -> list[Record]:
        """What is not settled, of main, retry and later."""
        roles = (NAMES.main, NAMES.retry, NAMES.later)
        return [r for (topic, _), log in self.logs.items() if topic in roles for r in log.records if r.offset not in log.settled]

    def standings(self) -> Standings:
        """Where the groups stand; before that, what a test wants to be told."""
        if self.told_standings:
            return self.told_standings.pop(0)
        return {key: log.standing() for key, log in self.logs.items()}

    def audit(
        self, meanwhile: Step = lambda: None, *, calls: bool = False, told: Told | None = None, compacted: frozenset[str] = frozenset()
    ) -> Verdict:
        """The reader's steps; between any two of them `meanwhile` happens."""
        before = self.standings()
        meanwhile()
        ended = {p: self.log("results", p).end for p in (0, 1)}
        ends: dict[str, dict[int, int]] = {}
        for role in ("results", "dlq", "later", "retry"):
            meanwhile()
            ends[getattr(NAMES, role)] = {p: self.log(role, p).end for p in (0, 1)}
        book = Book(Frame(NAMES, before, ends, ended, silent=not self.notices, compacted=compacted), with_calls=calls)
        for role in ("main", "retry", "later", "dlq", "results"):
            meanwhile()
            for record in [*self.log(role, 0).records, *self.log(role, 1).records]:
                feed(book, record)
        meanwhile()
        return judge(book, self.standings(), calls=self.calls if calls else None, told=told)

    def _marker(self, written: set[tuple[str, int]]) -> None:
        for key in written:
            self.logs[key].end += 1

"""Judges what was read: every rule of `Rule` over the book, the groups' offsets and what the history tells. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.audit.book import Book, Doubt, Pair, Standings
from headrace.audit.calls import CallRules
from headrace.audit.facts import Call
from headrace.audit.ids import PLACES
from headrace.audit.origins import UNSEEN
from headrace.audit.standings import Sample, judge_offsets
from headrace.audit.verdict import Rule, Verdict
from headrace.envelope import Position

_FOR_EVER_MS = 1 << 62


@dataclass(frozen=True, slots=True)
class Told:
    """What a history tells beside the topics.

    `bound`: calls that may have been made twice (None: nobody counted). `settled`: these lanes' topics have nothing
    left to do. `produced` ids were acknowledged by the broker. `samples` are committed offsets seen before, in order.
    """

    bound: int | None = None
    settled: frozenset[str] | None = None
    produced: Iterable[str] = ()
    samples: Sequence[Sample] = ()


@dataclass(slots=True)
class _Judge:
    book: Book
    after: Standings
    told: Told
    unjudged: Counter[str] = field(default_factory=Counter)
    open: int = 0

    def exactly_one(self) -> None:
        """By origin: what went in is what came out and what is on its way."""
        origins = self.book.origins
        trimmed = any(s.start > 0 for (topic, _), s in self.after.items() if topic == self.book.frame.names.main)
        for slot, (sent, ended, before, after) in enumerate(
            zip(origins.injected, origins.results, origins.before, origins.after, strict=True)
        ):
            if not sent:
                continue
            missing = max(0, sent - ended - before)
            if missing:
                missing = self._missing(slot, missing)
            if ended + after > sent:
                self._surplus(slot, sent, ended, after, trimmed=trimmed)
            on_its_way = max(0, sent - ended - missing)
            self.open += on_its_way
            if on_its_way > after and (request := origins.ids[slot]) != UNSEEN:
                self.book.ids.add("moving", request, on_its_way - after)

    def _missing(self, slot: int, missing: int) -> int:
        book, position = self.book, self.book.origins.position(slot)
        if book.origins.at_ms[slot] <= self._trimmed_ms(book.frame.names.results):
            self.unjudged["outcomes that retention may have removed"] += missing
        elif book.frame.silent and self._others(slot):
            self.unjudged["duplicates without a notice"] += missing
        else:
            request = self._request(slot)
            if request != UNSEEN:
                book.ids.add("lost", request, missing)
            self._say(Rule.EXACTLY_ONE, request, position, "was settled, and has no outcome: no result, no retry, no dead letter")
        return missing

    def _others(self, slot: int) -> bool:
        """Whether another record of its id is, or was: then a duplicate may have ended in silence."""
        counts = self.book.ids.counts
        names = ("completed", "degraded", "failed", "duplicate", "unsettled")
        return any(counts[name][request] for request in self.book.origins.requests(slot) for name in names)

    def _surplus(self, slot: int, sent: int, ended: int, after: int, *, trimmed: bool) -> None:
        origins, position = self.book.origins, self.book.origins.position(slot)
        if (trimmed and slot in self.book.pairs) or (not origins.seen(slot) and self._gone(position)):
            self.unjudged["replays that retention may have removed"] += 1
            return
        still = f", and {after} still on its way" if after else ""
        text = f"{sent} record{'s' if sent > 1 else ''} of this origin ended {ended} time{'s' if ended != 1 else ''}{still}"
        self._say(Rule.EXACTLY_ONE, self._request(slot), position, text)

    def letters(self) -> None:
        """Every dead letter has its notice, and every notice of a death its letter."""
        for slot, pair in self.book.pairs.items():
            self._pair(slot, pair)

    def _pair(self, slot: int, pair: Pair) -> None:
        names, request = self.book.frame.names, self.book.origins.ids[slot]
        if pair.letters > pair.notices_all:
            if pair.letter_at_ms <= self._trimmed_ms(names.results):
                self.unjudged["notices that retention may have removed"] += 1
            elif not self._unfounded(slot):
                text = f"{pair.letters} dead letters, but {pair.notices_all} notices of them"
                self._say(Rule.EXACTLY_ONE, request, self.book.origins.position(slot), text)
        if pair.needing > pair.letters_all:
            if pair.notice_at_ms <= self._trimmed_ms(names.dlq):
                self.unjudged["dead letters that retention may have removed"] += 1
            elif not self._unfounded(slot):
                text = f"{pair.needing} notices of a death, but {pair.letters_all} dead letters"
                self._say(Rule.EXACTLY_ONE, request, self.book.origins.position(slot), text)

    def founded(self) -> None:
        """Every output names a record that is there, its id, and its content."""
        for doubt in self.book.doubts:
            self._found(doubt)
        for slot, (sent, ended) in enumerate(zip(self.book.origins.injected, self.book.origins.results, strict=True)):
            if ended and not sent and self._gone(self.book.origins.position(slot)):
                self.unjudged["outcomes whose records are gone"] += ended

    def _found(self, doubt: Doubt) -> None:
        origins = self.book.origins
        origin = origins.position(doubt.slot)
        topic = doubt.position.topic
        if not origins.injected[doubt.slot]:
            if not self._gone(origin):
                what = {self.book.frame.names.results: "a result", self.book.frame.names.dlq: "a dead letter"}.get(topic, "a retry")
                self._say(Rule.NEVER_SENT, doubt.request, doubt.position, f"{what} of {origin}, where no record is")
            elif doubt.content is not None:
                self.unjudged["outputs whose records are gone"] += 1
        elif doubt.content is not None:
            if origins.alike(doubt.slot, doubt.content):
                return
            if origins.seen(doubt.slot):
                text = f"key, value or headers differ from those of {origin}"
                self._say(Rule.UNALTERED, origins.ids[doubt.slot], doubt.position, text)
            else:
                self.unjudged["outputs whose records are gone"] += 1
        elif origins.seen(doubt.slot):
            other = "another content" if origins.asked(doubt.slot, doubt.request, None) else "another id"
            self._say(Rule.NEVER_SENT, doubt.request, doubt.position, f"the record at {origin} has {other}")

    def order(self) -> None:
        """One `completed` an id, and nothing but duplicates after it."""
        for request, position in self.book.endings.again():
            self._say(Rule.ONE_COMPLETED, request, position, "completed once more")
        for request, position in self.book.endings.late():
            self._say(Rule.ONE_COMPLETED, request, position, "failed or degraded after it was completed")

    def on_their_way(self) -> None:
        """What is unsettled still, by place."""
        book, names = self.book, self.book.frame.names
        topics = (names.main, names.retry, names.later)
        for slot, request, place, partition, offset, count in book.tokens.each():
            if not book.frame.open(self.after, Position(topics[place], partition, offset)):
                continue
            book.origins.after[slot] += 1
            if request != UNSEEN:
                book.ids.add(PLACES[place], request)
                book.ids.spent[request] += count

    def arrived(self) -> None:
        """What the broker acknowledged is there."""
        sources = self.book.ids.counts["sources"]
        for request_id in self.told.produced:
            index = self.book.ids.find(request_id)
            if index is None or not sources[index]:
                self.book.broken(Rule.EXACTLY_ONE, request_id, None, "was produced, and no record of it is there")

    def _unfounded(self, slot: int) -> bool:
        """Whether its record is not there: that is another rule's."""
        return not self.book.origins.injected[slot]

    def _request(self, slot: int) -> int:
        """An id that was asked for from an origin."""
        return next(self.book.origins.requests(slot), UNSEEN)

    def _gone(self, origin: Position) -> bool:
        """Whether retention or compaction may have removed the record at `origin`."""
        standing = self.after.get(origin[:2])
        return standing is not None and (origin.offset < standing.start or origin.topic in self.book.frame.compacted)

    def _trimmed_ms(self, topic: str) -> int:
        """Up to when (record time) retention may have removed records of an output topic; -1: it never did."""
        trimmed = [key for key, standing in self.after.items() if key[0] == topic and standing.start > 0]
        return max((self.book.first_at_ms.get(key, _FOR_EVER_MS) for key in trimmed), default=-1)

    def _say(self, rule: Rule, request: int, position: Position, text: str) -> None:
        name = None if request == UNSEEN else self.book.ids.name(request)
        self.book.broken(rule, name, position, text)


def judge(book: Book, after: Standings, *, calls: Iterable[Call] | None = None, told: Told | None = None) -> Verdict:
    """The verdict. `after` is where the groups stood once everything was read, and where the topics begin."""
    told = told or Told()
    judge_ = _Judge(book, after, told)
    judge_.on_their_way()
    judge_.exactly_one()
    judge_.letters()
    judge_.founded()
    judge_.order()
    judge_.arrived()
    judge_offsets(book.frame.before, after, told.samples, told.settled or frozenset(), book.broken)
    if told.settled is not None and judge_.open:
        book.broken(Rule.EXACTLY_ONE, None, None, f"all should be settled, and {judge_.open} records are on their way")
    total, extra = _judge_calls(book, calls, told, judge_.open)
    counts = book.ids.counts
    open_at = {place: sum(counts[place]) for place in PLACES if any(counts[place])}
    return Verdict(
        ids=len(book.ids),
        states=book.ids.states(),
        completed=sum(counts["completed"]),
        duplicates=sum(counts["duplicate"]),
        open=judge_.open,
        open_at=open_at,
        read=dict(book.read),
        unjudged=dict(judge_.unjudged),
        violations=tuple(book.broken.kept),
        broken=dict(book.broken.counts),
        calls=total,
        extra_calls=extra,
        bound=told.bound,
        rows=lambda: book.ids.rows(with_calls=calls is not None),
    )


def _judge_calls(book: Book, calls: Iterable[Call] | None, told: Told, open_: int) -> tuple[int | None, int | None]:
    if calls is None:
        return None, None
    rules = CallRules(book.asks, book.origins, book.ids, book.broken)
    rules.judge(calls)
    extra = rules.extra()
    if told.bound is not None and extra > told.bound + (open_ if told.settled is None else 0):
        text = f"{extra} calls beyond what the outcomes account for, where at most {told.bound} could have been cut off"
        book.broken(Rule.CALLS, None, None, text)
    return rules.total, extra

"""Any run of lanes, and an audit that begins at any moment of it: silent where all is sound, loud where a record was tampered with."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envelope import Position, Record
from headrace.outcome import Outcome
from tests.unit.audit import world as w
from tests.unit.audit.world import NAMES, NOW, World

IDS = [*"abcdef", None]


class Run:
    """Lanes that keep the promises, in an order drawn from a seed."""

    def __init__(self, seed: int, *, notices: bool = True) -> None:
        self.random = random.Random(seed)
        self.world = World(notices=notices)
        self.done: set[str | None] = set()
        self.known: set[tuple[str | None, Position]] = set()
        self.letters: list[Record] = []
        self.replayed: list[Record] = []

    def step(self) -> None:
        """Send, settle, give back or replay one record."""
        chosen = self.random.random()
        if chosen < 0.35 or not (open_ := self.world.open()):
            role = "main" if self.random.random() < 0.9 else "retry"
            due = {"next_retry_at": NOW + 5_000, "retry_count": 1} if self.random.random() < 0.1 else {}
            self.world.send(self.random.choice(IDS), role=role, **due)
        elif chosen < 0.42 and self.letters:
            self.replayed += [self.world.replay(self.random.choice(self.letters), self.random.choice(["main", "retry"]))]
        else:
            self._go_on(self.random.choice(open_))

    def _go_on(self, record: Record) -> None:
        if record.topic == NAMES.later:
            self.world.back(record)
            return
        job = self.world.job(record)
        request_id, origin = job.request_id, job.trail.origin
        copy = any(known == request_id and holder != origin for known, holder in self.known)
        outcome = self._outcome(request_id, copy=copy, in_retry=record.topic == NAMES.retry)
        written = self.world.settle(record, outcome)
        self.letters += [r for r in written if r.topic == NAMES.dlq]
        if isinstance(outcome, w.Completed):
            self.done.add(request_id)
        if isinstance(outcome, (w.Completed, w.Degraded, w.Dead)):
            self.known.add((request_id, origin))

    def _outcome(self, request_id: str | None, *, copy: bool, in_retry: bool) -> Outcome:
        if request_id is None:
            return w.undecodable()
        again = [w.conflict(), w.deferred(copy=True), *([w.duplicate()] if copy else [])]
        first = [w.completed(), w.retry(self.world.now_ms), w.deferred(self.world.now_ms), w.dead(), w.degraded(), w.dropped()]
        moves = [w.moved()] if in_retry else []
        return self.random.choice(again if request_id in self.done else again + first * 2 + moves)

    def some(self, most: int) -> None:
        """A few steps."""
        for _ in range(self.random.randint(0, most)):
            self.step()


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 30), before=st.integers(0, 60), meanwhile=st.integers(0, 12), notices=st.booleans())
def test_no_false_alarm_whenever_it_begins(seed: int, before: int, meanwhile: int, notices: bool) -> None:
    """Records come and end between any two steps of the reading: nothing is broken, and every id is somewhere."""
    run = Run(seed, notices=notices)
    for _ in range(before):
        run.step()
    verdict = run.world.audit(lambda: run.some(meanwhile), calls=not meanwhile)
    assert verdict.violations == ()
    assert not verdict.extra_calls or not notices, "a copy that was called, and ended in silence, tells of no call"
    assert set(verdict.states) <= {"completed", "open", "degraded", "failed", "duplicate", "gone"}


def _remove(run: Run, record: Record) -> None:
    run.world.logs[record.topic, record.partition].records.remove(record)


def _repeat(run: Run, record: Record) -> None:
    log = run.world.logs[record.topic, record.partition]
    log.records.append(record._replace(offset=log.end))
    log.end += 1


def _alter(run: Run, record: Record) -> None:
    records = run.world.logs[record.topic, record.partition].records
    records[records.index(record)] = record._replace(key=(record.key or b"") + b"!")


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 30), steps=st.integers(5, 80), how=st.sampled_from([_remove, _repeat, _alter]))
def test_whatever_is_tampered_with_is_found(seed: int, steps: int, how: Callable[[Run, Record], None]) -> None:
    """One record that Headrace wrote is removed, repeated or altered: a rule is broken. Only what was handed on already may be missing."""
    run = Run(seed)
    for _ in range(steps):
        run.step()
    written = [r for key, log in run.world.logs.items() if key[0] != NAMES.main for r in log.records]
    ours = [r for r in written if any(name == "headrace_origin" for name, _ in r.headers)]
    if how is _remove:
        still = run.world.open()
        ours = [r for r in ours if r not in run.replayed and (r.topic in (NAMES.results, NAMES.dlq) or r in still)]
    if not ours:
        return
    how(run, run.random.choice(ours))
    assert not run.world.audit().ok

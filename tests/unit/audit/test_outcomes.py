"""Exactly one outcome a record, at most one answer an id: evidence that breaks it, and the auditor says so; sound evidence, and it is silent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.audit import Rule, Told
from headrace.outcome import Output
from tests.unit.audit import world as w
from tests.unit.audit.sound import ALL, rules_of, sound
from tests.unit.audit.world import NAMES, NOW, World


def test_sound_evidence_breaks_nothing() -> None:
    """One of everything: every id at its end, every call accounted for, nothing open, nothing broken, nothing left unjudged."""
    verdict = sound().audit(calls=True, told=Told(bound=0, settled=ALL, produced=["done", "dead"]))
    assert verdict.violations == ()
    assert verdict.states == {"completed": 4, "failed": 3, "degraded": 1}
    assert (verdict.ids, verdict.completed, verdict.duplicates, verdict.open) == (8, 4, 3, 0)
    assert (verdict.calls, verdict.extra_calls, verdict.unjudged) == (8, 0, {})
    rows = {row.request_id: row for row in verdict.rows()}
    assert (rows["done"].sources, rows["done"].duplicates, rows["done"].letters, rows["done"].twice) == (4, 3, 1, True)
    assert (rows["replayed"].failed, rows["replayed"].completed, rows["replayed"].calls) == (1, 1, 2)
    assert [name.rsplit("/", 2)[0] for name in rows if "/" in name] == [NAMES.main], "the bytes that are no request, by their position"


def _lost(world: World) -> None:
    record = world.send("x")
    world.log("main", record.partition).settled.add(record.offset)


def _lost_in_retry(world: World) -> None:
    (record,) = world.settle(world.send("x"), w.retry())
    world.log("retry", record.partition).settled.add(record.offset)


def _twice(world: World) -> None:
    record = world.send("x")
    world.settle(record, w.dead())
    world.settle(record, w.dead())


def _ended_and_open(world: World) -> None:
    record = world.send("x")
    world.settle(record, w.completed())
    world.log("main", record.partition).settled.discard(record.offset)


def _forked(world: World) -> None:
    record = world.send("x")
    world.settle(record, w.completed())
    world.settle(record, w.retry())


def _letter_alone(world: World) -> None:
    letter, _ = world.settle(world.send("x"), w.dead())
    world.append(Output(NAMES.dlq, letter.key, letter.value, letter.headers))


def _notice_alone(world: World) -> None:
    letter, _ = world.settle(world.send("x"), w.dead())
    world.log("dlq", letter.partition).records.remove(letter)


@pytest.mark.parametrize("how", [_lost, _lost_in_retry, _twice, _ended_and_open, _forked, _letter_alone, _notice_alone])
def test_exactly_one_outcome(how: Callable[[World], None]) -> None:
    """A record settled without an outcome, with two, ended but still open, ended and handed on; a letter or its notice alone."""
    world = sound()
    how(world)
    assert rules_of(world.audit()) == {Rule.EXACTLY_ONE}


def test_what_is_on_its_way_is_no_loss() -> None:
    """Unsettled in main, in retry, on a wheel: open, each at its place; broken only where all should be settled."""
    world = sound()
    world.send("a")
    world.settle(world.send("b"), w.retry())
    (near,) = world.settle(world.send("c"), w.retry(NOW + 60_000))
    world.settle(near, w.moved())
    verdict = world.audit()
    assert (verdict.ok, verdict.open, verdict.open_at) == (True, 3, {"main": 1, "retry": 1, "later": 1})
    assert {row.request_id: dict(row.open_at) for row in verdict.rows() if row.state == "open"} == {
        "a": {"main": 1},
        "b": {"retry": 1},
        "c": {"later": 1},
    }
    assert rules_of(world.audit(told=Told(settled=ALL))) == {Rule.EXACTLY_ONE, Rule.OFFSETS}


def test_what_was_produced_is_there() -> None:
    """An id the broker acknowledged, of which no record is there."""
    verdict = sound().audit(told=Told(produced=["done", "vanished"]))
    assert [(v.rule, v.request_id) for v in verdict.violations] == [(Rule.EXACTLY_ONE, "vanished")]


def _completed_copy(world: World) -> None:
    world.settle(world.send("done"), w.completed())


def _dead_copy(world: World) -> None:
    world.settle(world.send("done"), w.dead())


@pytest.mark.parametrize("how", [_completed_copy, _dead_copy])
def test_one_completed(how: Callable[[World], None]) -> None:
    """A copy that is completed as well, and one that dies after the answer; each record has its one outcome."""
    world = sound()
    how(world)
    assert [(v.rule, v.request_id) for v in world.audit().violations] == [(Rule.ONE_COMPLETED, "done")]


def test_an_end_in_another_partition_is_ordered_by_time() -> None:
    """Results that gained a partition: a death before the answer is no violation, one well after it is."""
    world = World()
    letter, notice = world.settle(world.send("x"), w.dead())
    world.now_ms += 5_000
    answer = world.settle(world.replay(letter), w.completed())[0]
    world.log("results", notice.partition).records.remove(notice)
    elsewhere = 1 - answer.partition
    world.append(Output(notice.topic, notice.key, notice.value, notice.headers), elsewhere)
    moved = world.log("results", elsewhere).records
    moved[-1] = moved[-1]._replace(timestamp_ms=notice.timestamp_ms)
    assert world.audit().ok
    moved[-1] = moved[-1]._replace(timestamp_ms=answer.timestamp_ms + 2_000)
    assert rules_of(world.audit()) == {Rule.ONE_COMPLETED}


def test_silent_duplicates() -> None:
    """Notices switched off: a copy ends without a trace, where its id is known; a record alone of its id does not."""
    world = World(notices=False)
    world.settle(world.send("x"), w.completed())
    world.settle(world.send("x"), w.duplicate())
    verdict = world.audit()
    assert (verdict.ok, verdict.unjudged) == (True, {"duplicates without a notice": 1})
    world.settle(world.send("y"), w.duplicate())
    assert rules_of(world.audit()) == {Rule.EXACTLY_ONE}

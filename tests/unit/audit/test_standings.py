"""Committed offsets, and what retention and compaction have removed."""

from __future__ import annotations

import dataclasses

import pytest

from headrace.audit import Rule, Sample, Told
from headrace.committed import Standing
from tests.unit.audit.sound import ALL, rules_of, sound
from tests.unit.audit.world import NAMES, World


def _with(world: World, key: tuple[str, int], **changes: object) -> dict[tuple[str, int], Standing]:
    standings = dict(world.standings())
    return standings | {key: dataclasses.replace(standings[key], **changes)}  # type: ignore[arg-type]  # by name


def test_retention_leaves_things_unjudged() -> None:
    """Sources, results or dead letters that the log no longer holds: what they would prove is counted, and accuses nobody."""
    for role in ("main", "retry", "results", "dlq"):
        world = sound()
        for partition in (0, 1):
            log = world.log(role, partition)
            log.start = log.end
            log.records.clear()
        world.send("next")
        verdict = world.audit()
        assert (role, verdict.violations) == (role, ())
        assert verdict.unjudged


def test_compaction_leaves_things_unjudged() -> None:
    """A source that a compacted main no longer holds accuses nobody; where main is not compacted, it does."""
    for compacted, broken in ((frozenset({NAMES.main}), set()), (frozenset(), {Rule.NEVER_SENT})):
        world = sound()
        log = world.log("main")
        log.records.remove(next(r for r in log.records if r.key == b"dead"))
        assert rules_of(world.audit(compacted=compacted)) == broken


@pytest.mark.parametrize("changes", [{"committed": 99}, {"start": 50, "end": 60}, {"committed": 0}])
def test_offsets(changes: dict[str, int]) -> None:
    """A committed offset beyond the log's end, below its start, or smaller than it was."""
    world = sound()
    world.told_standings = [world.standings(), _with(world, (NAMES.main, 0), map=None, **changes)]
    assert Rule.OFFSETS in rules_of(world.audit())


def test_offsets_settled_once_stay_settled() -> None:
    """An offset that a map called settled, and a later one does not; and earlier samples that were higher."""
    world = sound()
    world.send("open")
    before = world.standings()
    log = world.log("main", sum(b"dead") % 2)
    log.settled.discard(max(log.settled))
    world.told_standings = [before, world.standings()]
    assert Rule.OFFSETS in rules_of(world.audit())
    verdict = sound().audit(told=Told(samples=[Sample(NAMES.main, 0, 1), Sample(NAMES.main, 0, 500)]))
    assert rules_of(verdict) == {Rule.OFFSETS}


def test_lag_is_no_end() -> None:
    """Everything settled, and one partition committed one short of its end: a marker that was never passed."""
    world = sound()
    end = world.log("retry", 0).end
    world.told_standings = [world.standings(), _with(world, (NAMES.retry, 0), committed=end, end=end + 1)] * 2
    assert world.audit().ok
    assert rules_of(world.audit(told=Told(settled=ALL))) == {Rule.OFFSETS}

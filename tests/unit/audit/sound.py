"""A world in which every promise was kept, to be broken by one thing at a time."""

from __future__ import annotations

from headrace.audit import Rule, Verdict
from tests.unit.audit import world as w
from tests.unit.audit.world import NAMES, NOW, World

ALL = frozenset({NAMES.main, NAMES.retry, NAMES.later})


def sound() -> World:
    """One of everything, all of it settled: answers, retries over a wheel, deaths, a replay, copies, a conflict, bytes that are no request."""
    world = World()
    world.settle(world.send("done"), w.completed())
    (again,) = world.settle(world.send("again"), w.retry())
    world.settle(again, w.completed())
    (far,) = world.settle(world.send("far", role="retry", next_retry_at=NOW + 60_000), w.moved())
    world.settle(world.back(far), w.completed())
    letter, _ = world.settle(world.send("replayed"), w.dead())
    world.settle(world.replay(letter), w.completed())
    world.settle(world.send("dead"), w.dead())
    world.settle(world.send("substitute"), w.degraded())
    world.settle(world.send("low"), w.dropped())
    world.settle(world.send("done"), w.duplicate())
    world.settle(world.send("done", prompt="another"), w.conflict())
    world.settle(world.send(None), w.undecodable())
    (waits,) = world.settle(world.send("done"), w.deferred(copy=True))
    world.settle(waits, w.duplicate())
    return world


def rules_of(verdict: Verdict) -> set[Rule]:
    """The rules that are broken."""
    return set(verdict.broken)

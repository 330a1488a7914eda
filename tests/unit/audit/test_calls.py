"""Calls: none before its due time, and none beyond what outcomes and kills account for."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.audit import Call, Rule, Told, calls_in
from headrace.errors import ConfigError
from tests.unit.audit import world as w
from tests.unit.audit.sound import ALL, rules_of, sound
from tests.unit.audit.world import NOW, World


def test_never_early() -> None:
    """A retry called 51 ms before it was due; 50 ms are the clocks'. A deferred one, called at the due time it had before."""
    world = World()
    (first,) = world.settle(world.send("x"), w.retry(NOW + 10_000))
    world.calls.append(Call("x", 2, NOW + 9_950))
    assert Rule.NEVER_EARLY not in rules_of(world.audit(calls=True))
    world.calls[-1] = Call("x", 2, NOW + 9_949)
    assert rules_of(world.audit(calls=True)) == {Rule.NEVER_EARLY}
    world.now_ms = NOW + 11_000
    world.settle(first, w.deferred(NOW + 60_000))
    world.calls[-1] = Call("x", 2, NOW + 12_000)  # the record before may still have been the one
    assert world.audit(calls=True).ok
    world.calls[-1] = Call("x", 2, NOW + 20_000)
    assert rules_of(world.audit(calls=True)) == {Rule.NEVER_EARLY}


def test_a_due_time_of_the_producers_is_kept_too() -> None:
    """A request that says when it is due: no first call before that, unless the same id was also sent without."""
    world = World()
    world.settle(world.send("x", next_retry_at=NOW + 10_000), w.deferred(NOW + 10_000))
    world.calls.append(Call("x", 1, NOW + 5_000))
    assert rules_of(world.audit(calls=True)) == {Rule.NEVER_EARLY}
    world.settle(world.send("x"), w.duplicate())
    assert world.audit(calls=True).ok


def test_calls() -> None:
    """Calls that no outcome accounts for: at most what the kills cut off."""
    world = sound()
    world.calls += [Call("done", 1, NOW), Call("again", 2, NOW), Call("nobody", 1, NOW)]
    verdict = world.audit(calls=True, told=Told(bound=3, settled=ALL))
    assert (verdict.extra_calls, verdict.bound, verdict.ok) == (3, 3, True)
    assert rules_of(world.audit(calls=True, told=Told(bound=2, settled=ALL))) == {Rule.CALLS}
    assert world.audit(calls=True).ok, "nobody counted the kills"


def test_calls_that_spend_no_attempt_are_no_extra() -> None:
    """A refused key: called, deferred without an attempt; only as many as were refused and deferred."""
    world = World()
    (waits,) = world.settle(world.send("x"), w.deferred())
    world.calls.append(Call("x", 1, NOW, 401))
    world.settle(waits, w.completed())
    assert world.audit(calls=True, told=Told(bound=0)).ok
    world.calls.append(Call("x", 1, NOW, 401))
    assert rules_of(world.audit(calls=True, told=Told(bound=0))) == {Rule.CALLS}


def test_a_line_that_is_no_call_is_named(tmp_path: Path) -> None:
    """The stub's log as a file; what is none of its lines is refused, with its number."""
    path = tmp_path / "calls.ndjson"
    path.write_text('{"request_id":"r","attempt":1,"wall_ms":5,"status":200}\n{"request_id":7,"attempt":1,"wall_ms":5}\n')
    calls = calls_in(path)
    assert next(calls) == Call("r", 1, 5, 200)
    with pytest.raises(ConfigError, match="line 2"):
        next(calls)

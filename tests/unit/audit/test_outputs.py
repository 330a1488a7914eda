"""Nothing comes out that did not go in, and nothing is altered on its way: each forgery is named, each exception is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.audit import Rule
from headrace.envelope import Record
from headrace.outcome import Output
from tests.unit.audit import world as w
from tests.unit.audit.sound import rules_of, sound
from tests.unit.audit.world import NAMES, NOW, World


def _no_origin(world: World) -> None:
    world.append(Output(NAMES.results, b"x", b'{"request_id":"x","status":"completed"}', [("headrace_status", b"completed")]))


def _no_result(world: World) -> None:
    world.append(Output(NAMES.results, b"x", b"\xff\x00"))


def _of_nothing(world: World) -> None:
    stranger = World()
    for written in stranger.settle(stranger.send("stranger")._replace(offset=77), w.dead()):
        world.append(Output(written.topic, written.key, written.value, written.headers))


def _another_id(world: World) -> None:
    record = world.send("x")
    world.log("main", record.partition).settled.add(record.offset)
    answer = world.outputs.of(w.Settlement(world.job(record)._replace(request_id="y"), w.dropped()))[0]
    world.append(answer)


def _another_content(world: World) -> None:
    record = world.send("x")
    world.log("main", record.partition).settled.add(record.offset)
    world.append(world.outputs.of(w.Settlement(world.job(record)._replace(fingerprint="0" * 24), w.completed()))[0])


def _letter_of_nothing(world: World) -> None:
    world.append(Output(NAMES.dlq, b"x", b"{}"))


def _retry_of_nothing(world: World) -> None:
    world.append(Output(NAMES.retry, b"x", b"{}", [("headrace_origin", f"{NAMES.main}/0/999".encode())]))


@pytest.mark.parametrize("how", [_no_origin, _no_result, _of_nothing, _another_id, _another_content, _letter_of_nothing, _retry_of_nothing])
def test_never_sent(how: Callable[[World], None]) -> None:
    """Outputs without an origin, of an origin where nothing is, with another id or content than was asked for."""
    world = sound()
    how(world)
    assert rules_of(world.audit()) == {Rule.NEVER_SENT}


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r._replace(value=r.value + b" "),
        lambda r: r._replace(value=None),
        lambda r: r._replace(key=b"other"),
        lambda r: r._replace(key=None),
        lambda r: r._replace(headers=[h for h in r.headers if h[0] != "mine"]),
        lambda r: r._replace(headers=[("mine", None), *r.headers[1:]]),
        lambda r: r._replace(headers=[*r.headers, ("mine", b"1")]),
    ],
)
@pytest.mark.parametrize("role", ["dlq", "retry", "later"])
def test_unaltered(role: str, change: Callable[[Record], Record]) -> None:
    """Key, value or a producer's header changed on a dead letter, a retry, or a record on a wheel."""
    world = sound()
    (near,) = world.settle(world.send("c"), w.retry(NOW + 60_000))
    world.settle(near, w.moved())
    log = next(log for p in (0, 1) if (log := world.log(role, p)).records)
    log.records[-1] = change(log.records[-1])
    assert rules_of(world.audit()) == {Rule.UNALTERED}


def test_what_was_cut_is_not_compared() -> None:
    """A dead letter flagged as cut: only what is left of it is there."""
    world = sound()
    log = next(log for p in (0, 1) if (log := world.log("dlq", p)).records)
    log.records[-1] = log.records[-1]._replace(value=b"", headers=[*log.records[-1].headers[1:], ("headrace_cut", b"value 9 bytes")])
    assert world.audit().ok


def test_an_edited_replay_may_differ() -> None:
    """A replay with another content: its own letter and answer are like it."""
    world = sound()
    letter, _ = world.settle(world.send("edited"), w.dead())
    replay = world.replay(letter._replace(value=b'{"request_id":"edited","prompt":"better"}'))
    again, _ = world.settle(replay, w.dead())
    world.settle(world.replay(again), w.completed())
    assert world.audit().violations == ()

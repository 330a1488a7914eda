"""What is held of the wheels: order, offsets, flow, refusals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.wheels.lines import Line, Lines, Move

UNIT = 1000


def _held(lines: Lines[str], partition: int, offset: int, *, due_ms: int, append_ms: int = 0) -> None:
    lines.hold((partition, offset), append_ms, due_ms, 10, f"{partition}/{offset}")


def _settle(lines: Lines[str], now_ms: int, limit: int = 100) -> list[Move[str]]:
    moves = lines.choose(now_ms, limit)
    lines.committed(moves, lines.take(moves), {})
    return moves


def test_a_record_leaves_only_from_the_head() -> None:
    """A later record that is ready waits for the one before it, so that the committed offset says everything."""
    lines: Lines[str] = Lines(15, UNIT)
    lines.assign([0])
    _held(lines, 0, 5, due_ms=7_000)
    _held(lines, 0, 6, due_ms=0)
    assert lines.choose(2_999, 100) == []
    assert [m.source for m in lines.choose(3_000, 100)] == [(0, 5), (0, 6)]


def test_the_finest_wheel_goes_first_within_the_limit() -> None:
    """With more ready than fits a settle, coarser wheels wait: their margin is larger."""
    lines: Lines[str] = Lines(15, UNIT)
    lines.assign([3, 0])
    for offset in range(5):
        _held(lines, 3, offset, due_ms=0)
        _held(lines, 0, offset, due_ms=0)
    assert [m.source[0] for m in _settle(lines, 10, 7)] == [0, 0, 0, 0, 0, 3, 3]
    assert [m.source for m in _settle(lines, 10, 7)] == [(3, 2), (3, 3), (3, 4)]


def test_nothing_is_let_go_before_the_commit_is_known() -> None:
    """An aborted settle is chosen again, whole."""
    lines: Lines[str] = Lines(15, UNIT)
    lines.assign([0])
    _held(lines, 0, 0, due_ms=0)
    assert lines.choose(1, 100) == lines.choose(1, 100) != []


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.data())
def test_the_frontier_is_the_next_record_or_the_end(gaps: list[int], data: st.DataObject) -> None:
    """The committed offset is the first held record's, whatever gaps markers leave; with nothing held, the end of the partition's."""
    line: Line[str] = Lines[str](15, UNIT).owned.setdefault(0, Line(2))
    lines: Lines[str] = Lines(15, UNIT)
    lines.owned[0] = line
    offsets = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    for offset in offsets:
        _held(lines, 0, offset, due_ms=0)
    line.ended(offsets[-1] + 3)
    while len(line):
        moves = lines.choose(1, data.draw(st.integers(1, 10)))
        lines.committed(moves, lines.take(moves), {})
        left = [offset for offset in offsets if offset > moves[-1].source[1]]
        assert line.committed == (left[0] if left else offsets[-1] + 3)
    assert lines.take([]) == {}, "what is committed is not committed again"


def test_a_record_read_twice_is_held_once() -> None:
    """A record that the client returns again after a resume is not moved again (kafka-python#2011)."""
    lines: Lines[str] = Lines(15, UNIT)
    lines.assign([0])
    for offset in (0, 1, 1, 0, 2):
        _held(lines, 0, offset, due_ms=0)
    assert [m.source[1] for m in lines.choose(1, 100)] == [0, 1, 2]


def test_a_commit_after_a_revocation_touches_nothing() -> None:
    """A partition that went and came back is another line: what the old one had moved is not taken from it."""
    lines: Lines[str] = Lines(15, UNIT)
    lines.assign([0])
    _held(lines, 0, 0, due_ms=0)
    moves = lines.choose(1, 100)
    taken = lines.take(moves)
    lines.forget([0])
    lines.assign([0])
    _held(lines, 0, 0, due_ms=0)
    lines.committed(moves, taken, {})
    assert lines.still_owned(taken) == {}
    assert [m.source for m in lines.choose(1, 100)] == [(0, 0)]


def test_a_line_is_paused_with_hysteresis() -> None:
    """Paused when the head is more than two ticks away, resumed only within a tick of its time, and only on a tick."""
    lines: Lines[str] = Lines(15, UNIT)
    lines.assign([0])
    _held(lines, 0, 0, due_ms=7_000)
    assert lines.flow(2_600, 250, tick=True) == ([], [])
    assert lines.flow(1_000, 250, tick=False) == ([0], [])
    assert lines.flow(1_000, 250, tick=True) == ([], []), "said once"
    assert lines.flow(2_749, 250, tick=True) == ([], [])
    assert lines.flow(2_750, 250, tick=False) == ([], [])
    assert lines.flow(2_750, 250, tick=True) == ([], [0])


def test_a_full_line_is_paused_until_half_of_it_is_gone() -> None:
    """Count and bytes bound what is held, also of what is ready."""
    lines: Lines[str] = Lines(15, UNIT)
    lines.assign([0])
    for offset in range(5):
        lines.hold((0, offset), 0, 0, 1 << 20, "x")
    assert lines.flow(1, 250, tick=True) == ([0], [])
    _settle(lines, 1, 2)
    assert lines.flow(1, 250, tick=True) == ([], [])
    _settle(lines, 1, 1)
    assert lines.flow(1, 250, tick=True) == ([], [0])


def test_a_line_silent_since_its_assignment_is_resumed() -> None:
    """The client may keep a pause over a rebalance; a partition that gives not even its end is told to go on."""
    lines: Lines[str] = Lines(15, UNIT)
    lines.assign([0, 1])
    lines.owned[1].ended(0)
    assert lines.flow(0, 250, tick=True) == ([], [])
    assert lines.flow(2_999, 250, tick=True) == ([], [])
    assert lines.flow(3_000, 250, tick=True) == ([], [0])
    assert lines.flow(3_250, 250, tick=True) == ([], [])


def test_suspects_go_alone_and_a_culprit_waits_on_ever_coarser_wheels() -> None:
    """After a refused batch each of its records is tried alone; the one refused alone goes to a wheel, its neighbours go on."""
    lines: Lines[str] = Lines(15, UNIT)
    lines.assign([0, 1])
    for offset in range(3):
        _held(lines, 0, offset, due_ms=1)
    _held(lines, 1, 0, due_ms=1)
    assert not lines.refusals.note([(0, 0), (0, 1)], moves=4)
    assert [m.source for m in _settle(lines, 2)] == [(0, 0)]
    assert [m.source for m in lines.choose(2, 100)] == [(0, 1)]
    assert lines.refusals.note([(0, 1)], moves=1)
    (culprit,) = lines.choose(2, 100)
    assert culprit.wheel == 3
    lines.committed([culprit], lines.take([culprit]), {(0, 1): (1, 7)})
    assert [m.source for m in _settle(lines, 2)] == [(0, 2), (1, 0)]
    _held(lines, 1, 7, due_ms=1)
    assert lines.choose(5_999, 100) == [], "long past due, it waits out its wheel all the same"
    assert [(m.source, m.wheel) for m in lines.choose(6_000, 100)] == [((1, 7), None)]
    assert lines.refusals.note([(1, 7)], moves=1)
    assert lines.choose(6_000, 100)[0].wheel == 4
    lines.forget([1])
    assert not lines.refusals.counts
    assert not lines.refusals.shunned

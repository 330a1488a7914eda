"""What a lane holds: full at the limit, open again at half of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.flow import Flow


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40), st.integers(0, 400)), max_size=40))
def test_it_fills_at_the_limit_and_opens_at_half(steps: list[tuple[bool, int, int]]) -> None:
    """In any order of taking and giving back: full from the first limit that is reached until both counts are at half."""
    flow, held, full = Flow(100, 1000), [], False
    for take, records, size in steps:
        if take:
            held.append((records, size))
            flow.take(records, size)
        elif held:
            flow.give_back(*held.pop(0))
        count, total = sum(r for r, _ in held), sum(s for _, s in held)
        if count >= 100 or total >= 1000:
            full = True
        elif count <= 50 and total <= 500:
            full = False
        assert (flow.records, flow.bytes, flow.full) == (count, total, full)
        assert flow.wait_open(0) is not full


def test_between_half_and_full_it_stays_as_it_was() -> None:
    """Not full on the way up, full on the way down: reading does not stop and go with every record."""
    flow = Flow(10, 1000)
    flow.take(9, 0)
    assert not flow.full
    flow.take(1, 0)
    assert flow.full
    flow.give_back(4, 0)
    assert flow.full
    flow.give_back(1, 0)
    assert not flow.full


def test_either_limit_stops_reading_alone() -> None:
    """A few large records fill a lane as well as many small ones."""
    flow = Flow(10, 1000)
    flow.take(1, 1000)
    assert flow.full
    flow.give_back(1, 1000)
    assert flow.wait_open(0)

"""The arithmetic of due times and wheels, and the near heap."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.envelope import Record
from headrace.schedule import (
    DUE_HEADER,
    FINEST,
    UNIT_MS,
    NearHeap,
    Skew,
    due_of,
    gate_ms,
    margin_ms,
    next_wheel,
    partition_of,
    ready_ms,
    wheel_of,
    wheels_for,
)
from headrace.trail import read_trail

DAY_S = 86_400
WHEELS = wheels_for(DAY_S)


@pytest.mark.parametrize(("longest_s", "wheels"), [(5, 1), (7.9, 1), (8, 2), (3600, 10), (DAY_S, 15), (7 * DAY_S, 18)])
def test_wheels_for(longest_s: float, wheels: int) -> None:
    """The coarsest wheel spans more than the longest delay, and no wheel is idle by design."""
    assert wheels_for(longest_s) == wheels
    assert 2 ** (FINEST + wheels) > longest_s


@given(st.integers(4 * UNIT_MS, DAY_S * 1000), st.sampled_from([1, 100, 250, 1000]))
def test_a_delay_goes_to_the_wheel_that_spans_it(remaining_ms: int, unit_ms: int) -> None:
    """A remaining delay in [2ᵏ, 2ᵏ⁺¹) units goes to wheel k, the partition k − 2, wherever that wheel exists."""
    wheels = 40
    k = wheel_of(remaining_ms, wheels, unit_ms)
    assert unit_ms << k <= remaining_ms < unit_ms << (k + 1)
    assert partition_of(k) == k - 2
    assert wheel_of(remaining_ms, 1, unit_ms) == FINEST


def test_margins_follow_the_design() -> None:
    """The margin is max(1 s, 2ᵏ⁻² s)."""
    assert [margin_ms(k) for k in (2, 3, 4, 10)] == [1000, 2000, 4000, 256_000]


@given(st.integers(4001, DAY_S * 1000), st.data())
def test_the_way_of_a_record_ends_in_time(delay_ms: int, data: st.DataObject) -> None:
    """Read at most its wheel's margin late each time, a record reaches the retry topic not late, at most 4 s early, in few moves."""
    now, due, moves = 1_000_000, 1_000_000 + delay_ms, []
    while (k := next_wheel(due - now, WHEELS)) is not None:
        moves.append(k)
        gate = ready_ms(now, due, k)
        assert gate == gate_ms(now, k), "on the wheel that spans it, nothing is read before its gate"
        now = gate + data.draw(st.integers(0, margin_ms(k)))
    assert 0 <= due - now <= 4 * UNIT_MS
    assert moves == sorted(moves, reverse=True), "never to a coarser wheel"
    assert all(moves.count(k) <= 2 for k in moves), "at most twice on one wheel"


@given(st.integers(2, 16), st.integers(-DAY_S * 1000, 2 * DAY_S * 1000))
def test_a_misplaced_record_never_waits_past_its_due_time(k: int, remaining_ms: int) -> None:
    """At the head of too coarse a wheel, a record is ready a margin before its due time; long past, at once."""
    ready = ready_ms(0, remaining_ms, k)
    assert ready <= remaining_ms - margin_ms(k) or ready == gate_ms(0, k) <= remaining_ms


def test_a_record_beyond_every_wheel_stays_on_the_coarsest() -> None:
    """A due time in the year 9999 goes round the coarsest wheel; it neither stalls a wheel nor runs hot."""
    assert next_wheel(10**15, WHEELS) == FINEST + WHEELS - 1
    assert gate_ms(0, FINEST + WHEELS - 1) > 12 * 3600 * 1000


HOSTILE = st.one_of(
    st.none(), st.binary(max_size=30), st.sampled_from([b"", b"-5", b" 12", b"1e9", b"\xff", b"9" * 5000, b"NaN", "²".encode()])
)


@given(st.lists(st.tuples(st.sampled_from([DUE_HEADER, "x"]), st.one_of(HOSTILE, st.integers(0, 10**17).map(lambda n: b"%d" % n)))))
def test_the_wheels_read_a_due_time_as_the_lane_does(headers: list[tuple[str, bytes | None]]) -> None:
    """Whatever stands in the headers, wheels and lane agree on the due time, or a record would go to and fro between them."""
    record = Record("t", 0, 0, 0, None, b"", headers, 0)
    assert due_of(headers) == (read_trail(record, trusted=True).next_retry_at_ms or 0)


def test_no_headers_is_due_now() -> None:
    """A record without headers is past due: it goes back to the lane, which decides."""
    assert due_of(None) == due_of([]) == 0


def test_skew_moves_only_as_far_as_reports_contradict_it() -> None:
    """A slow report of an accurate broker leaves the estimate at 0; a clock that is off is found, in both directions."""
    skew = Skew()
    skew.saw(1010, 1000, 1500)
    assert skew.ms == 0
    skew.saw(3000, 1000, 1020)
    assert skew.ms == 1980
    skew.saw(400, 1000, 1020)
    assert skew.ms == -600
    skew.saw(5000, None, 4000)
    assert skew.ms == 1000


@given(st.lists(st.integers(0, 50)), st.integers(1, 7))
def test_the_heap_is_never_early_and_loses_none(dues: list[int], limit: int) -> None:
    """Popped as time goes by, every job comes out once, not before its due time, and equal due times in order of their pushes."""
    heap: NearHeap[tuple[int, int]] = NearHeap()
    for i, due in enumerate(dues):
        heap.push(due, (due, i), size=3)
    assert heap.size == 3 * len(dues)
    out: list[tuple[int, int]] = []
    for now in range(51):
        while batch := heap.pop_due(now, limit):
            assert len(batch) <= limit
            assert all(due <= now for due, _ in batch)
            out += batch
        following = heap.next_due_ms()
        assert following is None or following > now
    assert out == sorted((due, i) for i, due in enumerate(dues))
    assert len(heap) == heap.size == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2))))
def test_dropping_a_partition_keeps_the_others_in_order(jobs: list[tuple[int, int]]) -> None:
    """After `drop` the rest still comes out by due time, and the size is right."""
    heap: NearHeap[tuple[int, int]] = NearHeap()
    for job in jobs:
        heap.push(job[0], job, size=1)
    kept = [job for job in jobs if job[1] != 1]
    assert len(heap.drop(lambda job: job[1] == 1)) == len(jobs) - len(kept)
    assert heap.size == len(kept)
    assert heap.pop_due(9, 10**6) == sorted(kept, key=lambda job: job[0])


def test_a_full_heap_is_cheap() -> None:
    """24,000 jobs of one partition's window go in and out in well under a second."""
    heap: NearHeap[object] = NearHeap()
    begun = time.perf_counter()
    for i in range(24_000):
        heap.push(i * 7919 % 4000, object())
    assert len(heap.pop_due(4000, 24_000)) == 24_000
    assert time.perf_counter() - begun < 0.5

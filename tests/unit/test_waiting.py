"""A lane's schedule: nothing early, nothing lost, what is far moves to a wheel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.envelope import Job, Position, Record, Trail
from headrace.errors import ErrorClass, Failure
from headrace.outcome import Moved
from headrace.schedule import CLOCKS_APART_MS, wheels_for
from headrace.waiting import ByDueTime, InOrder

NOW = 1_800_000_000_000
NEAR, LONGEST = 4_000, 86_400_000
WHEELS = wheels_for(LONGEST / 1000)
FAULT = Failure(ErrorClass.UNDECODABLE, "no JSON")

dues = st.none() | st.integers(-10_000, 10_000) | st.integers(-LONGEST, 3 * LONGEST)
arrivals = st.lists(st.lists(st.tuples(dues, st.booleans()), max_size=6), max_size=6)


def a_job(offset: int, due_ms: int | None = None, *, fault: bool = False) -> Job:
    trail = Trail(Position("retry", 0, offset), next_retry_at_ms=due_ms)
    return Job(Record("retry", 0, offset, 1, None, b"{}", [], NOW), trail, fault=FAULT if fault else None)


def by_due_time() -> ByDueTime:
    return ByDueTime(NEAR, LONGEST, WHEELS)


@given(arrivals, st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 5)), max_size=12))
def test_nothing_is_early_and_nothing_is_lost(batches: list[list[tuple[int | None, bool]]], steps: list[tuple[int, int]]) -> None:
    """However jobs arrive and are taken: each comes out once, as taken, moved or dropped; none taken before it is due."""
    schedule, now, offset = by_due_time(), NOW, 0
    sent: dict[int, Job] = {}
    taken: list[Job] = []
    moved: list[Job] = []
    for batch, (step_ms, limit) in zip(batches + [[]] * len(steps), steps + [(0, 1)] * len(batches), strict=False):
        jobs = [a_job(offset + n, None if ahead is None else now + ahead, fault=fault) for n, (ahead, fault) in enumerate(batch)]
        offset += len(jobs)
        sent |= {job.record.offset: job for job in jobs}
        for settlement in schedule.add(jobs, now):
            assert (settlement.job.trail.next_retry_at_ms or 0) - now > NEAR
            moved.append(settlement.job)
        now += step_ms
        out = schedule.take(limit, now)
        assert len(out) <= limit
        for job in out:
            due_ms = job.trail.next_retry_at_ms or 0
            assert due_ms <= now or job.fault is not None or due_ms - now > LONGEST
        taken += out
    left = schedule.drop(lambda _: True)
    assert len(schedule) == 0
    assert sorted(job.record.offset for job in taken + moved + left) == sorted(sent)


@given(st.lists(st.integers(-5_000, NEAR), min_size=1, max_size=30))
def test_what_is_near_comes_out_in_order_of_due_time(ahead: list[int]) -> None:
    """The longest due first; equal ones in the order they were read."""
    schedule = by_due_time()
    assert schedule.add([a_job(n, NOW + ms) for n, ms in enumerate(ahead)], NOW) == []
    assert schedule.next_due_ms() == NOW + min(ahead)
    out = schedule.take(100, NOW + NEAR)
    assert [job.record.offset for job in out] == [n for n, _ in sorted(enumerate(ahead), key=lambda pair: pair[1])]


@pytest.mark.parametrize(
    ("ahead_ms", "wheel"),
    [(NEAR + 1, 2), (8_000, 3), (15_999, 3), (16_000, 4), (3_600_000, 11), (LONGEST, 16), (LONGEST + CLOCKS_APART_MS, 16)],
)
def test_what_is_far_moves_to_its_wheel(ahead_ms: int, wheel: int) -> None:
    """Wheel k holds 2ᵏ to 2ᵏ⁺¹ s; a producer's clock a minute ahead of ours still finds the coarsest."""
    schedule = by_due_time()
    job = a_job(0, NOW + ahead_ms)
    (settlement,) = schedule.add([job], NOW)
    assert settlement.job is job
    assert settlement.outcome == Moved(wheel)
    assert settlement.token is None
    assert len(schedule) == 0


def test_due_within_four_seconds_waits_here() -> None:
    """At the edge of the near horizon nothing is moved, and nothing is taken a millisecond early."""
    schedule = by_due_time()
    assert schedule.add([a_job(0, NOW + NEAR)], NOW) == []
    assert schedule.take(10, NOW + NEAR - 1) == []
    assert len(schedule.take(10, NOW + NEAR)) == 1


def test_what_can_only_die_waits_for_nothing() -> None:
    """A fault, and a due time beyond the longest delay, go on at once."""
    schedule = by_due_time()
    jobs = [a_job(0, NOW + 60_000, fault=True), a_job(1, NOW + LONGEST + CLOCKS_APART_MS + 1)]
    assert schedule.add(jobs, NOW) == []
    assert schedule.take(10, NOW) == jobs


@given(st.lists(st.integers(0, 5), max_size=8), st.lists(st.integers(1, 4), max_size=20))
def test_in_order_gives_back_what_it_got(batches: list[int], limits: list[int]) -> None:
    """Main passes through, whatever the due time: same order, at most as many as asked for."""
    schedule, offset = InOrder(), 0
    for size in batches:
        assert schedule.add([a_job(offset + n, NOW + 10**9) for n in range(size)], NOW) == []
        offset += size
    assert schedule.next_due_ms() is None
    out = [schedule.take(limit, NOW) for limit in limits]
    assert all(len(part) <= limit for part, limit in zip(out, limits, strict=True))
    assert [j.record.offset for part in [*out, schedule.drop(lambda _: True)] for j in part] == list(range(offset))
    assert len(schedule) == 0


def test_what_is_unwanted_goes_and_the_rest_stays() -> None:
    """A partition that left takes its jobs along; the others keep their order and their times."""
    for schedule in (InOrder(), by_due_time()):
        schedule.add([a_job(n, NOW + n) for n in range(6)], NOW)
        dropped = schedule.drop(lambda job: job.record.offset % 2 == 0)
        assert sorted(job.record.offset for job in dropped) == [0, 2, 4]
        assert len(schedule) == 3
        assert [job.record.offset for job in schedule.take(10, NOW + 10)] == [1, 3, 5]

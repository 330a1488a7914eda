"""Whether a partition makes progress, judged over samples made by hand; and what the watchdog tells of it, and when."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import Settings
from headrace.oversight import bounds_of
from headrace.vitals import AtWork, Call, LaneSample, PartitionSample, Reading, Standing, ThreadSample
from headrace.watch.judgement import MARGIN_S, Bounds, Judged, explanation, hung, judge, near_retention
from headrace.watch.watchdog import FULL_AGAIN_S, RETENTION_AGAIN_S, Watchdog, standing_at
from headrace.wheels.lines import Lines
from headrace.wheels.sample import sampled

BOUNDS = Bounds(call_s=60.0, quiet_s=100.0)
NOW_MS = 1_800_000_000_000
IDLE = Standing(frontier=10, in_flight=0, unread=0, span=0, map_chars=25, since=0.0, settled_at=0.0)
AT_END = Reading(reached=10, end=10)
ONE = IDLE._replace(in_flight=1, span=1)


def partition(standing: Standing = IDLE, reading: Reading = AT_END, call: Call | None = None, number: int = 0) -> PartitionSample:
    return PartitionSample("main", number, standing, reading, call)


def lane(*partitions: PartitionSample, **fields: Any) -> LaneSample:
    return LaneSample("main", partitions, **({"settled_at": 0.0, "work": AtWork(concurrency=4)} | fields))


def judged(samples: Mapping[float, tuple[LaneSample, PartitionSample]], *, bounds: Bounds = BOUNDS) -> Judged:
    """The last of a series of looks."""
    found: Judged | None = None
    for now, (one, sample) in samples.items():
        found = judge(found, one, sample, now, bounds)
    assert found is not None
    return found


def steady(one: LaneSample, sample: PartitionSample, until: int) -> Judged:
    """The same picture, looked at once a second."""
    return judged({float(now): (one, sample) for now in range(until + 1)})


def test_idle_is_no_stall_however_long() -> None:
    """Nothing to do: read to the end, everything resolved."""
    sample = partition()
    found = steady(lane(sample), sample, 10_000)
    assert (found.stalled, found.paused, sample.lag) == (None, None, 0)


@pytest.mark.parametrize(
    ("standing", "reading", "held_by"),
    [
        (ONE, AT_END, "1 records from offset 10 on wait to be called"),
        (IDLE, Reading(10, 500), "490 records from offset 10 on are not read"),
        (IDLE._replace(unread=3), AT_END, "not read"),
        (IDLE, Reading(-1, -1), "nothing was heard of it since it was assigned"),
        (IDLE._replace(restored=False), AT_END, "nothing was heard of it since it was assigned"),
        (ONE, Reading(10, 10, held=7, no_room=True), "the window is full behind it"),
    ],
)
def test_something_to_do_and_no_settle_is_a_stall_at_the_bound(standing: Standing, reading: Reading, held_by: str) -> None:
    """Lag without a settle and without a known reason: not a moment before the bound, and always after it."""
    sample = partition(standing, reading)
    assert steady(lane(sample), sample, 100).stalled is None
    found = steady(lane(sample), sample, 101)
    assert found.stalled is not None
    assert held_by in found.stalled.by
    assert found.stalled.remedy


def test_the_call_that_holds_it_is_named() -> None:
    """A call past its deadline is what an operator must know of, with the offset and its age."""
    sample = partition(ONE, Reading(10, 10, no_room=True), Call(10, 0.0))
    found = steady(lane(sample), sample, 101)
    assert found.stalled is not None
    assert found.stalled.by == "offset 10 has been called for 101 s; the window is full behind it"


def test_outcomes_that_wait_are_what_holds_it() -> None:
    """The broker refuses what is settled: the remedy is there, not at the handler."""
    sample = partition(ONE)
    found = steady(lane(sample, unsettled=12), sample, 101)
    assert found.stalled is not None
    assert found.stalled.by == "12 outcomes wait for a settle"


@pytest.mark.parametrize("call_s", [1, 59, 60])
def test_a_call_within_its_time_out_explains_itself(call_s: int) -> None:
    """The bound is a call's longest time and what settling may add: a record called at once and settled after it is no stall."""
    before = partition(ONE, call=Call(10, 0.0))
    after = partition(IDLE._replace(frontier=11, settled_at=float(call_s)), Reading(11, 11))
    looks = {float(now): (lane(before), before) for now in range(call_s)} | {float(call_s): (lane(after), after)}
    found = None
    for now, (one, sample) in looks.items():
        found = judge(found, one, sample, now, BOUNDS)
        assert found.stalled is None
        assert found.late is None


def test_a_call_past_its_deadline_is_named_even_where_others_are_settled() -> None:
    """The handler swallows its deadline: its partition settles the rest, and its window fills, slowly; it is said long before."""
    looks = {}
    for now in range(int(BOUNDS.call_s + MARGIN_S) + 2):
        sample = partition(ONE._replace(settled_at=float(now)), call=Call(10, 0.0))
        looks[float(now)] = (lane(sample, settled_at=float(now)), sample)
    found = judged(looks)
    assert found.late == 10
    assert found.stalled is None


@pytest.mark.parametrize("settled_every", [1, 50, 99])
def test_what_settles_goes_on(settled_every: int) -> None:
    """A backlog of any size is no stall while some of it is settled within each bound."""
    found = None
    for now in range(1_000):
        settled = float(now - now % settled_every)
        sample = partition(ONE._replace(in_flight=20_000, settled_at=settled))
        found = judge(found, lane(sample, settled_at=settled), sample, float(now), BOUNDS)
        assert found.stalled is None


def test_a_settle_of_another_partition_excuses_nothing() -> None:
    """The silent stall after a rebalance: one partition is not read while its neighbours go on."""
    sample = partition(IDLE, Reading(10, 500))
    found = judged({float(now): (lane(sample, settled_at=float(now)), sample) for now in range(102)})
    assert found.stalled is not None


@pytest.mark.parametrize("why", ["stop", "too many records wait for a retry", "every target is shut", "Redis is out of reach"])
def test_a_pause_with_a_reason_is_no_stall_and_says_since_when(why: str) -> None:
    """Whatever the lag, and however long."""
    sample = partition(ONE, Reading(10, 1_000, held=400))
    found = steady(lane(sample, pauses=(why,)), sample, 5_000)
    assert found.stalled is None
    assert found.paused == (why, 0.0)


def test_after_a_pause_the_whole_bound_is_there_again() -> None:
    """An hour's pause ends: what it held has as much time as anything else."""
    sample = partition(ONE)
    looks = {float(now): (lane(sample, pauses=("stop",) if now <= 3_600 else ()), sample) for now in range(3_600 + 102)}
    assert judged({now: look for now, look in looks.items() if now <= 3_700}).stalled is None
    assert judged(looks).stalled is not None


def test_one_reason_after_another_begins_anew() -> None:
    """Paused since and why belong together."""
    sample = partition(ONE)
    looks = {float(now): (lane(sample, pauses=("a",) if now < 50 else ("b",)), sample) for now in range(90)}
    assert judged(looks).paused == ("b", 50.0)


def test_waiting_for_a_caller_is_no_stall_while_the_lane_settles() -> None:
    """Every caller is busy with other partitions: its turn comes. Once nothing is settled any more, that is no reason."""
    sample = partition(ONE)
    busy = AtWork(busy=4, concurrency=4)
    looks = {float(now): (lane(sample, work=busy, settled_at=float(now)), sample) for now in range(1_000)}
    found = judged(looks)
    assert (found.stalled, found.paused and found.paused.why) == (None, "every caller is busy")
    stuck = {float(now): (lane(sample, work=busy, settled_at=999.0), sample) for now in range(1_000, 1_202)}
    assert judged(looks | stuck).stalled is not None


def test_a_full_lane_explains_what_it_has_no_room_for_while_it_settles() -> None:
    """Read-ahead is bounded for the lane as a whole: a partition may have nothing in it."""
    sample = partition(IDLE, Reading(10, 5_000, held=250))
    looks = {float(now): (lane(sample, full=True, settled_at=float(now)), sample) for now in range(1_000)}
    assert judged(looks).stalled is None
    assert steady(lane(sample, full=True), sample, 301).stalled is not None


def test_nothing_due_explains_a_heap() -> None:
    """The retry lane holds what is not due, and has nothing else to do."""
    sample = partition(ONE)
    resting = AtWork(waiting=1, late_ms=-3_000)
    assert explanation(lane(sample, work=resting), sample, 1.0, BOUNDS) == "nothing is due yet"
    assert explanation(lane(sample, work=replace(resting, late_ms=5)), sample, 1.0, BOUNDS) is None
    unread = partition(ONE, Reading(10, 99))
    assert explanation(lane(unread, work=resting), unread, 1.0, BOUNDS) is None, "there is something to read"


def test_a_partition_newly_assigned_has_the_whole_bound() -> None:
    """Whatever its last owner did."""
    sample = partition(ONE._replace(since=500.0))
    assert judge(None, lane(sample), sample, 500.0, BOUNDS).quiet_since == 500.0
    assert judged({float(now): (lane(sample), sample) for now in range(500, 601)}).stalled is None


@given(st.lists(st.tuples(st.floats(0.5, 30.0), st.booleans(), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_stalled_means_quiet_for_longer_than_the_bound(steps: list[tuple[float, bool, bool, bool, bool]]) -> None:
    """Over any history: stalled exactly if, for longer than the bound, there was lag at each look, no settle and no reason."""
    now, quiet, settled_at, found = 0.0, None, 0.0, None
    for pause_s, lags, settles, holds, shut in steps:
        now += pause_s
        settled_at = now if settles else settled_at
        standing = (ONE if lags else IDLE)._replace(settled_at=settled_at)
        sample = partition(standing)
        pauses = tuple(why for why, there in (("hold", holds), ("shut", shut)) if there)
        found = judge(found, lane(sample, pauses=pauses), sample, now, BOUNDS)
        quiet = now if quiet is None or pauses or not lags else max(quiet, settled_at)
        assert bool(found.stalled) == (now - found.quiet_since > BOUNDS.quiet_s)
        assert found.quiet_since == quiet


def test_a_thread_hangs_after_its_patience_and_not_over_a_freeze() -> None:
    """Time in which the whole process stood still is not held against its threads."""
    threads = [ThreadSample("source", 0.0, 30.0), ThreadSample("settle", 25.0, 30.0)]
    assert [(thread.name, still_s) for thread, still_s in hung(threads, 40.0, 0.0)] == [("source", 40.0)]
    assert hung(threads, 40.0, 39.0) == []


@pytest.mark.parametrize(
    ("age", "retention", "near"), [(79, 100, False), (80, 100, True), (500, 100, True), (10**9, -1, False), (5, 0, False)]
)
def test_eighty_per_cent_of_the_retention(age: int, retention: int, near: bool) -> None:
    """-1 keeps for ever; a topic nothing is known of warns of nothing."""
    samples = [partition(), partition(ONE, AT_END._replace(oldest_ms=NOW_MS - age), number=1)]
    found = near_retention(samples, retention, NOW_MS)
    assert (found is not None) == near
    if found is not None:
        assert (found[0].partition, found[1]) == (1, age)


class Bench:
    """A watchdog over one lane made by hand."""

    def __init__(self, retention_ms: int = -1) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.sample = lane()
        self.threads: list[ThreadSample] = []
        self.watchdog = Watchdog(
            [lambda: self.sample], lambda: self.threads, {"main": BOUNDS}, retention_ms={"main": retention_ms},
            now_ms=lambda: NOW_MS, tell=lambda name, fields: self.told.append((name, dict(fields))),
        )  # fmt: skip
        self.now = self.watchdog.report.at

    def look(self, seconds: int, *partitions: PartitionSample, **fields: Any) -> None:
        self.sample = lane(*partitions, **({"settled_at": self.now} | fields))
        for _ in range(seconds):
            self.now += 1
            self.watchdog.look(self.now)

    def names(self) -> list[str]:
        return [name for name, _ in self.told]


def test_a_stall_is_told_once_and_so_is_its_end() -> None:
    """With lane, topic, partition, since when, and what holds it."""
    bench = Bench()
    bench.look(300, partition(ONE))
    assert bench.names() == ["stalled"]
    fields = bench.told[0][1]
    assert (fields["lane"], fields["topic"], fields["partition"], fields["lag"]) == ("main", "main", 0, 1)
    assert fields["held_by"] == "1 records from offset 10 on wait to be called"
    assert [one.key for one in bench.watchdog.report.stalled] == [("main", 0)]
    bench.look(5, partition(IDLE))
    assert bench.names() == ["stalled", "progressing"]
    assert bench.watchdog.report.stalled == []


def test_a_stalled_partition_that_goes_is_no_longer_ours_to_tell_of() -> None:
    """Revoked: whoever has it now watches it."""
    bench = Bench()
    bench.look(102, partition(ONE))
    bench.look(5)
    assert bench.names() == ["stalled"]
    assert bench.watchdog.report.stalled == []


def test_a_process_that_stood_still_is_not_stalled_when_it_goes_on() -> None:
    """SIGSTOP, a suspended machine: nobody is to blame, and everything has its whole bound again."""
    bench = Bench()
    bench.threads = [ThreadSample("source", bench.now, 30.0)]
    bench.look(10, partition(ONE))
    bench.now += 600
    bench.look(20, partition(ONE))
    assert bench.names() == []
    assert bench.watchdog.report.hung == ()


def test_a_full_window_is_named_now_and_then() -> None:
    """With its head, its age and the remedy; not at every look, and not as a stall."""
    bench = Bench()
    for _ in range(int(FULL_AGAIN_S) + 5):
        bench.look(1, partition(ONE._replace(span=24_000, settled_at=bench.now), Reading(10, 90_000, 250, no_room=True)))
    assert bench.names() == ["window_full", "window_full"]
    fields = bench.told[0][1]
    assert (fields["head"], fields["behind"], fields["remedy"]) == (10, 24_000, "more partitions, or a shorter time-out")
    assert bench.told[1][1]["head_age_s"] >= FULL_AGAIN_S - 1


def test_an_overdue_call_is_told_once() -> None:
    """By its offset; the next one is another."""
    bench = Bench()
    for offset in (10, 11):
        began = bench.now
        for _ in range(80):
            bench.look(1, partition(ONE._replace(settled_at=bench.now), call=Call(offset, began)))
    assert [(name, fields["offset"]) for name, fields in bench.told] == [("call_overdue", 10), ("call_overdue", 11)]


def test_a_hung_thread_is_told_with_where_it_stands() -> None:
    """Files, lines and functions; once, and once when it turns again."""
    bench = Bench()
    bench.threads = [ThreadSample("event loop", bench.now, 5.0, threading.get_ident())]
    bench.look(10)
    bench.threads = [ThreadSample("event loop", bench.now, 5.0)]
    bench.look(2)
    assert bench.names() == ["thread_hung", "thread_turns"]
    assert "watchdog.py" in bench.told[0][1]["at"]


def test_where_a_thread_stands_shows_no_values() -> None:
    """What a frame holds may be a prompt."""
    secret = "the prompt"  # noqa: F841  it is in this frame
    assert "the prompt" not in standing_at(threading.get_ident())
    assert standing_at(-1) == standing_at(None) == "unknown"


def test_records_near_their_retention_are_told_once_an_hour() -> None:
    """Before they are lost, with the partition and the age of the oldest."""
    bench = Bench(retention_ms=1_000_000)
    old = partition(ONE._replace(in_flight=1), AT_END._replace(oldest_ms=NOW_MS - 900_000), number=3)
    for _ in range(int(RETENTION_AGAIN_S) + 5):
        bench.look(1, replace(old, standing=old.standing._replace(settled_at=bench.now)))
    assert bench.names() == ["retention_near", "retention_near"]
    assert (bench.told[0][1]["partition"], bench.told[0][1]["oldest_s"], bench.told[0][1]["retention_s"]) == (3, 900, 1_000)


def test_a_watchdog_that_dies_says_so() -> None:
    """Its report grows old then, and the probe fails by that."""
    bench = Bench()
    bench.watchdog._lanes = [lambda: 1 / 0]  # type: ignore[list-item]
    bench.watchdog.start()
    assert bench.watchdog.thread.join(10)
    assert isinstance(bench.watchdog.thread.failure, ZeroDivisionError)
    assert bench.names() == ["watchdog_failed"]


def test_the_bound_is_a_call_a_takeover_and_two_transactions() -> None:
    """Of those lanes that call; a handler's own time-out counts where there is one."""
    found = bounds_of(Settings(), ["main", "dlq", "wheels"])
    assert found["main"] == Bounds(60.0, 60.0 + 30.0 + 24.0)
    assert found["dlq"] == found["wheels"] == Bounds(0.0, 54.0)
    assert bounds_of(Settings(handler="a:b"), ["retry"])["retry"].call_s == 300.0
    assert bounds_of(Settings(handler="a:b", handler_timeout_s=7.0), ["retry"])["retry"].call_s == 7.0


class Letter:
    def timestamp(self) -> tuple[int, int]:
        return 2, NOW_MS - 9_000


def test_a_wheel_lags_where_its_heads_time_has_come() -> None:
    """What waits for its time is no lag; one whose time has come and that is not moved is a stall like any other."""
    lines: Lines[Any] = Lines(wheels=3, unit_ms=1_000)
    lines.assign([0, 1])
    lines.owned[0].ended(0)
    lines.hold((1, 5), NOW_MS - 9_000, NOW_MS + 60_000, 10, Letter())

    def looked(now_ms: int) -> LaneSample:
        return sampled(lines.owned, "later", now_ms, settled_at=0.0, away=False)

    early = looked(NOW_MS - 8_000)
    assert [(p.partition, p.heard, p.lag) for p in early.partitions] == [(0, True, 0), (1, True, 0)]
    assert early.work.late_ms is not None
    assert early.work.late_ms < 0
    late = looked(NOW_MS + 3_600_000)
    assert [p.lag for p in late.partitions] == [0, 1]
    assert late.partitions[1].reading.oldest_ms == NOW_MS - 9_000
    overdue = replace(late.partitions[1], standing=late.partitions[1].standing._replace(since=0.0))
    assert steady(late, overdue, 101).stalled is not None
    assert sampled(lines.owned, "later", NOW_MS, settled_at=0.0, away=True).pauses


@pytest.mark.parametrize(
    "sample",
    [
        partition(IDLE, Reading(10, 500)),  # it is not read at all: there is no turn it could wait for
        partition(ONE, call=Call(10, 0.0)),  # its turn has come, and does not end
    ],
)
def test_busy_callers_excuse_only_who_waits_for_one(sample: PartitionSample) -> None:
    """A lane under full load settles all the time; the one partition that stands must be seen all the same."""
    busy = AtWork(busy=4, concurrency=4)
    looks = {float(now): (lane(sample, work=busy, settled_at=float(now)), sample) for now in range(102)}
    assert judged(looks).stalled is not None

"""The way of a record through a lane, over fakes: each is given back once, whichever way it takes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from headrace.admission import Admission, Ends, Go, Gone, Ready
from headrace.assignment import Assignment
from headrace.envelope import Attempt, Job, Record, Response, Trail
from headrace.errors import ErrorClass, Failure
from headrace.flow import Flow
from headrace.offsets import Tracker
from headrace.outcome import Completed, Dead, Deferred, Duplicate, Moved, Outcome, Settlement
from headrace.pipeline import Lane, Pipeline
from headrace.waiting import ByDueTime, InOrder, Waiting
from tests.support.clock import HandClock

NOW = 1_800_000_000_000
A, B = ("main", 0), ("main", 1)
DONE = Completed(Response(b"{}"), (Attempt(None, 1, "p"),), NOW, 1)
DUPLICATE = Duplicate("completed", NOW, NOW)


class FakeAdmission:
    """Lets everybody go, or says what `answer` says; `gate` can hold it in the middle."""

    def __init__(self) -> None:
        self.answer: Callable[[Job], Admission] = lambda job: Go(job, "token")
        self.batches: list[list[int]] = []
        self.released: Counter[int] = Counter()
        self.kept: set[int] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.emit: Callable[[list[Admission]], None] | None = None

    async def admit(self, jobs: Sequence[Job]) -> list[Admission]:
        self.batches.append([job.record.offset for job in jobs])
        await self.gate.wait()
        return [self.answer(job) for job in jobs]

    async def run(self, emit: Callable[[list[Admission]], None]) -> None:
        self.emit = emit
        await asyncio.Event().wait()

    def concluded(self, go: Go, outcome: Outcome) -> Settlement | None:
        return None if go.job.record.offset in self.kept else Settlement(go.job, outcome, go.token)

    def release(self, jobs: Sequence[Job]) -> None:
        self.released.update(job.record.offset for job in jobs)

    async def close(self) -> None: ...

    async def settled(self, settlements: Sequence[Settlement]) -> None: ...

    async def hand_over(self, settlements: Sequence[Settlement]) -> None: ...


class FakeSettler:
    """Keeps what is put, until the test settles it."""

    def __init__(self) -> None:
        self.put_: list[Settlement] = []
        self.left = 0

    def put(self, settlement: Settlement) -> None:
        self.put_.append(settlement)

    @property
    def waiting(self) -> int:
        return len(self.put_) - self.left


class Flows(Flow):
    """Counts what is given back."""

    def __init__(self) -> None:
        super().__init__(1_000_000, 1 << 40)
        self.back: list[tuple[int, int]] = []

    def give_back(self, records: int, size: int) -> None:
        self.back.append((records, size))
        super().give_back(records, size)


class Bench:
    """A pipeline whose calls end when told."""

    def __init__(self, *, schedule: Waiting | None = None, concurrency: int = 4, unsettled: int = 1_000) -> None:
        self.clock, self.flow, self.admission, self.settler = HandClock(NOW), Flows(), FakeAdmission(), FakeSettler()
        self.assignment = Assignment()
        self.epochs = self.assignment.assigned([A, B], None)
        for tp, epoch in self.epochs.items():
            self.assignment.restored(tp, epoch, Tracker(0), 0)
        self.open = True
        self.began: list[int] = []
        self.ends: dict[int, asyncio.Future[Outcome]] = {}
        self.at_once: Outcome | None = DONE
        self.told: list[str] = []
        self.sent = 0
        lane = Lane("main", InOrder() if schedule is None else schedule, self.decode, self.admission, self.conclude, lambda: self.open)
        self.pipeline = Pipeline(
            lane, assignment=self.assignment, flow=self.flow, settler=self.settler, clock=self.clock, concurrency=concurrency,
            unsettled=unsettled, tell=lambda name, _: self.told.append(name),
        )  # fmt: skip

    def decode(self, record: Record) -> Job:
        due = next((int(value or b"0") for name, value in record.headers if name == "due"), None)
        return Job(record, Trail(record.position, next_retry_at_ms=due), str(record.offset), "f")

    async def conclude(self, job: Job) -> Outcome:
        self.began.append(job.record.offset)
        if self.at_once is not None:
            return self.at_once
        return await self.ends.setdefault(job.record.offset, asyncio.get_running_loop().create_future())

    def send(self, count: int, *, tp: tuple[str, int] = A, due_ms: int | None = None) -> list[int]:
        """Deliver records as the source does."""
        offsets = list(range(self.sent, self.sent + count))
        self.sent += count
        headers = [] if due_ms is None else [("due", str(due_ms).encode())]
        records = [Record(*tp, offset, self.epochs[tp], b"key", b"value", headers, NOW) for offset in offsets]
        self.flow.take(count, 8 * count)
        self.pipeline.deliver(records)
        return offsets

    def settle(self) -> None:
        """Everything put is committed."""
        waiting = self.settler.put_[self.settler.left :]
        self.settler.left = len(self.settler.put_)
        self.pipeline.left(waiting)

    def outcomes(self) -> dict[int, Outcome]:
        return {s.position.offset: s.outcome for s in self.settler.put_}

    def all_given_back(self) -> bool:
        """Whether every record was settled or released, none twice, and its room given back once."""
        fates = self.admission.released + Counter(s.position.offset for s in self.settler.put_[: self.settler.left])
        once = fates == Counter(range(self.sent))
        return once and (self.flow.records, self.flow.bytes) == (0, 0)


@contextlib.asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[Bench]:
    """Run the pipeline for the block, then cancel it."""
    task = asyncio.create_task(bench.pipeline.run())
    await idle()
    yield bench
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def idle() -> None:
    """Let everything that can go on do so: nothing here waits for the outside."""
    for _ in range(60):
        await asyncio.sleep(0)


async def test_each_record_is_called_and_settled_once() -> None:
    """More than one admission's batch, with the token it was admitted under."""
    async with running(Bench()) as bench:
        bench.send(1_200)
        for _ in range(20):
            await idle()
            bench.settle()
        assert sorted(bench.began) == list(range(1_200))
        assert all(s.token == "token" and s.outcome is DONE for s in bench.settler.put_)
        assert max(map(len, bench.admission.batches)) <= 500
        assert bench.all_given_back()


async def test_no_more_calls_at_once_than_the_concurrency() -> None:
    """The next begins when one has ended."""
    async with running(Bench(concurrency=3)) as bench:
        bench.at_once = None
        bench.send(10)
        await idle()
        assert bench.began == [0, 1, 2]
        assert bench.pipeline.in_flight == 3
        bench.ends[1].set_result(DONE)
        await idle()
        assert bench.began == [0, 1, 2, 3]
        assert list(bench.outcomes()) == [1]


async def test_what_ends_at_admission_is_settled_without_a_call() -> None:
    """A duplicate, and an answer an earlier owner left."""
    async with running(Bench()) as bench:
        bench.admission.answer = lambda job: Ends(job, DUPLICATE) if job.record.offset else Ready(job, "t", DONE)
        bench.send(2)
        await idle()
        bench.settle()
        assert bench.began == []
        assert bench.outcomes() == {0: DONE, 1: DUPLICATE}
        assert [s.token for s in bench.settler.put_] == ["t", None]
        assert bench.all_given_back()


async def test_what_went_while_it_waited_is_dropped() -> None:
    """Nothing is settled; its room is given back."""
    async with running(Bench()) as bench:
        bench.admission.answer = Gone
        bench.send(3)
        await idle()
        assert bench.settler.put_ == []
        assert bench.all_given_back()


async def test_what_admission_lets_go_later_goes_on() -> None:
    """Copies wait inside the guard, and come out by themselves."""
    async with running(Bench()) as bench:
        assert bench.admission.emit is not None
        record = Record(*A, 0, bench.epochs[A], b"key", b"value", [], NOW)
        bench.sent = 1
        bench.flow.take(1, 8)
        bench.admission.emit([Go(bench.decode(record), "late")])
        await idle()
        bench.settle()
        assert bench.settler.put_[0].token == "late"
        assert bench.all_given_back()


@pytest.mark.parametrize("how", ["gone", "leaving", "anew"])
async def test_a_partition_that_left_begins_nothing(how: str) -> None:
    """Before admission and after it: dropped, and never called; the other partition's go on."""
    async with running(Bench(concurrency=1)) as bench:
        bench.at_once = None
        bench.send(1, tp=B)
        await idle()
        queued = bench.send(2)
        await idle()
        bench.admission.gate.clear()
        admitting = bench.send(2)
        await idle()
        waiting = bench.send(2)
        kept = bench.send(1, tp=B)
        if how == "leaving":
            bench.assignment.leaving([A], None)
        else:
            bench.assignment.gone([A], None)
        if how == "anew":
            bench.assignment.assigned([A], None)
        bench.at_once = DONE
        bench.admission.gate.set()
        bench.ends[0].set_result(DONE)
        await idle()
        bench.settle()
        assert bench.began == [0, *kept]
        assert set(bench.admission.released) == {*queued, *admitting, *waiting}
        assert bench.all_given_back()
        assert "interrupted" in bench.told


async def test_what_leaves_is_dropped_at_once() -> None:
    """While every caller is busy too: its room is given back, and its claims lapse, when ownership changes and not at the next free caller."""
    for schedule in (InOrder(), ByDueTime(4_000, 86_400_000, 16)):
        async with running(Bench(concurrency=1, schedule=schedule)) as bench:
            bench.at_once = None
            bench.send(1, tp=B)
            await idle()
            gone = bench.send(3, due_ms=NOW)
            kept = bench.send(2, tp=B, due_ms=NOW)
            await idle()
            gone += bench.send(2, due_ms=NOW + 2_000)
            bench.admission.gate.clear()
            await idle()
            bench.assignment.gone([A], None)
            bench.pipeline.ownership_changed()
            bench.admission.gate.set()
            await idle()
            assert bench.admission.released == Counter(gone)
            bench.at_once = DONE
            bench.ends[0].set_result(DONE)
            await idle()
            bench.settle()
            assert bench.began == [0, *kept]
            assert bench.all_given_back()


async def test_a_call_in_flight_goes_on_when_its_partition_leaves() -> None:
    """It is paid for: its outcome is put, to be settled or handed over."""
    async with running(Bench()) as bench:
        bench.at_once = None
        bench.send(1)
        await idle()
        bench.assignment.gone([A], None)
        bench.ends[0].set_result(DONE)
        await idle()
        assert bench.outcomes() == {0: DONE}
        bench.settle()
        assert bench.all_given_back()


async def test_an_interrupted_call_is_no_outcome() -> None:
    """Cancelled in mid-call: released, given back, not settled."""
    bench = Bench()
    bench.at_once = None
    async with running(bench):
        bench.send(3)
        await idle()
        assert bench.pipeline.in_flight == 3
    assert bench.settler.put_ == []
    assert bench.pipeline.in_flight == 0
    assert bench.all_given_back()


async def test_a_decoder_that_fails_ends_the_lane() -> None:
    """Its records would stay open for ever: the lane ends with the fault, and whoever is next reads them again."""

    class Broken(Bench):
        def decode(self, record: Record) -> Job:
            raise ZeroDivisionError(record.offset)

    bench = Broken()
    task = asyncio.create_task(bench.pipeline.run())
    await idle()
    bench.send(1)
    with pytest.raises((ZeroDivisionError, ExceptionGroup)):
        async with asyncio.timeout(5):
            await task


async def test_an_outcome_that_admission_keeps_is_not_settled_here() -> None:
    """A call whose claim was lost with Redis' data ends, and its outcome stays with admission until that emits it."""
    bench = Bench()
    bench.admission.kept = {1}
    async with running(bench):
        bench.send(3)
        await idle()
        assert sorted(s.job.record.offset for s in bench.settler.put_) == [0, 2]
        assert bench.pipeline.in_flight == 0


async def test_too_many_unsettled_outcomes_stop_the_calls() -> None:
    """What is paid for and not yet safe stays bounded: by the limit and the calls that had begun; a settle lets it go on."""
    async with running(Bench(concurrency=4, unsettled=10)) as bench:
        bench.send(100)
        await idle()
        stopped_at = len(bench.began)
        assert 10 <= stopped_at <= 14
        await idle()
        assert len(bench.began) == stopped_at
        bench.settle()
        await idle()
        assert stopped_at < len(bench.began) <= stopped_at + 14
        while len(bench.began) < 100:
            bench.settle()
            await idle()
        bench.settle()
        assert bench.all_given_back()


async def test_admission_reads_no_further_ahead_than_calls_follow() -> None:
    """What is admitted holds a claim: no more than a batch waits for a caller, one more is on its way."""
    async with running(Bench(concurrency=1)) as bench:
        bench.at_once = None
        bench.send(3_000)
        await idle()
        assert sum(map(len, bench.admission.batches)) <= 1_001


async def test_while_nobody_can_be_called_nothing_begins() -> None:
    """It is told once, and nothing is lost or done twice when a target opens."""
    async with running(Bench()) as bench:
        bench.open = False
        bench.send(20)
        await idle()
        assert bench.began == []
        bench.open = True
        while len(bench.began) < 20:
            await asyncio.wait_for(asyncio.shield(bench.pipeline._gate or asyncio.sleep(0)), 5)
            await idle()
        bench.settle()
        assert bench.told.count("lane_paused") == 1
        assert sorted(bench.began) == list(range(20))
        assert bench.all_given_back()


async def test_retries_wait_for_their_time_and_far_ones_move() -> None:
    """What is due goes, what is near stays, what is far is settled as a move, unclaimed."""
    async with running(Bench(schedule=ByDueTime(4_000, 86_400_000, 16))) as bench:
        bench.send(1, due_ms=NOW - 5)
        bench.send(1, due_ms=NOW + 30)
        bench.send(1, due_ms=NOW + 60_000)
        await idle()
        assert bench.began == [0]
        assert bench.outcomes() == {0: DONE, 2: Moved(5)}
        assert bench.settler.put_[0].token is None
        bench.clock.at_ms += 30
        bench.send(1, due_ms=NOW + 3_000)
        await idle()
        assert bench.began == [0, 1]
        bench.settle()
        assert await bench.pipeline.close(0)
        assert bench.all_given_back()


async def test_a_due_time_wakes_the_lane_by_itself() -> None:
    """No new record is needed."""
    async with running(Bench(schedule=ByDueTime(4_000, 86_400_000, 16))) as bench:
        began = asyncio.Event()

        async def conclude(job: Job) -> Outcome:
            began.set()
            return DONE

        object.__setattr__(bench.pipeline._lane, "conclude", conclude)
        bench.send(1, due_ms=NOW + 20)
        await idle()
        assert not began.is_set()
        bench.clock.at_ms += 20
        await asyncio.wait_for(began.wait(), 5)


# --- closing -------------------------------------------------------------------------------------------------------------


async def test_closing_begins_nothing_and_waits_for_what_runs() -> None:
    """Queued, admitting and newly delivered records are dropped; the calls in flight end and are settled."""
    async with running(Bench(concurrency=2)) as bench:
        bench.at_once = None
        running_calls = bench.send(2)
        bench.send(3)
        await idle()
        bench.admission.gate.clear()
        bench.send(2)
        await idle()
        closing = asyncio.create_task(bench.pipeline.close(5))
        await idle()
        assert not closing.done()
        bench.admission.gate.set()
        for offset in running_calls:
            bench.ends[offset].set_result(DONE)
        assert await closing
        await idle()
        bench.settle()
        assert bench.began == running_calls
        assert set(bench.outcomes()) == set(running_calls)
        assert bench.all_given_back()


async def test_closing_waits_no_longer_than_the_grace() -> None:
    """It says that something was cut off."""
    async with running(Bench()) as bench:
        bench.at_once = None
        bench.send(1)
        await idle()
        assert not await bench.pipeline.close(0.01)
        assert bench.settler.put_ == []
    assert bench.all_given_back()


async def test_closing_an_idle_lane_is_at_once() -> None:
    """Nothing runs, nothing waits."""
    async with running(Bench()) as bench:
        assert await bench.pipeline.close(60)


@pytest.mark.parametrize("outcome", [DONE, Deferred(NOW, "x"), Dead(Failure(ErrorClass.EXPIRED, "m"), NOW), DUPLICATE])
async def test_every_outcome_goes_the_same_way(outcome: Outcome) -> None:
    """The pipeline does not look into it."""
    async with running(Bench()) as bench:
        bench.at_once = outcome
        bench.send(1)
        await idle()
        bench.settle()
        assert bench.outcomes() == {0: outcome}
        assert bench.all_given_back()


async def test_a_caller_whose_job_swallowed_the_cancellation_takes_no_other() -> None:
    """A handler may ignore that it was cancelled: its answer was paid for and is settled, and its caller ends all the same."""
    bench = Bench(concurrency=1)
    let = asyncio.Event()

    async def clings(job: Job) -> Outcome:
        bench.began.append(job.record.offset)
        while not let.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let.wait()
        return DONE

    bench.pipeline._lane = dataclasses.replace(bench.pipeline._lane, conclude=clings)
    callers = asyncio.create_task(bench.pipeline._call())
    admits = asyncio.create_task(bench.pipeline._admit())
    bench.send(2)
    await idle()
    callers.cancel()
    await idle()
    assert not callers.done()
    let.set()
    await asyncio.wait({callers}, timeout=10)
    assert callers.done()
    assert bench.began == [0]
    assert list(bench.outcomes()) == [0]
    admits.cancel()


async def test_what_the_loop_is_at_is_shown() -> None:
    """The longest call of each partition, how many callers are busy, what waits, and how late the soonest due is."""
    async with running(Bench(schedule=ByDueTime(4_000, 86_400_000, 15), concurrency=3)) as bench:
        bench.at_once = None
        assert (bench.pipeline.at_work().busy, bench.pipeline.at_work().late_ms) == (0, None)
        bench.send(2, due_ms=NOW)
        bench.send(3, tp=B, due_ms=NOW)
        await idle()
        bench.send(1, due_ms=NOW + 3_000)
        await idle()
        work = bench.pipeline.at_work()
        assert {tp: call.offset for tp, call in work.calls.items()} == {A: 0, B: 2}
        assert (work.busy, work.concurrency, work.waiting, work.late_ms) == (3, 3, 3, -3_000)
        bench.clock.at_ms += 3_500
        assert bench.pipeline.at_work().late_ms == 500
        bench.ends[0].set_result(DONE)
        await idle()
        assert bench.pipeline.at_work().calls[A].offset == 1

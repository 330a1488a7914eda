"""The guard, over the store in memory and a clock in hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from headrace.admission import Admission, Ends, Go, Gone, Ready
from headrace.claims import Answer, Claim, Held, MarkState, Unreadable
from headrace.envelope import Attempt, Job, Position, Record, Response, Trail
from headrace.errors import ErrorClass, Failure, KafkaUnavailable, StoreLost
from headrace.guard import Guard
from headrace.guard.handover import UnreadableOutcome, dump_outcome, load_outcome
from headrace.guard.marks import Marks, mark_of
from headrace.guard.waiters import claim_of
from headrace.outcome import Completed, Dead, Deferred, Degraded, Dropped, Duplicate, Moved, Noted, Outcome, Retry, Settlement
from headrace.store.memory import MemoryStore
from tests.support.clock import HandClock

START_MS = 1_790_000_000_000
CALL = Attempt(None, 12, "openai")
FAILED = Attempt("timeout", 60_000, "openai")
FAILURE = Failure(ErrorClass.TIMEOUT, "the call took too long", status_code=None, called=True)
COMPLETED = Completed(Response(b'{"id":1}\n{}', provider="openai", usage={"total_tokens": 3}), (CALL,), START_MS, 12)
DEAD = Dead(FAILURE, START_MS, (FAILED,))
RETRY = Retry(FAILURE, (FAILED,), START_MS + 5_000, 60_000, START_MS)


class FakeCommitted:
    """Committed offsets as told; unknown positions are unresolved."""

    def __init__(self) -> None:
        self.known: dict[Position, bool | None] = {}
        self.asked: list[Sequence[Position]] = []
        self.away = False

    async def resolved(self, positions: Sequence[Position]) -> list[bool | None]:
        self.asked.append(list(positions))
        if self.away:
            raise KafkaUnavailable("the broker is away")
        return [self.known.get(position, False) for position in positions]


class HandGate:
    """A gate opened by hand."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.opened.set()
        self.suspected: list[StoreLost] = []

    @property
    def is_open(self) -> bool:
        return self.opened.is_set()

    async def until_open(self) -> None:
        await self.opened.wait()

    def suspect(self, error: StoreLost) -> None:
        self.suspected.append(error)
        self.opened.clear()


async def opened(store: MemoryStore) -> None:
    """Enter, and open admission at once."""
    await store.epochs.enter()
    await store.epochs.lease("test")
    assert await store.epochs.reopen("test")


class Bench:
    """Two workers' guards over one store."""

    def __init__(self, on_outage: Literal["pause", "continue"] = "pause") -> None:
        self.clock = HandClock(START_MS)
        self.store = MemoryStore(lambda: self.clock.at_ms)
        self.committed = FakeCommitted()
        self.revoked: set[tuple[Position, int]] = set()
        self.told: list[tuple[str, dict[str, object]]] = []
        self.emitted: list[Admission] = []
        self.on_outage = on_outage
        self.gate = HandGate()
        self.one, self.two = self.guard("one"), self.guard("two")

    def guard(self, incarnation: str, **more: Any) -> Guard:
        return Guard(
            self.store, self.committed, self.clock, incarnation=incarnation, on_outage=self.on_outage,
            current=lambda record: (record.position, record.epoch) not in self.revoked, gate=self.gate,
            tell=lambda name, fields: self.told.append((name, fields)), **more,
        )  # fmt: skip

    async def tick(self, guard: Guard, after_ms: int = 200) -> list[Admission]:
        self.clock.at_ms += after_ms
        self.emitted = []
        await guard.tick(self.emitted.extend)
        return self.emitted

    def names(self) -> list[str]:
        return [name for name, _ in self.told]

    def held(self, request_id: str = "id") -> Held | None:
        return self.store.held(request_id)


@pytest.fixture
async def bench() -> Bench:
    """Give an open bench."""
    made = Bench()
    await opened(made.store)
    return made


def a_job(
    offset: int = 0, request_id: str | None = "id", *, epoch: int = 1, topic: str = "main", fingerprint: str = "f", **trail: Any
) -> Job:
    record = Record(topic, 0, offset, epoch, None, b"{}", [], START_MS)
    return Job(record, Trail(**{"origin": record.position, **trail}), request_id, fingerprint)


def settle(admission: Admission, outcome: Outcome) -> Settlement:
    assert not isinstance(admission, Gone)
    return Settlement(admission.job, outcome, admission.token)


async def admit_one(guard: Guard, job: Job) -> Admission:
    (admission,) = await guard.admit([job])
    return admission


async def test_a_batch_goes_with_tokens_and_without_id_unclaimed(bench: Bench) -> None:
    """Every record with an id gets a token; one without goes on unclaimed, in its place."""
    jobs = [a_job(0, "a"), a_job(1, None), a_job(2, "b")]
    assert await bench.one.admit(jobs) == [Go(jobs[0], "one/1"), Go(jobs[1], None), Go(jobs[2], "one/1")]
    assert bench.one.holding == 2


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (COMPLETED, "done"),
        (Degraded(Response({"a": 1}), FAILURE, (FAILED,), START_MS, 1), "dead"),
        (RETRY, "waiting"),
        (Deferred(START_MS, "shut"), "waiting"),
        (Deferred(START_MS, "copy", copy=True), "claimed"),
        (DEAD, "dead"),
        (Dead(FAILURE, START_MS), None),
        (Dead(FAILURE, START_MS, claimed=False), "claimed"),
        (Dropped(FAILURE, START_MS), None),
        (Duplicate("completed", None, START_MS), "claimed"),
        (Moved(3), "claimed"),
        (Noted(), "claimed"),
    ],
)
async def test_each_outcome_leaves_its_mark(bench: Bench, outcome: Outcome, state: str | None) -> None:
    """The column "mark after the commit" of the design's outcome table, row by row."""
    go = await admit_one(bench.one, a_job())
    await bench.one.settled([settle(go, outcome)])
    held = bench.held()
    assert (held and held.state) == state
    assert bench.one.holding == 0


def test_a_dead_letter_called_on_an_earlier_hop_is_dead() -> None:
    """Never called on this hop is not never called in its life."""
    assert mark_of(a_job(retry_count=1), Dead(FAILURE, START_MS)) == "dead"
    assert mark_of(a_job(), Dead(FAILURE, START_MS)) == "forget"


async def test_settled_ids_end_their_copies(bench: Bench) -> None:
    """A copy of a settled id ends as a duplicate of what it was; another content as a conflict, without the claim."""
    go = await admit_one(bench.one, a_job())
    await bench.one.settled([settle(go, COMPLETED)])
    now = bench.clock.at_ms
    assert await admit_one(bench.two, a_job(1)) == Ends(a_job(1), Duplicate("completed", now, now))
    conflict = await admit_one(bench.two, a_job(2, fingerprint="g"))
    assert isinstance(conflict.outcome, Dead)  # type: ignore[union-attr]
    assert conflict.outcome.failure.error_class is ErrorClass.ID_CONFLICT  # type: ignore[union-attr]
    assert not conflict.outcome.claimed  # type: ignore[union-attr]


async def test_an_unknown_replay_is_a_dead_letter_in_main_only(bench: Bench) -> None:
    """A forged replay id ends visibly in main, told of by its position alone, and is ignored in retry; nothing is claimed by the first."""
    ends = await admit_one(bench.one, a_job(replay_id="forged", origin=Position("main", 9, 9), hop=3))
    assert ends.job.request_id is None, "a notice under that id might follow its completed result"
    assert (ends.job.trail.origin, ends.job.trail.hop) == (Position("main", 0, 0), 0)
    assert ends.outcome.failure.error_class is ErrorClass.INVALID_REQUEST  # type: ignore[union-attr]
    assert bench.held() is None
    retry = bench.guard("three", strict_replays=False)
    assert isinstance(await admit_one(retry, a_job(replay_id="forged")), Go)


async def test_a_hand_over_reaches_the_new_owner_without_a_call(bench: Bench) -> None:
    """The new owner waits while the claim lives, then settles the old owner's outcome, byte for byte."""
    go = await admit_one(bench.one, a_job())
    again = a_job(epoch=7)
    assert await bench.two.admit([again]) == []
    assert await bench.tick(bench.two) == []
    await bench.one.hand_over([settle(go, COMPLETED)])
    assert await bench.tick(bench.two) == [Ready(again, "two/7", COMPLETED)]
    await bench.two.settled([settle(Ready(again, "two/7", COMPLETED), COMPLETED)])
    held = bench.held()
    assert held is not None
    assert held.state == "done"


async def test_an_answer_that_cannot_be_written_takes_no_other_with_it(bench: Bench) -> None:
    """A handler's body that is no JSON is told and left to be called again; the other outcomes are handed over."""
    gos = await bench.one.admit([a_job(0, "a"), a_job(1, "b")])
    odd = Completed(Response({"set": {1}}), (CALL,), START_MS, 12)
    await bench.one.hand_over([settle(gos[0], odd), settle(gos[1], COMPLETED)])
    assert "hand_over_unwritable" in bench.names()
    held = [bench.held("a"), bench.held("b")]
    assert [h and h.state for h in held] == ["claimed", "answered"]


async def test_the_positions_owner_is_never_deferred_and_takes_over_a_lapse(bench: Bench) -> None:
    """An owner waiting for a dead worker's claim waits the 15 s out, and then goes."""
    await admit_one(bench.one, a_job())
    again = a_job(epoch=2)
    await bench.two.admit([again])
    assert await bench.tick(bench.two, 14_000) == []
    assert await bench.tick(bench.two, 1_100) == [Go(again, "two/2")]
    assert "claim_taken_over" in bench.names()


async def test_a_held_claim_is_kept_alive(bench: Bench) -> None:
    """A call of a minute keeps its claim: renewed every 5 s, it never lapses."""
    await admit_one(bench.one, a_job())
    for _ in range(12):
        await bench.tick(bench.one, 5_000)
        held = bench.held()
        assert held is not None
        assert held.alive(bench.clock.at_ms + 14_000)


async def test_a_released_claim_lapses_and_is_not_removed(bench: Bench) -> None:
    """What was dropped before its start lapses; its owner reads it again and takes over."""
    go = await admit_one(bench.one, a_job())
    bench.one.release([go.job])
    await bench.tick(bench.one, 15_000)
    assert bench.held() is not None
    assert await admit_one(bench.two, a_job(epoch=2)) == Go(a_job(epoch=2), "two/2")


async def test_a_released_claim_lapses_at_once(bench: Bench) -> None:
    """The next owner of the partition does not wait out the liveness of what its predecessor had not begun."""
    go = await admit_one(bench.one, a_job())
    bench.one.release([go.job])
    await bench.tick(bench.one)
    assert await admit_one(bench.two, a_job(epoch=2)) == Go(a_job(epoch=2), "two/2")


async def test_a_closing_guard_lets_claims_lapse(bench: Bench) -> None:
    """A worker that stops leaves no claim alive that it will not use."""
    go = await admit_one(bench.one, a_job())
    bench.one.release([go.job])
    await bench.one.close()
    held = bench.held()
    assert held is not None
    assert not held.alive(bench.clock.at_ms)


async def test_a_lost_claim_is_told_and_no_longer_renewed(bench: Bench) -> None:
    """A thawed worker learns that its claim was taken over, once."""
    await admit_one(bench.one, a_job())
    bench.clock.at_ms += 16_000
    await admit_one(bench.two, a_job(epoch=2))
    await bench.tick(bench.one)
    await bench.tick(bench.one, 6_000)
    assert bench.names().count("claim_lost") == 1
    assert bench.one.holding == 0


async def test_a_copy_of_a_settled_holder_is_a_duplicate(bench: Bench) -> None:
    """The mark was lost: the committed offset of the holder's position settles it."""
    go = await admit_one(bench.one, a_job())
    copy = a_job(9)
    await bench.two.admit([copy])
    bench.committed.known[go.job.record.position] = True
    assert await bench.tick(bench.two) == []
    (ends,) = await bench.tick(bench.two)
    assert isinstance(ends, Ends)
    assert ends.outcome == Duplicate("waiting", START_MS, bench.clock.at_ms)


async def test_a_copy_learns_what_the_mark_says_if_it_comes(bench: Bench) -> None:
    """Between the look and the answer the mark arrives: the duplicate says `completed`."""
    go = await admit_one(bench.one, a_job())
    await bench.two.admit([a_job(9)])
    bench.committed.known[go.job.record.position] = True
    await bench.tick(bench.two)
    await bench.one.settled([settle(go, COMPLETED)])
    (ends,) = await bench.tick(bench.two)
    assert isinstance(ends, Ends)
    assert isinstance(ends.outcome, Duplicate)
    assert ends.outcome.of == "completed"


async def test_a_copy_of_an_unsettled_holder_is_deferred_after_5_s(bench: Bench) -> None:
    """Copies do not fill the read-ahead; Kafka is asked at most once a second for all of them together."""
    await admit_one(bench.one, a_job())
    copies = [a_job(9), a_job(10)]
    await bench.two.admit(copies)
    for _ in range(24):
        assert await bench.tick(bench.two) == []
    ends = await bench.tick(bench.two)
    assert [e.job for e in ends] == copies
    assert all(e.outcome == Deferred(bench.clock.at_ms + 5_000, e.outcome.reason, copy=True) for e in ends)  # type: ignore[union-attr]
    assert bench.committed.asked == [[Position("main", 0, 0)]] * 5
    assert bench.two.waiting == 0


async def test_a_copy_of_a_record_lost_to_retention_goes(bench: Bench) -> None:
    """The holder's record is below the log start, unresolved: its claim is void."""
    go = await admit_one(bench.one, a_job())
    bench.committed.known[go.job.record.position] = None
    copy = a_job(9)
    await bench.two.admit([copy])
    await bench.tick(bench.two)
    assert await bench.tick(bench.two) == [Go(copy, "two/1")]
    assert "claims_voided" in bench.names()


async def test_a_broker_away_defers_copies_all_the_same(bench: Bench) -> None:
    """Committed offsets that cannot be read are told, and block nobody."""
    bench.committed.away = True
    await admit_one(bench.one, a_job())
    await bench.two.admit([a_job(9)])
    await bench.tick(bench.two)
    assert "committed_unavailable" in bench.names()
    (ends,) = await bench.tick(bench.two, 5_000)
    assert isinstance(ends, Ends)
    assert isinstance(ends.outcome, Deferred)


async def test_a_revoked_waiter_is_dropped_and_claims_nothing(bench: Bench) -> None:
    """A waiter whose partition is gone never takes over, even where the claim has lapsed."""
    await admit_one(bench.one, a_job())
    again = a_job(epoch=2)
    await bench.two.admit([again])
    bench.revoked.add((again.record.position, 2))
    assert await bench.tick(bench.two, 20_000) == [Gone(again)]
    assert bench.two.waiting == 0
    held = bench.held()
    assert held is not None
    assert held.token.incarnation == "one"


async def test_an_outage_pauses_admission_and_is_told_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis away: admit waits, says so once, and answers when it is back."""
    tries = 0
    claim = bench.store.claim

    async def counted(batch: Any) -> Any:
        nonlocal tries
        tries += 1
        bench.store.server.away = tries < 3
        return await claim(batch)

    monkeypatch.setattr(bench.store, "claim", counted)
    assert await admit_one(bench.one, a_job()) == Go(a_job(), "one/1")
    assert bench.names() == ["store_unavailable", "store_back"]


async def test_marks_wait_for_redis_in_order(bench: Bench) -> None:
    """What was settled while Redis was away is marked when it is back; the settle did not wait for it."""
    gos = await bench.one.admit([a_job(i, f"id{i}") for i in range(3)])
    bench.store.server.away = True
    await bench.one.settled([settle(gos[0], COMPLETED), settle(gos[1], DEAD)])
    await bench.one.hand_over([settle(gos[2], RETRY)])
    bench.store.server.away = False
    await bench.tick(bench.one)
    states = [held.state for i in range(3) if (held := bench.held(f"id{i}"))]
    assert states == ["done", "dead", "answered"]
    assert bench.names() == ["store_unavailable", "store_back"]


async def test_going_on_without_redis_claims_nothing_and_counts(bench: Bench) -> None:
    """`on_outage: continue`: records go on without a token, waiters too, and it is said how many."""
    bench.on_outage = "continue"
    guard = bench.guard("three")
    await admit_one(bench.one, a_job())
    await guard.admit([a_job(5)])
    bench.store.server.away = True
    assert await guard.admit([a_job(6, "x"), a_job(7, "y")]) == [Go(a_job(6, "x"), None), Go(a_job(7, "y"), None)]
    assert await bench.tick(guard) == [Go(a_job(5), None)]
    assert [fields["count"] for name, fields in bench.told if name == "unclaimed"] == [2, 1]
    bench.store.server.away = False
    await bench.tick(guard)
    assert await admit_one(guard, a_job(8, "z")) == Go(a_job(8, "z"), "three/1")


async def test_after_a_loss_nothing_is_granted_until_the_gate_opens(bench: Bench) -> None:
    """Another epoch: the gate is told, admission waits for it, a tick and a settle raise nothing; then the same batch is granted."""
    go = await admit_one(bench.one, a_job())
    bench.store.server.lose()
    waiting = asyncio.create_task(bench.one.admit([a_job(1, "b")]))
    async with asyncio.timeout(5):
        while not bench.gate.suspected:  # noqa: ASYNC110  one turn of the loop is enough
            await asyncio.sleep(0)
    await bench.one.settled([settle(go, COMPLETED)])
    await bench.tick(bench.one)
    await opened(bench.store)
    assert not waiting.done()
    bench.gate.opened.set()
    assert await asyncio.wait_for(waiting, 5) == [Go(a_job(1, "b"), "one/1")]


async def test_what_is_held_or_queued_is_claimed_again_after_a_loss(bench: Bench) -> None:
    """A claim in flight, a settled one whose mark is queued, and a waiting one: after the new epoch all three stand as before."""
    jobs = [a_job(0, "flying"), a_job(1, "done"), a_job(2, "waiting")]
    flying, done, waiting = await bench.one.admit(jobs)
    bench.store.server.lose()
    await bench.one.settled([settle(done, COMPLETED), settle(waiting, RETRY)])
    await opened(bench.store)
    await bench.one.reassert()
    bench.gate.opened.set()
    await bench.tick(bench.one)
    states = {name: held.state for name in ("flying", "done", "waiting") if (held := bench.held(name)) is not None}
    assert states == {"flying": "claimed", "done": "done", "waiting": "waiting"}
    assert isinstance(flying, Go)
    assert bench.one.concluded(flying, COMPLETED) == settle(flying, COMPLETED)


async def test_the_second_to_claim_again_becomes_a_waiting_copy_with_its_answer(bench: Bench) -> None:
    """Two hold one id after a loss: the first settles, the second's answer waits and ends as a duplicate; it is called no more."""
    first = await admit_one(bench.one, a_job(0))
    bench.store.server.lose()
    await opened(bench.store)
    second = await admit_one(bench.two, a_job(9))
    bench.store.server.lose()
    await opened(bench.store)
    await bench.one.reassert()
    await bench.two.reassert()
    assert isinstance(first, Go)
    assert isinstance(second, Go)
    assert bench.two.concluded(second, COMPLETED) is None
    settled = bench.one.concluded(first, COMPLETED)
    assert settled is not None
    assert await bench.tick(bench.two) == []
    await bench.one.settled([settled])
    (ends,) = await bench.tick(bench.two)
    assert isinstance(ends, Ends)
    assert isinstance(ends.outcome, Duplicate)
    assert ends.outcome.of == "completed"


async def test_a_loser_whose_rival_is_gone_settles_its_answer_without_a_call(bench: Bench) -> None:
    """The first to claim again never settles and its record falls out of the log: the other's answer is settled, not called again."""
    bench.store.server.lose()
    await opened(bench.store)
    second = await admit_one(bench.two, a_job(9))
    bench.store.server.lose()
    await opened(bench.store)
    rival = a_job(0)
    await bench.store.reassert([claim_of(rival, "gone", strict=True)])
    await bench.two.reassert()
    assert isinstance(second, Go)
    assert bench.two.concluded(second, COMPLETED) is None
    bench.committed.known[rival.record.position] = None
    await bench.tick(bench.two)
    (ready,) = await bench.tick(bench.two, after_ms=6_000)
    assert ready == Ready(second.job, "two/1", COMPLETED)


async def test_a_claim_that_cannot_be_read_is_waited_for_and_then_deferred(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a newer version wrote: told, waited for without a permit, deferred after 5 s with its hop unchanged."""

    async def unreadable(batch: Sequence[Claim]) -> list[Answer]:
        return [Unreadable() for _ in batch]

    monkeypatch.setattr(bench.store, "claim", unreadable)
    assert await bench.one.admit([a_job()]) == []
    assert await bench.tick(bench.one) == []
    (ends,) = await bench.tick(bench.one, after_ms=5_000)
    assert isinstance(ends, Ends)
    assert isinstance(ends.outcome, Deferred)
    assert ends.outcome.copy
    assert bench.names() == ["claim_unreadable"]


async def test_the_clock_takes_the_stores_time(bench: Bench) -> None:
    """The clock is synced at once, then every 5 s, not at every tick."""
    for _ in range(26):
        await bench.tick(bench.one)
    assert len(bench.clock.synced_with) == 2


async def test_a_full_queue_of_marks_says_what_it_lets_go(bench: Bench) -> None:
    """The queue is bounded in entries and in bytes; what it drops is counted, the newest stay."""
    go = await admit_one(bench.one, a_job())
    claim = claim_of(go.job, "one", strict=True)
    told: list[tuple[str, dict[str, object]]] = []
    marks = Marks(bench.store, lambda name, fields: told.append((name, fields)), limit=2, limit_bytes=10)
    ops: tuple[MarkState, ...] = ("dead", "dead", "done")
    for op in ops:
        marks.put((claim, op))
    marks.put((claim, b"x" * 11))
    assert told == [("marks_dropped", {"count": 1}), ("marks_dropped", {"count": 2})]
    assert len(marks) == 1


@pytest.mark.parametrize(
    "outcome",
    [
        COMPLETED,
        Degraded(Response({"a": [1]}, finish_reason="stop"), FAILURE, (FAILED,), START_MS, 1),
        RETRY,
        Deferred(START_MS, "shut"),
        DEAD,
        Dropped(FAILURE, START_MS),
    ],
)
def test_an_outcome_comes_back_as_it_was(outcome: Outcome) -> None:
    """Whatever can be handed over is read back equal, response bytes included."""
    assert load_outcome(dump_outcome(outcome)) == outcome


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]\n", b'{"v":2,"kind":"dead","fields":{}}\n', b'{"v":1,"kind":"dead","fields":{"x":1}}\n']
)
async def test_an_unreadable_answer_is_called_again(bench: Bench, payload: bytes) -> None:
    """Bytes of another version, or damaged, are told and cost a call; they never stop a lane."""
    with pytest.raises(UnreadableOutcome):
        load_outcome(payload)
    go = await admit_one(bench.one, a_job())
    await bench.store.hand_over([(claim_of(go.job, "one", strict=True), payload)])
    assert await admit_one(bench.two, a_job(epoch=2)) == Go(a_job(epoch=2), "two/2")
    assert "answer_unreadable" in bench.names()

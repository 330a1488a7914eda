"""Settling, over transactions that end as told: what is committed, handed over, tried alone, held back or done again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest

from headrace import settle
from headrace.assignment import Assignment
from headrace.committed import Standing
from headrace.config import LimitSettings, TopicNames
from headrace.envelope import Attempt, Job, Record, Request, Response, Trail
from headrace.errors import ErrorClass, Failure, KafkaUnavailable, Refused
from headrace.offsets import Tracker, decode_map
from headrace.outcome import Completed, Dead, Deferred, Noted, Outcome, Output, Retry, Settlement
from headrace.outputs import Outputs
from headrace.settle import HELD_S, Settler
from headrace.transaction import Ended, Refusal, State

NOW = 1_800_000_000_000
TOPICS = TopicNames()
A, B = (TOPICS.main, 0), (TOPICS.main, 1)
CALL = Attempt(None, 5, "openai")
COMPLETED = Completed(Response(b"{}"), (CALL,), NOW, 5)
RETRY = Retry(Failure(ErrorClass.TIMEOUT, "m", called=True), (CALL,), NOW + 9, 70, NOW)
DEAD = Dead(Failure(ErrorClass.TIMEOUT, "m"), NOW)
SIZE, BAD, TOPIC = Refusal("size", "too large"), Refusal("record", "invalid"), Refusal("topic", "no such topic")
COMMIT, ABORT, AMBIGUOUS = Ended(State.COMMITTED), Ended(State.ABORTED, "again"), Ended(State.AMBIGUOUS, "timed out")

Ending = Ended | Callable[["FakeTransactions", Sequence[Output]], Ended]


class FakeTransactions:
    """Ends each transaction as the script says, then commits; keeps what was committed: outputs, and frontiers by partition."""

    def __init__(self) -> None:
        self.script: list[Ending] = []
        self.runs: list[list[Output]] = []
        self.committed: list[list[Output]] = []
        self.offsets: list[dict[tuple[str, int], tuple[int, str]]] = []
        self.metadata: list[Any] = []
        self.opened = self.closed = 0
        self.opening: BaseException | None = None

    def run(self, outputs: Sequence[Output], offsets: Callable[[], tuple[list[Any], Any] | None]) -> Ended:
        self.runs.append(list(outputs))
        found = self.script.pop(0) if self.script else COMMIT
        ended = found(self, outputs) if callable(found) else found
        given = offsets() if ended.state is not State.ABORTED else None
        if ended.state is not State.ABORTED and given is None:
            return Ended(State.ABORTED)
        if given is not None:
            self.offsets.append({(tp.topic, tp.partition): (tp.offset, tp.metadata) for tp in given[0]})
            self.metadata.append(given[1])
        if ended.state is State.COMMITTED:
            self.committed.append(list(outputs))
        return ended

    def open(self) -> None:
        self.opened += 1
        if self.opening is not None:
            raise self.opening

    def close(self) -> None:
        self.closed += 1


class FakeCommitted:
    """Says of the last offsets sent that they are there, or not; unreadable as often as told."""

    def __init__(self, transactions: FakeTransactions) -> None:
        self.transactions = transactions
        self.landed = False
        self.unreadable = 0

    def read(self, partitions: Any) -> dict[tuple[str, int], Standing]:
        if self.unreadable:
            self.unreadable -= 1
            raise KafkaUnavailable("away")
        if not self.landed:
            return {tp: Standing(-1, None, 0, 100) for tp in partitions}
        sent = self.transactions.offsets[-1]
        return {tp: Standing(sent[tp][0], decode_map(*sent[tp]), 0, 100) for tp in partitions}


class Bench:
    """A settler whose turns are taken by hand, over two restored partitions."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.assignment = Assignment()
        self.epochs = self.assignment.assigned([A, B], "m1")
        for tp, epoch in self.epochs.items():
            self.assignment.restored(tp, epoch, Tracker(0), 0)
            self.assignment.track(tp, range(50))
        self.transactions = FakeTransactions()
        self.committed = FakeCommitted(self.transactions)
        self.settled: list[Settlement] = []
        self.gone: list[Settlement] = []
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.stopping = threading.Event()
        limits = dict.fromkeys((TOPICS.results, TOPICS.retry, TOPICS.dlq), limit)
        self.settler = Settler(
            "main", LimitSettings(settle_interval_ms=0), assignment=self.assignment, transactions=self.transactions, outputs=Outputs(TOPICS, limits),
            committed=self.committed, on_settled=self.settled.extend, on_gone=self.gone.extend,
            tell=lambda name, fields: self.told.append((name, dict(fields))), stopping=self.stopping,
        )  # type: ignore[arg-type]  # fmt: skip

    def put(
        self, *outcomes: Outcome, tp: tuple[str, int] = A, first: int = 0, value: bytes = b"{}", request: bool = True
    ) -> list[Settlement]:
        """Outcomes of consecutive records of a partition, given to the settler."""
        made = []
        for offset, outcome in enumerate(outcomes, first):
            record = Record(*tp, offset, self.epochs[tp], None, value, [], NOW)
            name = f"r{tp[1]}-{offset}"
            body = Request(request_id=name, body={}) if request else None
            made.append(Settlement(Job(record, Trail(record.position), name, "f", body), outcome, "token"))
        for settlement in made:
            self.settler.put(settlement)
        return made

    def turn(self, *script: Ending) -> None:
        self.transactions.script = list(script)
        self.settler._turn()
        assert self.transactions.script == []

    def names(self) -> list[str]:
        return [name for name, _ in self.told]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give the waits between tries, which cost nothing here."""
    waited: list[float] = []
    monkeypatch.setattr(settle.time, "sleep", waited.append)
    return waited


@pytest.fixture
def bench(waits: list[float]) -> Bench:
    """Give a settler."""
    return Bench()


def passed(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Move the settler's time on."""
    at = settle.time.monotonic() + seconds
    monkeypatch.setattr(settle.time, "monotonic", lambda: at)


def refusing(refusal: Refusal, *topics: str) -> Ending:
    """Refuses the outputs to these topics."""

    def end(_: FakeTransactions, outputs: Sequence[Output]) -> Ended:
        return Ended(State.ABORTED, "refused", {i: refusal for i, output in enumerate(outputs) if output.topic in topics})

    return end


def refusing_one(refusal: Refusal, key: bytes) -> Ending:
    """Refuses the outputs with this key."""

    def end(_: FakeTransactions, outputs: Sequence[Output]) -> Ended:
        return Ended(State.ABORTED, "refused", {i: refusal for i, output in enumerate(outputs) if output.key == key})

    return end


def test_a_batch_is_one_transaction(bench: Bench) -> None:
    """Outputs and offsets of every partition commit together; then all of it is reported, and resolved."""
    made = [*bench.put(COMPLETED, RETRY, DEAD), *bench.put(COMPLETED, tp=B)]
    bench.turn(COMMIT)
    assert [o.topic for o in bench.transactions.committed[0]] == [TOPICS.results, TOPICS.retry, TOPICS.dlq, TOPICS.results, TOPICS.results]
    assert {tp: offset for tp, (offset, _) in bench.transactions.offsets[0].items()} == {A: 3, B: 1}
    assert bench.settled == made
    assert bench.gone == []
    assert bench.assignment.frontiers() == {A: (3, 47), B: (1, 49)}
    (event,) = [fields for name, fields in bench.told if name == "settled"]
    assert event["counts"] == {("completed", ""): 2, ("retry", "timeout"): 1, ("dead", "timeout"): 1}


def test_what_writes_nothing_still_moves_its_offset(bench: Bench) -> None:
    """A noted dead letter has no output."""
    bench.put(Noted())
    bench.turn(COMMIT)
    assert bench.transactions.committed == [[]]
    assert bench.assignment.frontiers()[A] == (1, 49)


def test_nothing_to_do_is_no_transaction(bench: Bench) -> None:
    """An idle lane commits nothing."""
    bench.turn()
    assert bench.transactions.runs == []


def test_a_frontier_that_moved_by_itself_is_committed(bench: Bench) -> None:
    """Gaps at the end of a partition: an empty settle, so that the lag reads 0."""
    bench.put(*[COMPLETED] * 50)
    bench.turn(COMMIT)
    bench.assignment.with_tracker(A, lambda tracker: tracker.at_end(60))
    bench.turn(COMMIT)
    assert bench.transactions.committed[1] == []
    assert bench.transactions.offsets[1][A][0] == 60
    bench.turn()


def test_who_hears_of_a_settle_finds_room(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is reported waits no more: a caller that was woken by the report would sleep on, and nobody would wake it again."""
    seen: list[int] = []
    bench.settler._on_settled = lambda _: seen.append(bench.settler.waiting)
    bench.settler._on_gone = lambda _: seen.append(bench.settler.waiting)
    bench.put(*[COMPLETED] * 5)
    bench.turn(COMMIT)
    assert seen == [0]
    bench.put(RETRY, COMPLETED, first=5)
    bench.turn(refusing(TOPIC, TOPICS.retry), COMMIT)
    assert seen == [0, 1]
    passed(monkeypatch, HELD_S + 1)
    bench.put(COMPLETED, tp=B)
    bench.assignment.gone([A], "m2")
    bench.turn(COMMIT)
    assert seen == [0, 1, 1, 0]


def test_what_is_being_settled_still_waits(bench: Bench) -> None:
    """It is paid for and not safe yet: it counts for the bound on calls."""
    seen: list[int] = []

    def look(_: FakeTransactions, outputs: Sequence[Output]) -> Ended:
        seen.append(bench.settler.waiting)
        return COMMIT

    bench.put(*[COMPLETED] * 5)
    assert bench.settler.waiting == 5
    bench.turn(look)
    assert seen == [5]
    assert bench.settler.waiting == 0


def test_a_turn_takes_no_more_than_a_settle_holds(waits: list[float]) -> None:
    """The rest is the next turn's, and it does not wait for a wake-up."""
    bench = Bench()
    bench.settler._limits = LimitSettings(settle_interval_ms=0, settle_records=2)
    bench.put(*[COMPLETED] * 3)
    bench.turn(COMMIT)
    assert (len(bench.settled), bench.settler.waiting) == (2, 1)
    assert bench.settler._wake.is_set()
    bench.turn(COMMIT)
    assert len(bench.settled) == 3


def test_what_is_gone_is_handed_over_and_not_settled(bench: Bench) -> None:
    """A partition that was revoked, and one that came back under a new epoch; the others' outcomes go on."""
    lost = bench.put(COMPLETED, RETRY)
    kept = bench.put(COMPLETED, tp=B)
    bench.assignment.gone([A], "m2")
    epoch = bench.assignment.assigned([A], "m3")[A]
    bench.assignment.restored(A, epoch, Tracker(0), 0)
    bench.turn(COMMIT)
    assert bench.gone == lost
    assert bench.settled == kept
    assert set(bench.transactions.offsets[0]) == {B}


def test_what_is_leaving_is_still_settled(bench: Bench) -> None:
    """With the metadata taken inside the callback."""
    made = bench.put(COMPLETED)
    bench.assignment.leaving([A], "inside")
    bench.turn(COMMIT)
    assert bench.settled == made
    assert bench.transactions.metadata == ["inside"]


def test_a_change_of_ownership_before_the_offsets_settles_again(bench: Bench) -> None:
    """Nothing is committed with an old snapshot; what went meanwhile is handed over, what stayed is settled."""
    lost, kept = bench.put(COMPLETED), bench.put(COMPLETED, tp=B)

    def revoke(_: FakeTransactions, outputs: Sequence[Output]) -> Ended:
        bench.assignment.gone([A], "m2")
        return COMMIT

    bench.turn(revoke, COMMIT)
    assert len(bench.transactions.runs) == 2
    assert len(bench.transactions.committed) == 1
    assert (bench.gone, bench.settled) == (lost, kept)
    assert [set(sent) for sent in bench.transactions.offsets] == [{B}]
    assert "settle_again" not in bench.names()


def test_newer_metadata_is_used_and_disturbs_nothing(bench: Bench) -> None:
    """A poll during the transaction brings metadata: the offsets go with the newest."""
    bench.put(COMPLETED)

    def poll(_: FakeTransactions, outputs: Sequence[Output]) -> Ended:
        bench.assignment.refreshed("m2")
        return COMMIT

    bench.turn(poll)
    assert bench.transactions.metadata == ["m2"]


def test_an_abort_settles_again_and_says_so(bench: Bench, waits: list[float]) -> None:
    """Reported once, when it is committed; the waits between tries grow, and end at a second."""
    made = bench.put(COMPLETED, RETRY)
    bench.turn(*[ABORT] * 7, COMMIT)
    assert bench.settled == made
    assert bench.names().count("settle_again") == 7
    assert waits[:7] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert all(run == bench.transactions.runs[0] for run in bench.transactions.runs)


def test_each_try_has_a_name_of_its_own(bench: Bench) -> None:
    """The map carries it, so that an ambiguous commit can be told from the one before."""
    bench.put(COMPLETED)
    bench.turn(AMBIGUOUS, COMMIT)
    sequences = [decode_map(*sent[A]).sequence for sent in bench.transactions.offsets]  # type: ignore[union-attr]
    assert sequences[0].incarnation == sequences[1].incarnation
    assert sequences[0].n < sequences[1].n


def test_an_ambiguous_commit_that_landed_is_not_done_again(bench: Bench) -> None:
    """A new producer fences the old one first, then the maps tell; reading them is tried until it succeeds."""
    made = bench.put(COMPLETED)
    bench.committed.landed, bench.committed.unreadable = True, 2
    bench.turn(AMBIGUOUS)
    assert bench.transactions.opened == 1
    assert bench.settled == made
    assert bench.assignment.frontiers()[A] == (1, 49)
    assert bench.names().count("committed_unreadable") == 2


def test_an_ambiguous_commit_that_did_not_land_is_settled_again(bench: Bench) -> None:
    """Once."""
    made = bench.put(COMPLETED)
    bench.turn(AMBIGUOUS, COMMIT)
    assert bench.settled == made
    assert len(bench.transactions.committed) == 1


def test_an_ambiguous_commit_whose_partition_went_is_handed_over(bench: Bench) -> None:
    """Once it is known not to have landed."""
    made = bench.put(COMPLETED)

    def cut_off(_: FakeTransactions, outputs: Sequence[Output]) -> Ended:
        return AMBIGUOUS

    bench.committed.unreadable = 1
    bench.transactions.script = [cut_off]
    read = bench.committed.read

    def revoked_meanwhile(partitions: Any) -> Any:
        bench.assignment.gone([A], "m2")
        assert bench.gone == []
        return read(partitions)

    bench.committed.read = revoked_meanwhile  # type: ignore[method-assign]
    bench.settler._turn()
    assert bench.gone == made
    assert bench.settled == []


def test_an_older_settle_is_not_taken_for_this_one(bench: Bench) -> None:
    """The map of the settle before is there: this one did not land."""
    bench.put(COMPLETED)
    bench.turn(COMMIT)
    before = bench.transactions.offsets[-1]
    made = bench.put(COMPLETED, first=1)
    bench.committed.read = lambda partitions: {tp: Standing(before[tp][0], decode_map(*before[tp]), 0, 9) for tp in partitions}  # type: ignore[method-assign]
    bench.turn(AMBIGUOUS, COMMIT)
    assert bench.settled[1:] == made
    assert len(bench.transactions.committed) == 2


# --- refusals ------------------------------------------------------------------------------------------------------------


def test_innocents_of_a_refused_batch_are_settled(bench: Bench) -> None:
    """The broker refuses whole batches: all of them are tried alone, and only the one refused alone dies."""
    made = bench.put(COMPLETED, COMPLETED, COMPLETED)
    guilty = made[1].job.request_id.encode()  # type: ignore[union-attr]
    whole = refusing(SIZE, TOPICS.results)
    bench.turn(whole, COMMIT, refusing_one(SIZE, guilty), COMMIT, COMMIT)
    assert sorted(s.position.offset for s in bench.settled) == [0, 1, 2]
    outcomes = {s.position.offset: s.outcome for s in bench.settled}
    assert (outcomes[0], outcomes[2]) == (COMPLETED, COMPLETED)
    dead = outcomes[1]
    assert isinstance(dead, Dead)
    assert dead.failure.error_class is ErrorClass.TOO_LARGE
    assert (dead.attempts, dead.dead_at_ms) == ((CALL,), NOW)
    assert all(s.token == "token" for s in bench.settled)


@pytest.mark.parametrize(("refusal", "error_class"), [(SIZE, ErrorClass.TOO_LARGE), (BAD, ErrorClass.INVALID_REQUEST)])
def test_what_is_refused_alone_is_a_dead_letter(bench: Bench, refusal: Refusal, error_class: ErrorClass) -> None:
    """Of the class of its refusal."""
    bench.put(RETRY)
    bench.turn(refusing(refusal, TOPICS.retry), refusing(refusal, TOPICS.retry), COMMIT)
    (settled,) = bench.settled
    assert isinstance(settled.outcome, Dead)
    assert settled.outcome.failure.error_class is error_class
    assert settled.outcome.elapsed_ms == 70
    assert [o.topic for o in bench.transactions.committed[-1]] == [TOPICS.dlq, TOPICS.results]


def test_a_dead_letter_of_a_refusal_has_a_time(bench: Bench) -> None:
    """A deferral carries none of its own: the record's is nearer the truth than 1970."""
    bench.put(Deferred(NOW + 9, "limit"))
    bench.turn(refusing(SIZE, TOPICS.retry), refusing(SIZE, TOPICS.retry), COMMIT)
    outcome = bench.settled[0].outcome
    assert isinstance(outcome, Dead)
    assert outcome.dead_at_ms == NOW


def test_a_copy_that_cannot_wait_does_not_fail_its_request(bench: Bench) -> None:
    """A copy whose deferral the broker refuses by its size dies, but its notice is a duplicate's: the other record of that id goes on."""
    bench.put(Deferred(NOW + 9, "copy", copy=True))
    bench.turn(refusing(SIZE, TOPICS.retry), refusing(SIZE, TOPICS.retry), COMMIT)
    letter, notice = bench.transactions.committed[-1]
    assert letter.topic == TOPICS.dlq
    told = orjson.loads(notice.value or b"")
    assert (told["status"], told["of"], told["error"]["class"]) == ("duplicate", "conflict", "too_large")


def test_a_refused_dead_letter_is_cut_and_then_held(waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone first, then cut to what fits; refused even so it is held back, its offset with it, and tried again later."""
    bench = Bench(limit=20_000)
    bench.put(DEAD, value=b"x" * 50_000)
    no = refusing(SIZE, TOPICS.dlq)
    bench.turn(no, no)
    assert bench.settled == []
    assert [len(run[0].value or b"") < 20_000 for run in bench.transactions.runs] == [False, True]
    assert bench.settler.waiting == 1
    assert "settle_blocked" in bench.names()
    assert bench.assignment.frontiers()[A] == (0, 50)
    bench.turn()
    passed(monkeypatch, HELD_S + 1)
    bench.turn(COMMIT)
    assert [s.cut for s in bench.settled] == [True]


def test_what_is_over_its_limit_is_tried_alone_at_once(waits: list[float]) -> None:
    """Before compression only the broker can tell: neighbours are not risked; what it takes is settled as it is."""
    bench = Bench(limit=20_000)
    large = bench.put(DEAD, value=b"x" * 50_000)
    small = bench.put(COMPLETED, first=1)
    bench.turn(COMMIT, COMMIT)
    assert [s.position for s in bench.settled] == [small[0].position, large[0].position]
    assert bench.transactions.committed[1][0].value == b"x" * 50_000


def test_a_missing_topic_holds_back_only_what_needs_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go on; the retries' offsets stay, it is told, and they are settled when the topic is there."""
    bench.put(RETRY, COMPLETED, RETRY)
    bench.turn(refusing(TOPIC, TOPICS.retry), COMMIT)
    assert [s.position.offset for s in bench.settled] == [1]
    assert bench.settler.waiting == 2
    assert [fields["outcomes"] for name, fields in bench.told if name == "settle_blocked"] == [2], "once for both"
    assert bench.assignment.frontiers()[A][0] == 0
    bench.turn()
    passed(monkeypatch, HELD_S + 1)
    bench.turn(refusing(TOPIC, TOPICS.retry))
    passed(monkeypatch, 2 * HELD_S + 2)
    bench.turn(COMMIT)
    assert sorted(s.position.offset for s in bench.settled) == [0, 1, 2]
    assert bench.settler.waiting == 0


def test_a_missing_topic_is_found_in_one_transaction(bench: Bench) -> None:
    """The client refuses the first record of it at once: the others are held with it, not found one by one, a second each."""
    bench.put(*[RETRY] * 20, COMPLETED)

    def first_only(_: FakeTransactions, outputs: Sequence[Output]) -> Ended:
        return Ended(State.ABORTED, "refused", {0: TOPIC})

    bench.turn(first_only, COMMIT)
    assert [s.position.offset for s in bench.settled] == [20]
    assert bench.settler.waiting == 20


def test_a_topic_denied_by_the_transaction_is_found_by_trying_apart(bench: Bench) -> None:
    """The coordinator denies a topic without a name: who writes to others is settled apart, who wants only that one is held back."""
    bench.put(RETRY, COMPLETED, RETRY, DEAD)

    def denied(_: FakeTransactions, outputs: Sequence[Output]) -> Ended:
        return Ended(State.ABORTED, "denied", shut=True) if any(o.topic == TOPICS.retry for o in outputs) else COMMIT

    bench.turn(*[denied] * 4)
    assert sorted(s.position.offset for s in bench.settled) == [1, 3]
    assert bench.settler.waiting == 2
    assert [fields["outcomes"] for name, fields in bench.told if name == "settle_blocked"] == [2]


def test_what_is_held_of_a_lost_partition_is_handed_over(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not forgotten with the partition."""
    made = bench.put(RETRY)
    bench.turn(refusing(TOPIC, TOPICS.retry))
    bench.assignment.gone([A], "m2")
    passed(monkeypatch, HELD_S + 1)
    bench.settler._turn()
    assert bench.gone == made


def test_what_cannot_be_written_is_a_dead_letter(bench: Bench) -> None:
    """One outcome must not end the thread that settles all."""
    bench.put(Completed(Response({"a": object()}), (CALL,), NOW, 5), COMPLETED)  # type: ignore[dict-item]
    bench.turn(COMMIT)
    assert len(bench.settled) == 2
    outcome = bench.settled[0].outcome
    assert isinstance(outcome, Dead)
    assert outcome.failure.error_class is ErrorClass.INTERNAL


# --- the thread ----------------------------------------------------------------------------------------------------------


def test_drain_waits_for_what_was_put_before_it() -> None:
    """After it everything is settled."""
    bench = Bench()
    bench.settler.start()
    made = bench.put(*[COMPLETED] * 20)
    assert bench.settler.drain(5.0)
    assert bench.settled == made
    assert bench.settler.stop(5.0)
    assert bench.transactions.closed == 1


def test_stop_settles_what_waits() -> None:
    """A graceful stop loses nothing that is finished."""
    bench = Bench()
    made = bench.put(*[COMPLETED] * 20)
    bench.settler.start()
    assert bench.settler.stop(5.0)
    assert bench.settled == made
    assert not bench.settler.thread.alive
    assert not bench.settler.drain(0.0)


def test_a_thread_that_ends_says_why() -> None:
    """The process watches the failure, and stops with it."""
    bench = Bench()
    bench.transactions.opening = Refused("another process runs")
    bench.settler.start()
    assert bench.settler.stop(5.0)
    assert isinstance(bench.settler.failure, Refused)
    assert "settle_failed" in bench.names()
    assert bench.transactions.closed == 1

"""One transaction over a scripted producer: what each error in each step ends as."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace import fencing, transaction
from headrace.errors import KafkaUnavailable, Refused
from headrace.outcome import Output
from headrace.transaction import Ended, Refusal, State, Transactions

OUTPUTS = [Output("results", b"k", b"v", [("h", b"1")]), Output("retry", None, b"w"), Output("later", None, b"x", (), 3)]
OFFSETS = ([TopicPartition("main", 0, 5)], "metadata")


def kafka(code: int, *, fatal: bool = False, retriable: bool = False, abort: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, f"error {code}", fatal=fatal, retriable=retriable, txn_requires_abort=abort))


def as_system_error(cause: BaseException) -> SystemError:
    error = SystemError("returned a result with an exception set")
    error.__cause__ = cause
    return error


FATAL = kafka(KafkaError._FATAL, fatal=True)
FENCED = kafka(KafkaError._FENCED, fatal=True)
ABORTABLE = kafka(KafkaError.UNKNOWN_TOPIC_OR_PART, abort=True)
RETRIABLE = kafka(KafkaError._TIMED_OUT, retriable=True)
OTHER = kafka(KafkaError._STATE)


class FakeProducer:
    """Raises what the script says at the n-th call of a step; `deliver` reports outputs refused by the broker as the commit flushes."""

    def __init__(self, script: dict[str, list[Any]]) -> None:
        self.script = script
        self.log: list[str] = []
        self.produced: list[tuple[Any, ...]] = []
        self._callbacks: list[Callable[[KafkaError | None, object], None]] = []

    def _step(self, name: str) -> None:
        self.log.append(name)
        todo = self.script.get(name)
        found = todo.pop(0) if todo else None
        if isinstance(found, BaseException):
            raise found

    def init_transactions(self, timeout: float) -> None:
        self._step("init")

    def begin_transaction(self) -> None:
        self._step("begin")

    def produce(self, topic: str, value: Any, key: Any, partition: int, callback: Any, *, headers: Any) -> None:
        self._step("produce")
        self.produced.append((topic, value, key, partition, headers))
        self._callbacks.append(callback)

    def poll(self, timeout: float) -> None:
        self._step("poll")

    def send_offsets_to_transaction(self, offsets: Any, metadata: Any, timeout: float) -> None:
        self._step("offsets")

    def commit_transaction(self, timeout: float) -> None:
        for index, code in self.script.pop("deliver", ()):
            self._callbacks[index](KafkaError(code, f"refused {code}"), None)
        self._step("commit")

    def abort_transaction(self, timeout: float) -> None:
        self._step("abort")

    def purge(self) -> None:
        self._step("purge")


class Bench:
    """Transactions over producers that are all made of one script."""

    def __init__(self) -> None:
        self.script: dict[str, list[Any]] = {}
        self.producers: list[FakeProducer] = []
        self.told: list[str] = []
        self.frozen = False
        self.stopping = threading.Event()
        config = {"transactional.id": "ns.main.one", "transaction.timeout.ms": 5_000}
        self.transactions = Transactions(
            config, tell=lambda name, _: self.told.append(name), frozen_within=lambda _: self.frozen, stopping=self.stopping
        )

    def make(self, config: dict[str, Any]) -> FakeProducer:
        self.producers.append(FakeProducer(self.script))
        return self.producers[-1]

    def run(self, give: Any = lambda: OFFSETS, /, **script: list[Any]) -> Ended:
        self.script.update(script)
        return self.transactions.run(OUTPUTS, give)

    @property
    def log(self) -> list[str]:
        return [step for step in self.producers[-1].log if step != "produce"]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Give a bench whose producers are fakes."""
    made = Bench()
    monkeypatch.setattr(transaction, "Producer", made.make)
    return made


def test_the_steps_in_order(bench: Bench) -> None:
    """Begin, produce each output as it is, send the offsets, commit."""
    assert bench.run() == Ended(State.COMMITTED)
    assert bench.producers[0].log == ["init", "begin", "produce", "produce", "produce", "offsets", "commit"]
    assert bench.producers[0].produced == [
        ("results", b"v", b"k", -1, [("h", b"1")]), ("retry", b"w", None, -1, []), ("later", b"x", None, 3, []),
    ]  # fmt: skip


def test_one_producer_serves_many_transactions(bench: Bench) -> None:
    """It is initialised once."""
    for _ in range(3):
        assert bench.run().state is State.COMMITTED
    assert len(bench.producers) == 1
    assert bench.producers[0].log.count("init") == 1


def test_offsets_are_asked_for_last_and_none_aborts(bench: Bench) -> None:
    """Ownership may change while outputs are produced: then nothing of it is committed, and that is no error."""
    seen: list[list[str]] = []
    assert bench.run(lambda: seen.append(list(bench.producers[0].log))) == Ended(State.ABORTED)
    assert seen == [["init", "begin", "produce", "produce", "produce"]]
    assert bench.log == ["init", "begin", "abort"]


def test_without_offsets_none_are_sent(bench: Bench) -> None:
    """An empty list would be refused."""
    assert bench.run(lambda: ([], "metadata")).state is State.COMMITTED
    assert "offsets" not in bench.log


@pytest.mark.parametrize("step", ["begin", "offsets"])
@pytest.mark.parametrize("error", [ABORTABLE, OTHER])
def test_before_the_commit_an_error_aborts(bench: Bench, step: str, error: KafkaException) -> None:
    """Abortable, or nothing in particular: the commit was not asked for, so it cannot have landed; the producer stays."""
    ended = bench.run(**{step: [error]})
    assert (ended.state, ended.error) == (State.ABORTED, error.args[0].str())
    assert bench.log[-1] == "abort"
    assert bench.run().state is State.COMMITTED
    assert len(bench.producers) == 1


@pytest.mark.parametrize("step", ["begin", "produce", "offsets"])
def test_a_fatal_error_before_the_commit_replaces_the_producer(bench: Bench, step: str) -> None:
    """It cannot abort any more; nothing has landed, and the next transaction has a new one."""
    assert bench.run(**{step: [FATAL]}).state is State.ABORTED
    assert bench.log[-2:] == ["purge", "poll"]
    assert "abort" not in bench.log
    assert bench.told == ["producer_replaced"]
    assert bench.run().state is State.COMMITTED
    assert len(bench.producers) == 2


def test_an_abortable_commit_has_not_landed(bench: Bench) -> None:
    """The coordinator refused it: abort, and settle again with the same producer."""
    assert bench.run(commit=[ABORTABLE]).state is State.ABORTED
    assert bench.log[-1] == "abort"
    assert bench.told == []


@pytest.mark.parametrize("error", [FATAL, OTHER, as_system_error(FATAL)])
def test_any_other_failed_commit_is_ambiguous(bench: Bench, error: BaseException) -> None:
    """It may have landed: only the committed map can tell. The producer is thrown away, never asked to abort."""
    ended = bench.run(commit=[error])
    assert ended.state is State.AMBIGUOUS
    assert "abort" not in bench.log
    bench.transactions.open()
    assert len(bench.producers) == 2


def test_fatal_is_looked_at_before_abortable(bench: Bench) -> None:
    """An error that says both has a dead producer."""
    both = kafka(KafkaError.INVALID_PRODUCER_ID_MAPPING, fatal=True, abort=True)
    assert bench.run(commit=[both]).state is State.AMBIGUOUS
    assert "abort" not in bench.log


def test_abortable_is_looked_at_before_retriable(bench: Bench) -> None:
    """Trying again would never succeed."""
    assert bench.run(offsets=[kafka(KafkaError._TIMED_OUT, retriable=True, abort=True)]).state is State.ABORTED
    assert bench.log == ["init", "begin", "offsets", "abort"]


@pytest.mark.parametrize("step", ["offsets", "commit"])
def test_a_retriable_step_is_resumed(bench: Bench, step: str) -> None:
    """The same call again, until it ends."""
    assert bench.run(**{step: [RETRIABLE, RETRIABLE]}).state is State.COMMITTED
    assert bench.log.count(step) == 3


def test_a_retriable_commit_that_outlives_the_transaction_is_ambiguous(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the transaction's time-out the coordinator has decided by itself."""
    now = iter(range(0, 1000, 3))
    monkeypatch.setattr(fencing.time, "monotonic", lambda: float(next(now)))
    assert bench.run(lambda: ([], None), commit=[RETRIABLE] * 10).state is State.AMBIGUOUS


def test_an_abort_that_fails_replaces_the_producer(bench: Bench) -> None:
    """Initialising the next one aborts what was left open: nothing has landed."""
    assert bench.run(offsets=[ABORTABLE], abort=[OTHER]).state is State.ABORTED
    assert bench.told == ["producer_replaced"]
    assert bench.run().state is State.COMMITTED
    assert len(bench.producers) == 2


def test_a_retriable_abort_is_resumed(bench: Bench) -> None:
    """As the other steps."""
    assert bench.run(offsets=[ABORTABLE], abort=[RETRIABLE]).state is State.ABORTED
    assert bench.log.count("abort") == 2
    assert len(bench.producers) == 1


def test_a_full_queue_is_waited_for(bench: Bench) -> None:
    """Polling makes room; nothing is left out or doubled."""
    assert bench.run(produce=[BufferError(), BufferError()]).state is State.COMMITTED
    assert [p[0] for p in bench.producers[0].produced] == ["results", "retry", "later"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, "size"), (KafkaError.RECORD_LIST_TOO_LARGE, "size"), (KafkaError.INVALID_RECORD, "record"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "topic"), (KafkaError._UNKNOWN_TOPIC, "topic"), (KafkaError._UNKNOWN_PARTITION, "topic"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "topic"),
    ],
)  # fmt: skip
def test_refused_outputs_are_named(bench: Bench, code: int, kind: Any) -> None:
    """By their index, with what they were refused for, whether the broker or the client said so."""
    ended = bench.run(deliver=[(1, code)], commit=[ABORTABLE])
    assert ended.state is State.ABORTED
    assert ended.refused == {1: Refusal(kind, f"refused {code}")}
    at_once = bench.run(produce=[None, kafka(code)])
    assert (at_once.state, set(at_once.refused)) == (State.ABORTED, {1})


@pytest.mark.parametrize("code", [KafkaError._PURGE_QUEUE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError._MSG_TIMED_OUT])
def test_what_was_only_purged_is_not_refused(bench: Bench, code: int) -> None:
    """It went down with the rest, and is done again. Code 45 after an abort makes no dead letter."""
    assert bench.run(deliver=[(0, code), (2, code)], commit=[ABORTABLE]).refused == {}


def test_refusals_do_not_stay(bench: Bench) -> None:
    """The next transaction begins without them."""
    bench.run(deliver=[(1, KafkaError.MSG_SIZE_TOO_LARGE)], commit=[ABORTABLE])
    assert bench.run(commit=[ABORTABLE]).refused == {}


def test_a_system_error_of_another_kind_is_raised(bench: Bench) -> None:
    """Only the binding's way of raising a Kafka error is unwrapped."""
    with pytest.raises(SystemError):
        bench.run(commit=[SystemError("other")])


# --- fencing and starting ------------------------------------------------------------------------------------------------


def test_being_fenced_once_is_a_time_out(bench: Bench) -> None:
    """The coordinator's, after a freeze or a slow transaction: a new producer, and on it goes."""
    assert bench.run(commit=[FENCED]).state is State.AMBIGUOUS
    assert bench.run().state is State.COMMITTED


def test_being_fenced_again_is_a_rival(bench: Bench) -> None:
    """Within a minute, without having stood still: another process has this name, and this one stops with the remedy."""
    bench.run(begin=[FENCED])
    with pytest.raises(Refused, match=r"ns\.main\.one.*HEADRACE_INSTANCE"):
        bench.run(begin=[FENCED])


def test_being_fenced_again_after_a_freeze_is_not(bench: Bench) -> None:
    """A process that stands still now and then proves no rival."""
    bench.frozen = True
    for _ in range(3):
        assert bench.run(begin=[FENCED]).state is State.ABORTED


def test_being_fenced_again_much_later_is_not(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two time-outs an hour apart are two time-outs."""
    now = [1_000.0]
    monkeypatch.setattr(fencing.time, "monotonic", lambda: now[0])
    bench.run(begin=[FENCED])
    now[0] += fencing.AGAIN_S
    assert bench.run(begin=[FENCED]).state is State.ABORTED


def test_being_fenced_again_after_the_time_out_is_not(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator ends a transaction that is open for its time-out, as often as that happens: no rival is needed for it."""
    now = [1_000.0]
    monkeypatch.setattr(transaction.time, "monotonic", lambda: now[0])

    def slow() -> Any:
        now[0] += 5.0
        return OFFSETS

    for _ in range(3):
        assert bench.run(slow, commit=[FENCED]).state is State.AMBIGUOUS


@pytest.mark.parametrize("step", ["offsets", "commit"])
@pytest.mark.parametrize("code", [KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.UNKNOWN_PRODUCER_ID])
def test_a_forgotten_producer_is_replaced(bench: Bench, step: str, code: int) -> None:
    """Its id is gone for good, though the client only asks for an abort: begun again with it, every transaction would end the same. A commit may have landed before."""
    assert bench.run(**{step: [kafka(code, abort=True)]}).state is (State.ABORTED if step == "offsets" else State.AMBIGUOUS)
    assert bench.told == ["producer_replaced"]
    assert bench.run() == Ended(State.COMMITTED)
    assert len(bench.producers) == 2


def test_a_producer_that_aborts_again_and_again_is_replaced(bench: Bench) -> None:
    """Whatever the error: the fifth abort in a row ends the producer. A commit in between, or a refused record, tells that it is not its fault."""
    for _ in range(transaction.ABORTS - 1):
        bench.run(offsets=[ABORTABLE])
    assert bench.run() == Ended(State.COMMITTED)
    for _ in range(2 * transaction.ABORTS):
        bench.run(deliver=[(0, KafkaError.MSG_SIZE_TOO_LARGE)], commit=[ABORTABLE])
    assert len(bench.producers) == 1
    for _ in range(transaction.ABORTS):
        bench.run(offsets=[ABORTABLE])
    bench.run()
    assert len(bench.producers) == 2


def test_starting_waits_for_the_broker(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failure is told, and tried again with a new producer."""
    monkeypatch.setattr(bench.stopping, "wait", lambda _: False)
    bench.script["init"] = [RETRIABLE, OTHER]
    bench.transactions.open()
    assert bench.told == ["kafka_unavailable"] * 2
    assert len(bench.producers) == 3


def test_starting_ends_with_the_stop(bench: Bench) -> None:
    """A broker that never comes does not hold a process that is told to stop."""
    bench.stopping.set()
    bench.script["init"] = [RETRIABLE]
    with pytest.raises(KafkaUnavailable):
        bench.transactions.open()


def test_a_refused_name_is_not_tried_again(bench: Bench) -> None:
    """Missing rights do not come by waiting."""
    bench.script["init"] = [kafka(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)]
    with pytest.raises(KafkaUnavailable, match="ACL"):
        bench.transactions.open()
    assert len(bench.producers) == 1


def test_closing_survives_a_dead_producer(bench: Bench) -> None:
    """A fatal one says so at every call: told, and thrown away all the same."""
    bench.transactions.open()
    bench.script["purge"] = [FATAL]
    bench.transactions.close()
    bench.transactions.close()
    assert bench.told == ["producer_purge_failed"]
    bench.transactions.open()
    assert len(bench.producers) == 2

"""What the mover makes of each kind of error, with a producer that fails as told."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.clock import Clock
from headrace.config import Settings
from headrace.errors import Refused
from headrace.schedule import Skew
from headrace.wheels.mover import Mover


class Failing:
    """A producer whose `where` raises `error` once."""

    where: str = ""
    error: KafkaError | None = None
    made = 0

    def __init__(self, config: dict[str, Any]) -> None:
        type(self).made += 1
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> None:
            self.calls.append(name)
            if name == self.where and self.error is not None:
                error, type(self).error = self.error, None
                raise KafkaException(error)

        return call


def _error(code: int, *, fatal: bool = False, retriable: bool = False, abort: bool = False) -> KafkaError:
    return KafkaError(code, "as told", fatal, retriable, abort)


@pytest.fixture
def mover(monkeypatch: pytest.MonkeyPatch) -> Mover:
    monkeypatch.setattr("headrace.wheels.mover.Producer", Failing)
    monkeypatch.setattr(Failing, "made", 0)
    return Mover(Settings(instance="one"), "g", "t", Clock(), lambda name, fields: None, Skew())


ABORTABLE = _error(KafkaError.ILLEGAL_GENERATION, abort=True)
SEQUENCE = _error(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, abort=True)
FATAL = _error(KafkaError.INVALID_PRODUCER_ID_MAPPING, fatal=True, abort=True)
TIMED_OUT = _error(KafkaError._TIMED_OUT, retriable=True)
STATE = _error(KafkaError._STATE)


@pytest.mark.parametrize(
    ("where", "error", "verdict"),
    [
        ("send_offsets_to_transaction", ABORTABLE, False),
        ("commit_transaction", ABORTABLE, False),
        ("commit_transaction", SEQUENCE, False),
        ("send_offsets_to_transaction", TIMED_OUT, False),
        ("commit_transaction", TIMED_OUT, None),
        ("send_offsets_to_transaction", FATAL, None),
        ("commit_transaction", FATAL, None),
        ("begin_transaction", STATE, None),
        ("nowhere", FATAL, True),
    ],
)
def test_an_error_is_read_in_the_order_fatal_abortable_retriable(
    mover: Mover, monkeypatch: pytest.MonkeyPatch, where: str, error: KafkaError, verdict: bool | None
) -> None:
    """Fatal or unknown: a new producer, and it is asked what landed. Abortable, or retriable before the commit: aborted. A timed-out commit: in doubt."""
    monkeypatch.setattr(Failing, "where", where)
    monkeypatch.setattr(Failing, "error", error)
    assert mover.open()
    assert mover.settle([], [], None) is verdict
    assert mover.open()
    assert Failing.made == (2 if verdict is None else 1), "only what is in doubt costs a producer"


def test_a_failed_abort_leaves_the_settle_in_doubt(mover: Mover, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the abort itself fails nothing is known of the transaction, so the producer is replaced (librdkafka#3297)."""
    monkeypatch.setattr(Failing, "where", "abort_transaction")
    monkeypatch.setattr(Failing, "error", TIMED_OUT)
    monkeypatch.setattr(Failing, "send_offsets_to_transaction", _abortable, raising=False)
    assert mover.open()
    assert mover.settle([], [], None) is None


def _abortable(*args: object) -> None:
    raise KafkaException(ABORTABLE)


def test_fenced_once_goes_on_and_twice_soon_is_refused(mover: Mover, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fence is the coordinator's time-out after a freeze; a second within a minute is another process of the same name."""
    monkeypatch.setattr(Failing, "where", "commit_transaction")
    monkeypatch.setattr(Failing, "error", _error(KafkaError._FENCED, fatal=True))
    assert mover.open()
    assert mover.settle([], [], None) is None
    assert mover.open()
    monkeypatch.setattr(Failing, "error", _error(KafkaError._FENCED, fatal=True))
    with pytest.raises(Refused, match="HEADRACE_INSTANCE"):
        mover.settle([], [], None)


@pytest.mark.parametrize("where", ["send_offsets_to_transaction", "commit_transaction"])
def test_a_forgotten_producer_is_replaced(mover: Mover, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The coordinator has dropped its id while nothing moved: aborted, or in doubt if it had come to the commit, and the next settle has a new producer."""
    monkeypatch.setattr(Failing, "where", where)
    monkeypatch.setattr(Failing, "error", _error(KafkaError.INVALID_PRODUCER_ID_MAPPING, abort=True))
    assert mover.open()
    assert mover.settle([], [], None) is (None if where == "commit_transaction" else False)
    assert mover.open()
    assert mover.settle([], [], None) is True
    assert Failing.made == 2


def test_a_broker_out_of_reach_is_not_an_end(mover: Mover, monkeypatch: pytest.MonkeyPatch) -> None:
    """`open` says False while the transactions cannot be initialised, and works when they can."""
    monkeypatch.setattr(Failing, "where", "init_transactions")
    monkeypatch.setattr(Failing, "error", TIMED_OUT)
    assert not mover.open()
    assert mover.open()

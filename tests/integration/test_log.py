"""Reading and writing outside a lane, against a real broker."""

from __future__ import annotations

import random
import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.config import KafkaSettings, Settings
from headrace.errors import KafkaUnavailable, Refused
from headrace.log import end_offsets, scan
from headrace.outcome import Output
from headrace.writer import DeliveryFailed, Writer


@pytest.fixture
def settings(kafka: str) -> Settings:
    return Settings(kafka=KafkaSettings(bootstrap=kafka))


@pytest.fixture
def topic(kafka: str, namespace: str) -> str:
    new = NewTopic(namespace, num_partitions=3, replication_factor=1, config={"max.message.bytes": "20000"})
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([new])[namespace].result(10)
    return namespace


def record(topic: str, number: int, size: int = 1) -> Output:
    return Output(topic, b"k%d" % number, b"%d" % number + b" " * size, [("h", b"\xff"), ("n", None)], partition=0)


def _abort_after(writer: Writer, output: Output) -> None:
    with writer.transaction():
        writer.send(output)
        writer.flush()
        raise ZeroDivisionError


def _overtaken(elder: Writer, younger: Writer, output: Output) -> None:
    with elder.transaction():
        elder.send(output)
        with younger:
            pass


def numbers(settings: Settings, topic: str, **how: object) -> list[int]:
    return [int(r.value or b"-1") for r in scan(settings, topic, timeout_s=10, **how)]  # type: ignore[arg-type]


def test_an_empty_topic_ends_at_once(settings: Settings, topic: str) -> None:
    """Nothing there is nothing read, from the start and from a time."""
    assert numbers(settings, topic) == []
    assert numbers(settings, topic, since_ms=1) == []


def test_bytes_and_headers_come_back_as_written(settings: Settings, topic: str) -> None:
    """Key, value, binary and null headers survive; a time in the future finds nothing, one in the past all."""
    with Writer(settings) as writer:
        for number in range(5):
            writer.send(record(topic, number))
    assert writer.delivered == 5
    (first, *rest) = scan(settings, topic)
    assert (first.key, first.value, list(first.headers), len(rest)) == (b"k0", b"0 ", [("h", b"\xff"), ("n", None)], 4)
    assert numbers(settings, topic, since_ms=first.timestamp_ms) == [0, 1, 2, 3, 4]
    assert numbers(settings, topic, since_ms=first.timestamp_ms + 3_600_000) == []


def test_markers_and_aborted_records_at_the_end_do_not_hang(settings: Settings, topic: str) -> None:
    """A topic that ends in a commit marker, then in an aborted transaction, is read to its end, without the aborted."""
    with Writer(settings, transactional_id=f"{topic}-w") as writer:
        with writer.transaction():
            writer.send(record(topic, 1))
        assert numbers(settings, topic) == [1]
        with pytest.raises(ZeroDivisionError):
            _abort_after(writer, record(topic, 2))
        assert numbers(settings, topic) == [1]
        with writer.transaction():
            writer.send(record(topic, 3))
    assert numbers(settings, topic) == [1, 3]


def test_an_open_transaction_is_left_out_or_waited_for(settings: Settings, topic: str, kafka: str) -> None:
    """`stable` ends before it; `high` waits until it is committed and then has it; without progress it says so."""
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": f"{topic}-open"})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"7", partition=0)
    producer.flush(10)
    assert numbers(settings, topic) == []
    assert end_offsets(settings, topic)[0] == 0
    assert end_offsets(settings, topic, end="high")[0] == 1
    with pytest.raises(KafkaUnavailable, match="transaction"):
        list(scan(settings, topic, end="high", timeout_s=1))
    commit = threading.Timer(0.5, producer.commit_transaction)
    commit.start()
    assert numbers(settings, topic, end="high") == [7]
    commit.join()


def test_what_comes_after_the_start_is_not_read(settings: Settings, topic: str) -> None:
    """The end is where it was when the scan began, however much is appended meanwhile."""
    with Writer(settings) as writer:
        for number in range(3):
            writer.send(record(topic, number))
        writer.flush()
        reading = scan(settings, topic)
        seen = [next(reading)]
        for number in range(3, 6):
            writer.send(record(topic, number))
        writer.flush()
        assert len([*seen, *reading]) == 3


def test_a_topic_that_is_not_there_is_an_error(settings: Settings) -> None:
    """Reading and writing both say so, and neither waits for ever."""
    with pytest.raises(KafkaUnavailable):
        list(scan(settings, "no-such-topic-here"))
    with pytest.raises(DeliveryFailed), Writer(settings, timeout_s=5) as writer:
        writer.send(record("no-such-topic-here", 1))


def test_a_refused_record_is_named_and_its_neighbours_are_kept(settings: Settings, topic: str) -> None:
    """A record too large for the topic comes back with its tag; the others are there."""
    with Writer(settings) as writer:
        writer.send(record(topic, 1), tag="one")
        writer.flush()
        writer.send(Output(topic, None, random.Random(1).randbytes(100_000), partition=0), tag="large")
        with pytest.raises(DeliveryFailed) as caught:
            writer.flush()
        assert [failure.tag for failure in caught.value.failures] == ["large"]
        writer.send(record(topic, 2), tag="two")
    assert (writer.delivered, writer.failed) == (2, 1)
    assert numbers(settings, topic) == [1, 2]


def test_two_writers_of_one_name_fence_each_other(settings: Settings, topic: str) -> None:
    """The elder is refused with the remedy, and what it began is never seen."""
    younger = Writer(settings, transactional_id=f"{topic}-same")
    with pytest.raises(Refused, match="another process"), Writer(settings, transactional_id=f"{topic}-same") as elder:
        _overtaken(elder, younger, record(topic, 1))
    assert numbers(settings, topic) == []

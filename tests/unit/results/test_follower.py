"""Where the follower reads on after what can happen to its topic."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from headrace.config import Settings
from headrace.errors import KafkaUnavailable
from headrace.results import Follower, follower

SPANS = {0: (0, 100), 1: (50, 100)}


class FakeConsumer:
    """Notes what it is assigned; has no messages."""

    def __init__(self) -> None:
        self.assigned: dict[int, int] = {}

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned = {at.partition: at.offset for at in partitions}

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned |= {at.partition: at.offset for at in partitions}

    def consume(self, *_: Any) -> list[Any]:
        return []

    def close(self) -> None:
        pass


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Give what the broker tells of the topic, to be changed."""
    told: dict[str, Any] = {"id": "one", "spans": dict(SPANS), "away": False}

    def described(_self: Follower, _timeout_s: float) -> tuple[str, frozenset[int]]:
        if told["away"]:
            raise KafkaUnavailable("away")
        return told["id"], frozenset(told["spans"])

    monkeypatch.setattr(Follower, "_described", described)
    monkeypatch.setattr(Follower, "_made", lambda _self: FakeConsumer())
    monkeypatch.setattr(follower, "span", lambda *_, **__: told["spans"])
    monkeypatch.setattr(follower, "AGAIN_S", 0.0)
    return told


def assigned(reader: Follower) -> dict[int, int]:
    assert isinstance(reader._consumer, FakeConsumer)
    return reader._consumer.assigned


def looked(reader: Follower) -> dict[int, int]:
    """What is assigned after the next look at the topic, and what follows from it."""
    reader._look_at_s = 0.0
    for _ in range(3):
        reader.poll(set(), 0.0)
    return assigned(reader)


def test_without_positions_from_the_end_else_from_them(topic: dict[str, Any]) -> None:
    """A fresh one begins at the ends; one that is taken up where it was, in partitions added meanwhile at the beginning."""
    fresh, again = Follower(Settings()), Follower(Settings(), {0: 7}, topic_id="one")
    for reader in (fresh, again):
        reader.open()
    assert (assigned(fresh), assigned(again)) == ({0: 100, 1: 100}, {0: 7, 1: 50})
    assert (fresh.jumped, again.jumped) == (0, 0)


@pytest.mark.parametrize(
    ("positions", "topic_id"), [({0: 7, 1: 20}, "one"), ({0: 7, 1: 200}, "one"), ({0: 7, 1: 60}, "another"), ({0: 7, 1: 60, 2: 5}, "one")]
)
def test_what_is_no_longer_there_is_told(topic: dict[str, Any], positions: dict[int, int], topic_id: str) -> None:
    """Deleted by retention, cut off, another topic, a partition less: it goes on where there is something, and says that it jumped."""
    reader = Follower(Settings(), positions, topic_id=topic_id)
    reader.open()
    assert assigned(reader) == {0: 0 if topic_id == "another" else 7, 1: 60 if len(positions) == 3 else 50}
    assert reader.jumped == 1


def test_added_partitions_are_read_from_their_beginning(topic: dict[str, Any]) -> None:
    """Without touching the others."""
    reader = Follower(Settings())
    reader.open()
    topic["spans"][2] = (0, 9)
    assert looked(reader) == {0: 100, 1: 100, 2: 0}
    assert reader.jumped == 0


def test_a_topic_made_anew_is_read_from_its_beginning(topic: dict[str, Any]) -> None:
    """Also where it has grown beyond the old positions, so that no offset tells."""
    reader = Follower(Settings())
    reader.open()
    topic |= {"id": "two", "spans": {0: (0, 500), 1: (0, 500)}}
    assert looked(reader) == {0: 0, 1: 0}
    assert reader.jumped == 1


def test_an_outage_is_told_and_lived_through(topic: dict[str, Any]) -> None:
    """Nothing is raised, positions stay, and the trouble is gone with the outage."""
    reader = Follower(Settings())
    reader.open()
    topic["away"] = True
    assert looked(reader) == {0: 100, 1: 100}
    assert reader.trouble == "away"
    reader._lost = True
    reader.poll(set(), 0.0)
    assert (reader._consumer, reader.trouble) == (None, "away")
    topic["away"] = False
    assert looked(reader) == {0: 100, 1: 100}


def test_what_is_refused_stays_told(topic: dict[str, Any]) -> None:
    """An error in place of records is no sign that all is well."""

    class Refusal:
        def key(self) -> None:
            return None

        def error(self) -> KafkaError:
            return KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)

    reader = Follower(Settings())
    reader.open()
    batches: list[list[Any]] = [[Refusal()], []]
    assert reader._consumer is not None
    reader._consumer.consume = lambda *_: batches.pop(0)  # type: ignore[method-assign]  # the fake's
    assert reader.poll(set(), 0.0) == []
    assert "uthorization" in (reader.trouble or "")

"""What the wheels lost is told once an assignment, and never silently skipped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.committed import Standing
from headrace.errors import KafkaUnavailable
from headrace.wheels.losses import Losses


class Committed:
    """Partition 1 has lost ten records."""

    def __init__(self) -> None:
        self.failing = False
        self.asked: list[set[int]] = []

    def read(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Standing]:
        wanted = list(partitions)
        self.asked.append({partition for _, partition in wanted})
        if self.failing:
            raise KafkaUnavailable("away")
        return {tp: Standing(20, None, 30 if tp[1] == 1 else 20, 40) for tp in wanted}


def test_each_assignment_is_looked_at_once() -> None:
    """A partition that was given back is looked at again when it comes back; one that went is not."""
    committed, told = Committed(), list[tuple[str, Any]]()
    losses = Losses(committed, "later", lambda name, fields: told.append((name, fields["records"])))  # type: ignore[arg-type]  # a fake
    losses.assigned([0, 1, 2])
    losses.forget([2])
    assert losses.told()
    assert losses.told()
    assert committed.asked == [{0, 1}]
    losses.assigned([1])
    assert losses.told()
    assert told == [("records_lost", 10)] * 2


def test_a_broker_that_does_not_answer_is_asked_again() -> None:
    """Nothing may be committed over a loss that is not told."""
    committed, told = Committed(), list[str]()
    losses = Losses(committed, "later", lambda name, _: told.append(name))  # type: ignore[arg-type]  # a fake
    losses.assigned([1])
    committed.failing = True
    assert not losses.told()
    committed.failing = False
    assert losses.told()
    assert told == ["committed_unreadable", "records_lost"]


def test_what_was_never_committed_is_lost_from_the_beginning() -> None:
    """Deleted before the first move of its partition: everything below the log's start was ours, and none of it was moved."""
    told = list[tuple[str, Any]]()

    class Fresh(Committed):
        def read(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Standing]:
            return {tp: Standing(-1, None, 30, 40) for tp in partitions}

    losses = Losses(Fresh(), "later", lambda name, fields: told.append((name, fields["records"])))  # type: ignore[arg-type]  # a fake
    losses.assigned([0])
    assert losses.told()
    assert told == [("records_lost", 30)]

"""What a source measures of its partitions: how far they can be read, whether it has joined, and how old the oldest record is."""

from __future__ import annotations

import json
from collections import deque
from typing import Any, NamedTuple

import pytest

from headrace.gauges import SPARE_MS, Gauges
from headrace.vitals import Reading, Standing

A = ("main", 0)
NOW_MS = 1_800_000_000_000


class Stamped(NamedTuple):
    offset: int
    timestamp_ms: int


class Message:
    def __init__(self, stamp: int) -> None:
        self.stamp = stamp

    def offset(self) -> int:
        return 9

    def error(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, self.stamp


def standing(frontier: int, in_flight: int) -> Standing:
    return Standing(frontier, in_flight, 0, in_flight, 0, 0.0, 0.0)


def measured(gauges: Gauges, at: Standing, *stash: Message, full: bool = False) -> Reading:
    gauges.measure(1.0, {A: deque(stash)}, {A: at}, {A} if full else set())
    return gauges.readings[A]


def statistics(group: dict[str, Any] | None = None, **partition: int) -> str:
    return json.dumps({"cgrp": group or {}, "topics": {"main": {"partitions": {"0": partition, "-1": {}}}}})


def test_how_far_a_partition_can_be_read_is_its_stable_end() -> None:
    """Behind an open transaction there is nothing to read; where the client has no stable end yet, the high watermark has to do."""
    gauges = Gauges()
    assert measured(gauges, standing(10, 0)).end == -1
    gauges.statistics(statistics(ls_offset=17, hi_offset=40))
    assert measured(gauges, standing(10, 0)).end == 17
    gauges.statistics(statistics(ls_offset=-1, hi_offset=40))
    assert measured(gauges, standing(10, 0)).end == 40
    gauges.forget(A)
    assert measured(gauges, standing(10, 0)).end == -1


@pytest.mark.parametrize("text", ["{}", '{"topics": {}, "cgrp": {}}', '{"topics": {"main": {}}}'])
def test_statistics_may_say_little(text: str) -> None:
    """As at the start."""
    gauges = Gauges()
    gauges.statistics(text)
    assert not gauges.joined("consumer")


@pytest.mark.parametrize(
    ("protocol", "group", "joined"),
    [
        ("classic", {"state": "up", "join_state": "steady"}, True),
        ("classic", {"state": "up", "join_state": "init", "stateage": 60_000}, False),
        ("consumer", {"state": "up", "join_state": "init", "stateage": SPARE_MS}, True),
        ("consumer", {"state": "up", "join_state": "init", "stateage": SPARE_MS - 1}, False),
        ("consumer", {"state": "wait-coord", "join_state": "init", "stateage": 60_000}, False),
    ],
)
def test_a_member_without_partitions_has_joined_too(protocol: str, group: dict[str, Any], joined: bool) -> None:
    """No callback tells it that it gets nothing."""
    gauges = Gauges()
    gauges.statistics(statistics(group))
    assert gauges.joined(protocol) == joined


def test_the_oldest_unsettled_record_is_that_of_the_oldest_batch_not_yet_passed() -> None:
    """One mark a batch: exact to a batch, whatever the order of the timestamps in it."""
    gauges = Gauges()
    gauges.took(A, [Stamped(0, NOW_MS + 5), Stamped(1, NOW_MS + 1)])
    gauges.took(A, [Stamped(2, NOW_MS + 9)])
    assert measured(gauges, standing(0, 3)).oldest_ms == NOW_MS + 1
    assert measured(gauges, standing(1, 2)).oldest_ms == NOW_MS + 1
    assert measured(gauges, standing(2, 1)).oldest_ms == NOW_MS + 9
    assert measured(gauges, standing(3, 0)).oldest_ms is None
    assert measured(gauges, standing(3, 0), Message(NOW_MS + 7)).oldest_ms == NOW_MS + 7, "read, and not yet dispatched"


def test_records_without_a_timestamp_are_of_no_age() -> None:
    """-1 is no date."""
    gauges = Gauges()
    gauges.took(A, [Stamped(0, -1), Stamped(1, 0)])
    assert measured(gauges, standing(0, 2), Message(-1)).oldest_ms is None


def test_what_is_held_and_what_has_no_room_is_told() -> None:
    """By partition, and of those not heard of yet as well."""
    gauges = Gauges()
    gauges.came_to(A, Message(1))
    assert measured(gauges, standing(10, 3), Message(1), Message(2), full=True)[:4] == (10, -1, 2, True)
    gauges.forget(A)
    gauges.measure(2.0, {A: deque()}, {}, set())
    assert gauges.readings == {A: Reading(-1, -1)}
    assert not gauges.due(2.5)
    assert gauges.due(3.0)

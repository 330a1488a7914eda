"""Too many records waiting for a retry stop the main lane, once, and it goes on by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.committed import Standing
from headrace.offsets import Map, Sequence
from headrace.parked import Parked


class Source:
    def __init__(self) -> None:
        self.holds: set[str] = set()

    def hold(self, reason: str) -> None:
        self.holds.add(reason)

    def unhold(self, reason: str) -> None:
        self.holds.discard(reason)


def watched(cap: int) -> tuple[Source, Parked, list[str]]:
    source, told = Source(), list[str]()

    def tell(name: str, _fields: Mapping[str, Any]) -> None:
        told.append(name)

    return source, Parked(source, dict, cap, tell=tell), told


def test_main_stops_above_the_cap_and_goes_on_well_below_it() -> None:
    """Hysteresis: a count that hovers around the cap neither toggles the lane nor alerts again."""
    source, parked, told = watched(cap=100)
    states = []
    for count in (99, 100, 101, 99, 101, 81, 80, 79, 100, 101):
        parked.judge(count)
        states.append(bool(source.holds))
    assert states == [False, False, True, True, True, True, True, False, False, True]
    assert told == ["alert", "alert"]


def test_lag_counts_what_is_unresolved() -> None:
    """Nothing committed: all of the log. A map: its open offsets, and what lies behind it. Offsets below the log's start are gone."""
    sequence = Sequence("abc", 1)
    assert Standing(-1, None, 10, 30).lag == 20
    assert Standing(15, None, 10, 30).lag == 15
    assert Standing(5, None, 10, 30).lag == 20
    assert Standing(15, Map(15, 25, 0b101, sequence), 10, 30).lag == 7
    assert Standing(30, Map(30, 30, 0, sequence), 10, 30).lag == 0

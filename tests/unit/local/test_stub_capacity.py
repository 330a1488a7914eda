"""Claims about the stub's capacity, on a clock of its own: who is served when, and what a drop of the rate does."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest

from headrace.local.stub.capacity import Capacity, CapacitySpec


class _Handle:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class _Clock:
    """Timers that run when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None], _Handle]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        handle = _Handle()
        heapq.heappush(self._due, (self.now_s + delay, len(self._due), callback, handle))
        return cast(asyncio.TimerHandle, handle)

    def run_until(self, end_s: float) -> None:
        while self._due and self._due[0][0] <= end_s + 1e-9:
            self.now_s, _, callback, handle = heapq.heappop(self._due)
            if not handle.cancelled:
                callback()
        self.now_s = end_s


class _Bench:
    def __init__(self, spec: CapacitySpec) -> None:
        self.clock = _Clock()
        self.capacity = Capacity(self.clock, spec)
        self.ended: dict[str, float] = {}

    def enter(self, name: str, tokens: int = 0, hold_s: float = 0.0) -> bool:
        return self.capacity.enter(tokens, hold_s, partial(self._note, name))

    def _note(self, name: str) -> None:
        assert name not in self.ended
        self.ended[name] = round(self.clock.now_s, 6)


def test_calls_share_the_token_rate() -> None:
    """Two calls of 100 tokens at 100 tokens/s end together after two seconds; a shorter one ends first."""
    bench = _Bench(CapacitySpec(token_rate=100))
    bench.enter("a", 100)
    bench.enter("b", 100)
    bench.clock.run_until(10)
    assert bench.ended == {"a": 2.0, "b": 2.0}
    bench.enter("long", 100)
    bench.enter("short", 10)
    bench.clock.run_until(20)
    assert bench.ended["short"] == 10.2
    assert bench.ended["long"] == 11.1


def test_a_drop_of_the_rate_counts_from_its_moment_and_passes() -> None:
    """Half done when the rate falls by 80 % for a second, a call ends as the arithmetic says."""
    bench = _Bench(CapacitySpec(token_rate=100))
    bench.enter("a", 100)
    bench.clock.run_until(0.5)
    bench.capacity.set(CapacitySpec(token_rate=20, for_s=1))
    bench.clock.run_until(10)
    assert bench.ended == {"a": 1.8}  # 50 tokens in 0.5 s, 20 in the second of drought, 30 in 0.3 s
    assert bench.capacity.spec == CapacitySpec(token_rate=100)


def test_a_second_drop_does_not_become_what_is_restored() -> None:
    """What comes back after a passing change is what held before the first of them."""
    bench = _Bench(CapacitySpec(slots=8))
    bench.capacity.set(CapacitySpec(slots=2, for_s=5))
    bench.capacity.set(CapacitySpec(slots=1, for_s=5))
    bench.clock.run_until(6)
    assert bench.capacity.spec == CapacitySpec(slots=8)


def test_slots_are_taken_in_order_of_arrival() -> None:
    """With one slot held a second each, the third call ends after three seconds."""
    bench = _Bench(CapacitySpec(slots=1))
    for name in "abc":
        assert bench.enter(name, hold_s=1)
    assert (bench.capacity.active, bench.capacity.waiting) == (1, 2)
    bench.clock.run_until(10)
    assert bench.ended == {"a": 1, "b": 2, "c": 3}
    assert (bench.capacity.active, bench.capacity.waiting) == (0, 0)


def test_beyond_the_queue_a_call_is_refused() -> None:
    """One slot and a queue of one take two calls; the third is turned away and takes nothing."""
    bench = _Bench(CapacitySpec(slots=1, queue=1))
    assert [bench.enter(name, hold_s=1) for name in "abc"] == [True, True, False]
    bench.clock.run_until(5)
    assert set(bench.ended) == {"a", "b"}
    assert bench.capacity.has_room


def test_fewer_slots_end_nothing_that_runs() -> None:
    """A drop of the slots keeps what is served and holds back the rest until there is room again."""
    bench = _Bench(CapacitySpec(slots=3))
    for name in "abcd":
        bench.enter(name, hold_s=1)
    bench.capacity.set(CapacitySpec(slots=0))
    bench.clock.run_until(5)
    assert set(bench.ended) == {"a", "b", "c"}
    bench.capacity.set(CapacitySpec(slots=1))
    bench.clock.run_until(7)
    assert bench.ended["d"] == 6


def test_a_lifted_rate_ends_what_was_generating() -> None:
    """Without a rate nothing has to wait for tokens."""
    bench = _Bench(CapacitySpec(token_rate=1))
    bench.enter("a", 1000)
    bench.capacity.set(CapacitySpec())
    assert bench.ended == {"a": 0}


def test_a_long_queue_of_free_calls_is_no_deep_recursion() -> None:
    """Ten thousand waiting calls that cost nothing are all served when the slots open."""
    bench = _Bench(CapacitySpec(slots=0))
    for n in range(10_000):
        bench.enter(str(n))
    bench.capacity.set(CapacitySpec(slots=1))
    assert len(bench.ended) == 10_000


@pytest.mark.parametrize("field", [{"slots": -1}, {"token_rate": 0}, {"queue": -1}, {"overflow": "tea"}, {"for_s": 0}])
def test_a_capacity_that_cannot_be_is_refused(field: dict[str, object]) -> None:
    """Each bound has its limits."""
    with pytest.raises(ValueError, match=next(iter(field))):
        CapacitySpec.model_validate(field)

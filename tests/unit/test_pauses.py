"""Shut targets: one alert, one probe, a pause that doubles, and no more shut than what failed."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import pauses
from headrace.config import PauseSettings
from headrace.errors import ErrorClass, Failure
from headrace.pauses import Pause, Pauses, Scope


class Target(NamedTuple):
    provider: str
    model: str
    key_id: str


BIG, SMALL, OTHER = Target("p", "big", "k1"), Target("p", "small", "k1"), Target("p", "big", "k2")
QUOTA = Failure(ErrorClass.QUOTA_EXHAUSTED, "m", status_code=429, called=True)
NO_KEY = Failure(ErrorClass.AUTH, "m", status_code=401, called=True)
UNGRANTED = Failure(ErrorClass.AUTH, "m", status_code=403, called=True)


def shutters(*configured: Target, first_s: float = 30, cap_s: float = 100) -> Pauses:
    return Pauses(PauseSettings(first_s=first_s, cap_s=cap_s), configured or (BIG,))


@pytest.mark.parametrize("failure", [QUOTA, NO_KEY])
def test_quota_and_key_shut_all_models_of_that_key(failure: Failure) -> None:
    """One failed call shuts every model of its key, and no other key; only the first failure alerts."""
    shut = shutters()
    assert shut.shut(BIG, failure, 0) is True
    assert shut.shut(SMALL, failure, 5) is False
    assert [shut.may_call(target, 10) for target in (BIG, SMALL, OTHER)] == [False, False, True]
    assert shut.shut_until(SMALL, 10) == 30_000


def test_an_ungranted_model_stops_only_itself() -> None:
    """A 403 shuts one model of one key; the lane goes on."""
    shut = shutters()
    assert shut.shut(BIG, UNGRANTED, 0)
    assert [shut.may_call(target, 10) for target in (BIG, SMALL, OTHER)] == [False, True, True]
    assert not shut.all_shut(10)


def test_a_spent_quota_under_403_is_of_the_key() -> None:
    """403 with a quota's code shuts the key, not the model alone."""
    shut = shutters()
    shut.shut(BIG, Failure(ErrorClass.QUOTA_EXHAUSTED, "m", status_code=403), 0)
    assert not shut.may_call(SMALL, 1)


def test_exactly_one_call_passes_at_reopening() -> None:
    """When the pause has run out, the first to ask passes, and until it reports back nobody else does."""
    shut = shutters()
    shut.shut(BIG, QUOTA, 0)
    assert shut.shut_until(BIG, 30_000) is None
    assert [shut.may_call(SMALL, 30_000 + step) for step in range(100)].count(True) == 1
    assert shut.shut_until(BIG, 30_200) == 30_200 + pauses.PROBE_WAIT_MS
    shut.succeeded(SMALL)
    assert [shut.may_call(BIG, 30_300) for _ in range(5)] == [True] * 5


def test_a_failed_probe_doubles_the_pause_up_to_its_cap() -> None:
    """30, 60, 100, 100 s: each failed reopening doubles, the cap holds, and nobody is told again."""
    shut, now, lengths = shutters(), 0, []
    for again in range(4):
        assert shut.shut(BIG, QUOTA, now) is (again == 0)
        until = shut.shut_until(BIG, now)
        assert until is not None
        lengths.append((until - now) // 1000)
        now = until
        assert shut.may_call(BIG, now)
    assert lengths == [30, 60, 100, 100]


def test_late_failures_of_calls_in_flight_do_not_prolong() -> None:
    """Two hundred calls that fail together are one pause, not two to the two hundredth."""
    shut = shutters()
    told = [shut.shut(BIG, QUOTA, now) for now in range(200)]
    assert told == [True] + [False] * 199
    assert shut.shut_until(BIG, 200) == 30_000


def test_a_late_success_opens_nothing() -> None:
    """An answer to a call sent before the pause says nothing about the key now."""
    shut = shutters()
    shut.shut(BIG, QUOTA, 0)
    shut.succeeded(BIG)
    assert not shut.may_call(BIG, 10)


def test_an_abandoned_probe_lets_the_next_one_try() -> None:
    """A probe that timed out proves nothing: the next call may probe; one never reported lapses by itself."""
    shut = shutters()
    shut.shut(BIG, QUOTA, 0)
    assert shut.may_call(BIG, 30_000)
    shut.abandoned(BIG)
    assert shut.may_call(BIG, 30_001)
    assert not shut.may_call(BIG, 30_002)
    assert shut.may_call(BIG, 30_001 + pauses.PROBE_LAPSE_MS)


def test_both_scopes_must_be_open() -> None:
    """A model that is shut stays shut when its key reopens, and its key's probe is not wasted on it."""
    shut = shutters()
    shut.shut(BIG, UNGRANTED, 20_000)
    shut.shut(BIG, QUOTA, 0)
    assert not shut.may_call(BIG, 40_000)
    assert shut.may_call(SMALL, 40_000)


def test_the_lane_stops_when_every_key_is_shut() -> None:
    """All configured keys shut: stop. One of them open, or none configured: go on. At reopening one probe, then stop again."""
    shut = shutters(BIG, OTHER)
    shut.shut(BIG, QUOTA, 0)
    assert not shut.all_shut(1)
    shut.shut(OTHER, NO_KEY, 0)
    assert shut.all_shut(1)
    assert not shut.all_shut(30_000)
    assert shut.may_call(BIG, 30_000)
    assert shut.may_call(OTHER, 30_000)
    assert shut.all_shut(30_001)
    assert not Pauses(PauseSettings()).all_shut(0)


def test_retry_after_lengthens_a_pause() -> None:
    """The provider's own wish is never undercut, within a day."""
    shut = shutters()
    shut.shut(BIG, Failure(ErrorClass.QUOTA_EXHAUSTED, "m", retry_after_ms=500_000), 0)
    assert shut.shut_until(BIG, 0) == 500_000
    shut.shut(OTHER, Failure(ErrorClass.QUOTA_EXHAUSTED, "m", retry_after_ms=10**15), 0)
    assert shut.shut_until(OTHER, 0) == pauses.LONGEST_MS


def test_pauses_are_shared() -> None:
    """What one process shut, another takes over; nothing over is taken, nothing is reopened, and the longer wins."""
    one, two = shutters(), shutters()
    one.shut(BIG, QUOTA, 0)
    assert two.merge(one.snapshot(10), 10) == [Scope("p", "k1", None)]
    assert not two.may_call(SMALL, 10)
    assert two.merge(one.snapshot(10), 10) == []
    assert one.snapshot(30_000) == []
    two.merge([Pause(Scope("p", "k1", None), 20_000, 30_000)], 10)
    assert two.shut_until(BIG, 10) == 30_000
    assert two.may_call(BIG, 30_000)
    three = shutters()
    assert three.merge([Pause(Scope("p", "k1", None), 20_000, 30_000)], 20_000) == []
    assert [three.may_call(BIG, 20_000) for _ in range(3)] == [True] * 3


def test_model_names_from_records_cannot_grow_the_table() -> None:
    """Ten thousand ungranted names and more: the table keeps its size, and the key's own pause."""
    shut = shutters()
    shut.shut(BIG, QUOTA, 0)
    for number in range(pauses.MODELS + 50):
        shut.shut(Target("p", f"m{number}", "k2"), UNGRANTED, number)
    assert len(shut.snapshot(20_000)) == pauses.MODELS
    assert not shut.may_call(BIG, 20_000)


@given(st.lists(st.tuples(st.sampled_from(["shut", "ask", "ok", "abandon"]), st.integers(0, 40_000)), max_size=60))
def test_over_any_history_one_probe_passes(steps: list[tuple[str, int]]) -> None:
    """Nothing passes before a pause is over; then exactly one, until it reports back or lapses; after a success, all."""
    shut, now = shutters(), 0
    until: int | None = None  # None: open
    lapses = 0
    for step, passed in steps:
        now += passed
        if step == "shut":
            shut.shut(BIG, QUOTA, now)
            if until is None or now >= until:
                until, lapses = shut.shut_until(BIG, now), 0
                assert until is not None
                assert 30_000 <= until - now <= 100_000
        elif step == "ask":
            allowed = until is None or now >= max(until, lapses)
            assert (shut.shut_until(BIG, now) is None) is allowed
            assert shut.may_call(BIG, now) is allowed
            if allowed and until is not None:
                lapses = now + pauses.PROBE_LAPSE_MS
        elif step == "ok":
            until = None if lapses else until
            lapses = 0
        else:
            lapses = 0
        if step in ("ok", "abandon"):
            shut.succeeded(BIG) if step == "ok" else shut.abandoned(BIG)


def test_calls_from_before_the_pause_neither_reopen_nor_free_the_probe() -> None:
    """An old call that ends while the probe is out proves nothing: the target stays shut, and no second probe goes out."""
    shut = Pauses(PauseSettings(first_s=30.0), [BIG])
    shut.shut(BIG, QUOTA, 1_000)
    assert shut.may_call(BIG, 31_000)
    shut.succeeded(BIG, 500)
    shut.abandoned(BIG, 900)
    assert not shut.may_call(BIG, 31_001)
    shut.succeeded(BIG, 31_000)
    assert [shut.may_call(BIG, 31_002) for _ in range(3)] == [True] * 3

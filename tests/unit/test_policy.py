"""The arithmetic of retries: never early, never past a bound, repeatable from its seed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import DEFAULT_POLICIES, ClassPolicy
from headrace.envelope import Position, Trail
from headrace.errors import ErrorClass, Failure
from headrace.policy import Decision, GiveUp, RetryAt, ShutTarget, decide, window_s

E = ErrorClass
NOW = 1_800_000_000_000
DAY_MS = 86_400_000
ORIGIN = Position("t", 0, 0)

classes = st.sampled_from(list(ErrorClass))
policies = st.builds(
    ClassPolicy,
    calls=st.none() | st.integers(0, 20),
    in_all_s=st.none() | st.floats(0.001, 1e6),
    base_s=st.floats(0.001, 3600),
    cap_s=st.floats(0.001, 86_400),
)
asked = st.none() | st.integers(0, 10**15)


def judge(
    error_class: ErrorClass,
    *,
    policy: ClassPolicy | None = None,
    spent: int = 0,
    elapsed_ms: int = 0,
    latency_ms: int = 100,
    deadline_ms: int | None = None,
    longest_ms: int = DAY_MS,
    retry_after_ms: int | None = None,
    should_retry: bool | None = None,
    seed: int = 1,
) -> Decision:
    return decide(
        Failure(error_class, "m", retry_after_ms=retry_after_ms, should_retry=should_retry, called=True),
        Trail(ORIGIN, retry_count=spent, elapsed_ms=elapsed_ms),
        policy=policy or DEFAULT_POLICIES[error_class],
        latency_ms=latency_ms,
        now_ms=NOW,
        deadline_ms=deadline_ms,
        longest_delay_ms=longest_ms,
        rng=random.Random(seed),
    )


@given(
    error_class=classes, policy=policies, spent=st.integers(0, 10**9), elapsed_ms=st.integers(0, 10**9),
    latency_ms=st.integers(0, 10**6), deadline_ms=st.none() | st.integers(NOW - 10**6, NOW + 10**8),
    longest_ms=st.integers(4_000, 7 * DAY_MS), retry_after_ms=asked,
    should_retry=st.none() | st.booleans(), seed=st.integers(0, 2**32),
)  # fmt: skip
def test_a_retry_is_never_early_and_never_past_a_bound(
    error_class: ErrorClass, policy: ClassPolicy, spent: int, elapsed_ms: int, latency_ms: int, deadline_ms: int | None,
    longest_ms: int, retry_after_ms: int | None, should_retry: bool | None, seed: int,
) -> None:  # fmt: skip
    """Whatever comes in: quota and auth shut the target and spend nothing; a retry keeps every bound."""
    decision = judge(
        error_class, policy=policy, spent=spent, elapsed_ms=elapsed_ms, latency_ms=latency_ms, deadline_ms=deadline_ms,
        longest_ms=longest_ms, retry_after_ms=retry_after_ms, should_retry=should_retry, seed=seed,
    )  # fmt: skip
    assert isinstance(decision, ShutTarget) == (error_class in {E.QUOTA_EXHAUSTED, E.AUTH})
    if isinstance(decision, GiveUp):
        assert decision.failure.error_class is error_class
        assert decision.elapsed_ms == elapsed_ms + latency_ms
    if isinstance(decision, RetryAt):
        assert should_retry is not False
        assert decision.due_ms == NOW + decision.backoff_ms >= NOW + (retry_after_ms or 0)
        assert deadline_ms is None or decision.due_ms < deadline_ms
        assert decision.backoff_ms <= longest_ms
        assert decision.elapsed_ms == elapsed_ms + latency_ms + decision.backoff_ms
        if not (should_retry and error_class is E.INVALID_REQUEST and policy.calls == 1):
            assert policy.calls is None or spent + 1 < policy.calls
            assert policy.in_all_s is None or decision.elapsed_ms <= policy.in_all_s * 1000
        if retry_after_ms is None:
            assert decision.backoff_ms <= window_s(policy, spent + 1) * 1000 + 1


@given(policies, st.integers(1, 10**9), st.integers(1, 100))
def test_the_window_grows_to_its_cap(policy: ClassPolicy, calls: int, more: int) -> None:
    """The widest backoff never shrinks with further calls, and never exceeds its cap."""
    assert window_s(policy, calls) <= window_s(policy, calls + more) <= policy.cap_s


@pytest.mark.parametrize(
    ("error_class", "calls"),
    [
        (E.SERVER_ERROR, 5),
        (E.OVERLOADED, 5),
        (E.CONNECTION, 5),
        (E.TIMEOUT, 3),
        (E.INVALID_RESPONSE, 3),
        (E.INTERNAL, 3),
        (E.NOT_FOUND, 1),
        (E.INVALID_REQUEST, 1),
    ],
)
def test_calls_equal_the_configured_attempts(error_class: ErrorClass, calls: int) -> None:
    """A provider that always fails alike is called exactly as often as its class allows."""
    spent = 0
    while isinstance(judge(error_class, spent=spent, seed=spent), RetryAt):
        spent += 1
    assert spent + 1 == calls


def test_a_constant_429_follows_the_curve_for_an_hour() -> None:
    """Backoff from 2 s doubling to 60 s, no bound on calls: an hour of 429 costs some hundred calls, not thousands."""
    rng, spent, elapsed = random.Random(7), 0, 0
    failure = Failure(E.RATE_LIMITED, "m", called=True)
    while True:
        decision = decide(
            failure, Trail(ORIGIN, retry_count=spent, elapsed_ms=elapsed), policy=DEFAULT_POLICIES[E.RATE_LIMITED], latency_ms=20,
            now_ms=NOW + elapsed, deadline_ms=None, longest_delay_ms=DAY_MS, rng=rng,
        )  # fmt: skip
        if not isinstance(decision, RetryAt):
            break
        assert decision.backoff_ms <= min(60_000, 2_000 * 2**spent) + 1
        spent, elapsed = spent + 1, decision.elapsed_ms
    assert 90 < spent < 180
    assert 3_500_000 < elapsed <= 3_600_000


@pytest.mark.parametrize("retry_after_s", [0, 1, 59, 60, 61, 121, 3000])
def test_retry_after_is_spread_by_a_fifth_at_most(retry_after_s: int) -> None:
    """Never earlier than asked, and at most 20 % later, unless the jittered backoff itself is longer."""
    delays = []
    for seed in range(200):
        decision = judge(E.RATE_LIMITED, retry_after_ms=retry_after_s * 1000, seed=seed)
        assert isinstance(decision, RetryAt)
        delays.append(decision.backoff_ms)
    assert min(delays) >= retry_after_s * 1000
    assert max(delays) <= max(2_000, retry_after_s * 1200) + 1
    assert len(set(delays)) > 50


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"deadline_ms": NOW}, "deadline"),
        ({"elapsed_ms": 3_600_000}, "in all"),
        ({"retry_after_ms": 2 * DAY_MS, "policy": ClassPolicy()}, "longest delay"),
        ({"should_retry": False}, "asks not to retry"),
        ({"spent": 4, "policy": ClassPolicy(calls=5)}, "after 5 calls"),
    ],
)
def test_giving_up_names_the_bound(more: dict[str, object], named: str) -> None:
    """A dead letter says which bound ended it, under the class of the failure itself."""
    decision = judge(E.RATE_LIMITED, **more)  # type: ignore[arg-type]
    assert isinstance(decision, GiveUp)
    assert named in decision.failure.message
    assert decision.failure.error_class is E.RATE_LIMITED


def test_no_retry_is_planned_past_its_deadline() -> None:
    """A backoff that would end at the deadline or later ends the request now; a shorter one is kept."""
    decisions = [judge(E.RATE_LIMITED, deadline_ms=NOW + 1_000, seed=seed) for seed in range(200)]
    planned = [decision.due_ms for decision in decisions if isinstance(decision, RetryAt)]
    assert 50 < len(planned) < 150
    assert max(planned) < NOW + 1_000


def test_should_retry_is_heard_only_where_nothing_is_known() -> None:
    """`x-should-retry: true` revives an unknown 4xx under a server error's bounds, never a class known to be final."""
    assert isinstance(judge(E.INVALID_REQUEST, should_retry=True), RetryAt)
    assert isinstance(judge(E.INVALID_REQUEST, should_retry=True, spent=4), GiveUp)
    for final in (E.CONTENT_POLICY, E.CONTEXT_LENGTH, E.TOO_LARGE, E.NOT_FOUND):
        assert isinstance(judge(final, should_retry=True), GiveUp)


def test_a_decision_is_repeatable() -> None:
    """The same seed gives the same decision: nothing is drawn from the process-wide generator."""
    assert judge(E.TIMEOUT, seed=5) == judge(E.TIMEOUT, seed=5) != judge(E.TIMEOUT, seed=6)

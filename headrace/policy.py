"""What follows from a failure: pure arithmetic over attempts, time and the provider's wishes. Returns a decision, performs nothing."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, cast

from tenacity.wait import wait_exponential

from headrace.config import DEFAULT_POLICIES, ClassPolicy
from headrace.envelope import Trail
from headrace.errors import ErrorClass, Failure
from headrace.redact import MESSAGE_BYTES, clip
from headrace.trail import LAST_ATTEMPTS

if TYPE_CHECKING:
    from tenacity import RetryCallState

# Retry-After is one moment for everybody: later callers are spread over up to this share of it.
SPREAD = 0.2
_SHUTS_TARGET = frozenset({ErrorClass.QUOTA_EXHAUSTED, ErrorClass.AUTH})


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Call again at `due_ms` (epoch ms). `elapsed_ms` is the new sum of calls and planned backoffs, this one included."""

    failure: Failure
    due_ms: int
    backoff_ms: int
    elapsed_ms: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further call. The failure keeps its class; its message names the bound that was met, if one was."""

    failure: Failure
    elapsed_ms: int


@dataclass(frozen=True, slots=True)
class ShutTarget:
    """The target cannot be used by anyone: pause it and defer the request. No attempt is spent."""

    failure: Failure


Decision = RetryAt | GiveUp | ShutTarget


class _Attempt(NamedTuple):
    """What tenacity's wait strategies read of a retry's state."""

    attempt_number: int


def decide(
    failure: Failure,
    trail: Trail,
    *,
    policy: ClassPolicy,
    latency_ms: int,
    now_ms: int,
    deadline_ms: int | None,
    longest_delay_ms: int,
    rng: random.Random,
) -> Decision:
    """What follows from this failure of a call that took `latency_ms` (DESIGN §5).

    `policy.calls` bounds the calls spent on the request so far, this one included, under the class of the present
    failure; calls that were only rate limited do not count, since they are bounded by time alone. A provider's
    `x-should-retry: false` ends a request; `true` is heard only for `invalid_request`, the class of 4xx replies we
    know nothing about, and grants it what a server error may cost.
    """
    if failure.error_class in _SHUTS_TARGET:
        return ShutTarget(failure)
    calls, elapsed_ms = trail.retry_count + 1, trail.elapsed_ms + max(0, latency_ms)
    if failure.should_retry and failure.error_class is ErrorClass.INVALID_REQUEST and policy.calls == 1:
        policy = DEFAULT_POLICIES[ErrorClass.SERVER_ERROR]
    if failure.should_retry is False:
        return _give_up(failure, elapsed_ms, "the provider asks not to retry")
    counted = _counted(trail) + 1
    if policy.calls is not None and counted >= policy.calls:
        return _give_up(failure, elapsed_ms, f"after {counted} calls" if counted > 1 else None)
    backoff_ms = _backoff_ms(failure, policy, calls, rng)
    bound = _bound_met(policy, elapsed_ms + backoff_ms, backoff_ms, now_ms, deadline_ms, longest_delay_ms)
    if bound is not None:
        return _give_up(failure, elapsed_ms, bound)
    return RetryAt(failure, now_ms + backoff_ms, backoff_ms, elapsed_ms + backoff_ms)


def window_s(policy: ClassPolicy, calls: int) -> float:
    """The widest backoff after that many calls, in seconds: `base_s`, doubled for each further call, at most `cap_s`."""
    wait = wait_exponential(multiplier=policy.base_s, max=policy.cap_s)
    return wait(cast("RetryCallState", _Attempt(calls)))


def _counted(trail: Trail) -> int:
    """Calls spent before that a bound on calls counts. Of those the trail no longer names, none; of those it never named, all."""
    named = trail.attempts
    unnamed = max(0, trail.retry_count - len(named)) if len(named) < LAST_ATTEMPTS else 0
    return unnamed + sum(attempt.error_class != ErrorClass.RATE_LIMITED for attempt in named)


def _backoff_ms(failure: Failure, policy: ClassPolicy, calls: int, rng: random.Random) -> int:
    # Full jitter. Drawn here, not by tenacity's wait_random_exponential: that one draws from the process-wide
    # generator, and a decision must be repeatable from its seed.
    backoff = math.ceil(rng.uniform(0.0, window_s(policy, calls)) * 1000)
    if failure.retry_after_ms is None:
        return backoff
    asked = max(0, failure.retry_after_ms)
    return max(backoff, asked + math.ceil(min(asked, 2**53) * rng.uniform(0.0, SPREAD)))


def _bound_met(
    policy: ClassPolicy, planned_ms: int, backoff_ms: int, now_ms: int, deadline_ms: int | None, longest_delay_ms: int
) -> str | None:
    if deadline_ms is not None and now_ms + backoff_ms >= deadline_ms:
        return "the next call would come after the deadline"
    if policy.in_all_s is not None and planned_ms > policy.in_all_s * 1000:
        return f"calls and backoffs would exceed {policy.in_all_s:g} s in all"
    if backoff_ms > longest_delay_ms:
        return f"the next call would be more than {longest_delay_ms / 1000:g} s away, the longest delay"
    return None


def _give_up(failure: Failure, elapsed_ms: int, why: str | None) -> GiveUp:
    if why is not None:
        failure = replace(failure, message=clip(f"given up, {why}: {failure.message}", MESSAGE_BYTES))
    return GiveUp(failure, elapsed_ms)

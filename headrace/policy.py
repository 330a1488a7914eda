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
class NextLink:
    """The next link of the model's chain is called, at once. `elapsed_ms` is the new sum; nothing is waited for."""

    failure: Failure
    elapsed_ms: int


@dataclass(frozen=True, slots=True)
class ShutTarget:
    """The target cannot be used by anyone: pause it and defer the request. No attempt is spent."""

    failure: Failure


Decision = RetryAt | NextLink | GiveUp | ShutTarget


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
    goes_on: bool = False,
) -> Decision:
    """What follows from this failure of a call that took `latency_ms` (DESIGN §5). `goes_on`: the chain has a further link.

    `policy.calls` bounds the calls spent on the request so far, this one included, under the class of the present
    failure; those at links it has left do not count, for each link has its own, nor do calls that were only rate
    limited, since they are bounded by time alone. A provider's `x-should-retry: false` ends a request, or a link;
    `true` is heard only for `invalid_request`, the class of 4xx replies we know nothing about, and grants it what a
    server error may cost.
    """
    if failure.error_class in _SHUTS_TARGET:
        return ShutTarget(failure)
    calls, elapsed_ms = trail.retry_count + 1 - _calls_left_behind(trail), trail.elapsed_ms + max(0, latency_ms)
    if failure.should_retry and failure.error_class is ErrorClass.INVALID_REQUEST and policy.calls == 1:
        policy = DEFAULT_POLICIES[ErrorClass.SERVER_ERROR]
    counted = _counted(trail) + 1
    onwards = _onwards(failure, policy, counted, elapsed_ms) if goes_on else None
    if onwards is not None:
        return onwards
    if failure.should_retry is False:
        return _give_up(failure, elapsed_ms, "the provider asks not to retry")
    if policy.calls is not None and counted >= policy.calls:
        return _give_up(failure, elapsed_ms, f"after {counted} calls" if counted > 1 else None)
    backoff_ms = _backoff_ms(failure, policy, calls, rng)
    if goes_on and policy.fallback == "exhausted" and backoff_ms > longest_delay_ms:
        return NextLink(failure, elapsed_ms)
    bound = _bound_met(policy, elapsed_ms + backoff_ms, backoff_ms, now_ms, deadline_ms, longest_delay_ms)
    if bound is not None:
        return _give_up(failure, elapsed_ms, bound)
    return RetryAt(failure, now_ms + backoff_ms, backoff_ms, elapsed_ms + backoff_ms)


def window_s(policy: ClassPolicy, calls: int) -> float:
    """The widest backoff after that many calls, in seconds: `base_s`, doubled for each further call, at most `cap_s`."""
    wait = wait_exponential(multiplier=policy.base_s, max=policy.cap_s)
    return wait(cast("RetryCallState", _Attempt(calls)))


def _onwards(failure: Failure, policy: ClassPolicy, counted: int, elapsed_ms: int) -> NextLink | None:
    """On to the next link, if this class lets it now. What bounds the request as a whole bounds it here too."""
    if policy.fallback == "never" or (policy.in_all_s is not None and elapsed_ms > policy.in_all_s * 1000):
        return None
    spent = failure.should_retry is False or (policy.calls is not None and counted >= policy.calls)
    return NextLink(failure, elapsed_ms) if spent or policy.fallback == "at_once" else None


def _counted(trail: Trail) -> int:
    """Calls spent before that a bound on calls counts, at the links not left yet.

    Of those the trail no longer names, none; of those it never named, all, while it has left no link.
    """
    named = trail.attempts
    left = _left(trail)
    unnamed = max(0, trail.retry_count - len(named)) if len(named) < LAST_ATTEMPTS and not left else 0
    return unnamed + sum(one.error_class != ErrorClass.RATE_LIMITED and (one.provider, one.model) not in left for one in named)


def _calls_left_behind(trail: Trail) -> int:
    left = _left(trail)
    return min(trail.retry_count, sum((one.provider, one.model) in left for one in trail.attempts)) if left else 0


def _left(trail: Trail) -> set[tuple[str, str]]:
    return {(one.provider, one.model) for one in trail.attempts if one.left}


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

"""Retry-After, whatever its form: what is understood is never earlier than what was asked, and no call comes earlier either."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from headrace.config import DEFAULT_POLICIES
from headrace.envelope import Position, Trail
from headrace.errors import ErrorClass, Failure
from headrace.llm.errors import classify_reply
from headrace.llm.hints import retry_after_ms
from headrace.llm.transport import Reply
from headrace.policy import GiveUp, RetryAt, decide

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000

decimals = st.builds(
    "{}{}{}".format, st.integers(0, 10**7), st.sampled_from(["", ".", ".0", ".0001", ".9999999", ".5"]), st.sampled_from(["", " "])
)
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.builds(datetime.fromtimestamp, st.integers(86_400, 7_258_118_400), zones)


@given(decimals, st.integers(0, 2**45))
def test_seconds_are_never_undercut(text: str, now_ms: int) -> None:
    """Any decimal number of seconds comes out as that many milliseconds or a little more, whatever the clock says."""
    asked = Fraction(text.strip().rstrip(".")) * 1000
    found = retry_after_ms({"retry-after": text}, now_ms)
    assert found is not None
    assert asked * (1 - Fraction(1, 10**12)) <= found <= math.ceil(asked) + 1


@given(decimals, decimals)
def test_milliseconds_go_first_and_are_never_undercut(exact: str, seconds: str) -> None:
    """`retry-after-ms` is the finer wish, and counts where there are both."""
    found = retry_after_ms({"retry-after-ms": exact, "retry-after": seconds}, NOW_MS)
    assert found is not None
    assert found >= Fraction(exact.strip().rstrip("."))


@given(moments, moments, st.integers(-DAY_MS, DAY_MS))
def test_dates_are_measured_from_the_reply(until: datetime, replied: datetime, skew_ms: int) -> None:
    """A date is as far away as its reply says, in any zone, and whatever our clock says; one in the past is now."""
    until, replied = until.replace(microsecond=0), replied.replace(microsecond=0)
    headers = {"retry-after": format_datetime(until), "date": format_datetime(replied)}
    now_ms = int(replied.timestamp() * 1000) + skew_ms
    assert retry_after_ms(headers, now_ms) == max(0, round((until - replied).total_seconds()) * 1000)
    alone = retry_after_ms({"retry-after": format_datetime(until.astimezone(UTC), usegmt=True)}, now_ms)
    assert alone == max(0, round(until.timestamp()) * 1000 - now_ms)


@given(decimals, st.integers(0, 30), st.integers(0, 3_700_000), st.none() | st.integers(0, DAY_MS), st.integers())
def test_no_call_comes_earlier_than_asked(text: str, calls: int, elapsed_ms: int, left_ms: int | None, seed: int) -> None:
    """From the reply's header to the due time: later than asked, or no call at all."""
    reply = Reply(429, {"retry-after": text}, b'{"error":{"message":"slow down"}}', 5)
    failure = classify_reply(reply, "/v1/chat/completions", now_ms=NOW_MS)
    assert isinstance(failure, Failure)
    assert failure.error_class is ErrorClass.RATE_LIMITED
    decision = decide(
        failure, Trail(Position("t", 0, 0), retry_count=calls, elapsed_ms=elapsed_ms), policy=DEFAULT_POLICIES[failure.error_class], latency_ms=5,
        now_ms=NOW_MS, deadline_ms=None if left_ms is None else NOW_MS + left_ms, longest_delay_ms=DAY_MS, rng=random.Random(seed),
    )  # fmt: skip
    if isinstance(decision, RetryAt):
        assert decision.due_ms - NOW_MS >= Fraction(text.strip().rstrip(".")) * 1000 * (1 - Fraction(1, 10**12))
    else:
        assert isinstance(decision, GiveUp)

"""What a settle comes to, in numbers; whatever handlers and providers put where a number is expected, the settle thread goes on."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.envelope import Attempt, Job, Position, Record, Response, Trail
from headrace.errors import ErrorClass, Failure
from headrace.outcome import Completed, Dead, Deferred, Duplicate, Outcome, Retry, Settlement
from headrace.tally import NOTED, tally_of
from headrace.trace import trace_id

TRACE = "0af7651916cd43dd8448eb211c80319c"
FAILURE = Failure(ErrorClass.TIMEOUT, "said nothing", provider="p")
USAGE = {"prompt_tokens": 12, "completion_tokens": 20}


def settlement(
    outcome: Outcome, *, request_id: str | None = "r-1", due_ms: int | None = None, traceparent: str | None = None
) -> Settlement:
    trail = Trail(Position("main", 0, 1), next_retry_at_ms=due_ms, retry_count=1, traceparent=traceparent)
    return Settlement(Job(Record("main", 0, 1, 1, b"k", b"v", (), 5), trail, request_id), outcome)


def completed(usage: Any = USAGE, *, latency_ms: Any = 40, provider: Any = "p", model: Any = "m") -> Completed:
    response = Response(b"{}", provider=provider, model=model, usage=usage)
    return Completed(response, (Attempt(None, latency_ms, provider),), 10_100, latency_ms)


def test_numbers_of_a_settle() -> None:
    """Counts by outcome and class, latencies by provider and class, tokens by provider and model, reasons where there are any."""
    dead = Dead(FAILURE, 10_200, (Attempt("timeout", 50, "p"),))
    tally = tally_of(
        map(
            settlement,
            (
                completed(),
                completed(),
                dead,
                Retry(FAILURE, (Attempt("timeout", 60, "p"),), 1, 2, 3),
                Deferred(5, "target shut"),
                Duplicate("waiting", 1, 2),
            ),
        )
    )
    assert tally.counts == {
        ("completed", ""): 2,
        ("dead", "timeout"): 1,
        ("retry", "timeout"): 1,
        ("deferred", ""): 1,
        ("duplicate", ""): 1,
    }
    assert tally.latencies == {("p", ""): [40, 40], ("p", "timeout"): [50, 60]}
    assert tally.tokens == {("p", "m"): [24, 40]}
    assert tally.details == {("deferred", "target shut"): 1, ("duplicate", "waiting"): 1}


def test_lateness_is_the_call_s_beginning_after_the_due_time() -> None:
    """The end, less what the calls took, less the due time; a record without one is not late, and one that was not called neither."""
    called = (Attempt("timeout", 50, "p"), Attempt(None, 10, "q"))
    late = Dead(FAILURE, 10_200, called)
    tally = tally_of(
        [
            settlement(completed(), due_ms=10_000),
            settlement(late, due_ms=10_100),
            settlement(Dead(FAILURE, 10_200), due_ms=1),
            settlement(completed()),
        ]
    )
    assert tally.lateness == [60, 40]


@pytest.mark.parametrize(
    "odd",
    [
        {"usage": [1]}, {"usage": {"prompt_tokens": "12", "completion_tokens": None}}, {"usage": {"prompt_tokens": True, "completion_tokens": -4}},
        {"usage": {"prompt_tokens": 10**30}}, {"provider": ["p"]}, {"model": {"a": 1}}, {"latency_ms": "soon"},
    ],
)  # fmt: skip
def test_odd_values_neither_count_nor_raise(odd: dict[str, Any]) -> None:
    """Handlers give what they like: the outcome counts, the odd number does not, and what stands beside it does."""
    tally = tally_of([settlement(completed(**odd)), settlement(completed())])
    assert tally.counts == {("completed", ""): 2}
    assert sum(spent[0] for spent in tally.tokens.values()) in (12, 24)
    assert all(isinstance(count, int) and 0 <= count < 100 for spent in tally.tokens.values() for count in spent)


def test_only_the_first_ends_are_noted() -> None:
    """An outage settles thousands at once: a few are named, the rest is a number."""
    tally = tally_of(
        settlement(Dead(FAILURE, 5), request_id=f"r-{n}", traceparent=f"00-{TRACE}-b7ad6b7169203331-01") for n in range(NOTED + 7)
    )
    assert (len(tally.ends), tally.unnoted) == (NOTED, {"dead": 7})
    end = tally.ends[0]
    assert (end.outcome, end.error_class, end.request_id, end.trace_id, end.attempt) == ("dead", "timeout", "r-0", TRACE, 1)
    assert "said nothing" not in str(end)


@pytest.mark.parametrize(
    ("traceparent", "found"),
    [
        (f"00-{TRACE}-b7ad6b7169203331-01", TRACE), (f"cc-{TRACE}-b7ad6b7169203331-01-later", TRACE), (None, None), ("", None),
        (f"00-{'0' * 32}-b7ad6b7169203331-01", None), (f"00-{TRACE}-{'0' * 16}-01", None), (f"ff-{TRACE}-b7ad6b7169203331-01", None),
        (f"00-{TRACE.upper()}-b7ad6b7169203331-01", None), (f"00-{TRACE}-b7ad6b7169203331-01\n", None), ("secret " * 9, None), (f"00-{TRACE}", None),
    ],
)  # fmt: skip
def test_a_trace_id_is_32_hex_digits_or_nothing(traceparent: str | None, found: str | None) -> None:
    """W3C Trace Context; the header is the producer's, so nothing else of it ever stands in a log."""
    assert trace_id(traceparent) == found

"""What one settle comes to, in numbers: outcomes, latencies, lateness, tokens, and the few ends that are worth a line. Pure.

Made once a settle on the settle thread, in one pass of about a microsecond a record; whoever counts or logs reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.envelope import Attempt
from headrace.outcome import Completed, Dead, Deferred, Degraded, Duplicate, Retry, Settlement
from headrace.trace import trace_id

NOTED = 20  # ends of single requests told of in one settle, at most
MOST_TOKENS = 1_000_000_000  # a provider may claim anything
MOST_MS = 86_400_000
_COMPLETED = ("completed", "")


@dataclass(frozen=True, slots=True)
class End:
    """How one request ended in this lane, for a log line: who it was, and nothing of its content."""

    outcome: str
    error_class: str
    position: str
    request_id: str | None
    trace_id: str | None
    attempt: int
    provider: str | None
    latency_ms: int | None


@dataclass(slots=True)
class Tally:
    """`counts` by (outcome, class), `details` by (outcome, why), `latencies` in ms by (provider, class), `tokens` as [prompt, completion].

    Names of providers, models and reasons are as they were given: callers and handlers choose some of them.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    details: Counter[tuple[str, str]] = field(default_factory=Counter)
    latencies: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    tokens: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    lateness: list[int] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    unnoted: dict[str, int] = field(default_factory=dict)
    unread: int = 0  # settled, but a handler or a hand-over gave latency, names or usage of another type


def tally_of(settlements: Iterable[Settlement]) -> Tally:
    """One pass over what was settled together."""
    tally = Tally()
    completed = 0
    for settlement in settlements:
        outcome = settlement.outcome
        try:
            if type(outcome) is Completed:
                completed += 1
                _answered(tally, outcome)
                if settlement.job.trail.next_retry_at_ms is not None:
                    _late(tally, settlement, outcome.completed_at_ms, outcome.attempts)
            else:
                _otherwise(tally, settlement)
        except (TypeError, ValueError, AttributeError, KeyError):  # it is settled all the same, and its thread goes on
            tally.unread += 1
    if completed:
        tally.counts[_COMPLETED] += completed
    return tally


def _answered(tally: Tally, outcome: Completed | Degraded) -> None:
    for attempt in outcome.attempts:
        key = attempt.provider, attempt.error_class or ""
        if (known := tally.latencies.get(key)) is None:
            tally.latencies[key] = known = []
        known.append(_number(attempt.latency_ms, MOST_MS))
    response = outcome.response
    if usage := response.usage:
        named = response.provider or "", response.model or ""
        if (spent := tally.tokens.get(named)) is None:
            tally.tokens[named] = spent = [0, 0]
        spent[0] += _number(usage.get("prompt_tokens", usage.get("input_tokens", 0)), MOST_TOKENS)
        spent[1] += _number(usage.get("completion_tokens", usage.get("output_tokens", 0)), MOST_TOKENS)


def _number(value: Any, most: int) -> int:
    return value if type(value) is int and 0 <= value <= most else 0


def _otherwise(tally: Tally, settlement: Settlement) -> None:
    outcome = settlement.outcome
    name = type(outcome).__name__.lower()
    failure = getattr(outcome, "failure", None)
    tally.counts[name, failure.error_class.value if failure else ""] += 1
    match outcome:
        case Retry():
            _called(tally, outcome.attempts)
            _late(tally, settlement, outcome.failed_at_ms, outcome.attempts)
        case Dead():
            _called(tally, outcome.attempts)
            _late(tally, settlement, outcome.dead_at_ms, outcome.attempts)
        case Degraded():
            _answered(tally, outcome)
            _late(tally, settlement, outcome.completed_at_ms, outcome.attempts)
        case Duplicate():
            tally.details[name, outcome.of] += 1
        case Deferred():
            tally.details[name, outcome.reason] += 1
    if failure is not None:
        _note(tally, settlement, name)


def _called(tally: Tally, attempts: Iterable[Attempt]) -> None:
    for attempt in attempts:
        tally.latencies.setdefault((attempt.provider, attempt.error_class or ""), []).append(_number(attempt.latency_ms, MOST_MS))


def _late(tally: Tally, settlement: Settlement, ended_ms: int, attempts: tuple[Attempt, ...]) -> None:
    """How long after its due time a retry was called: its end, less what its calls took."""
    due_ms = settlement.job.trail.next_retry_at_ms
    if due_ms is not None and attempts:
        tally.lateness.append(ended_ms - sum(attempt.latency_ms for attempt in attempts) - due_ms)


def _note(tally: Tally, settlement: Settlement, outcome: str) -> None:
    if len(tally.ends) >= NOTED:
        tally.unnoted[outcome] = tally.unnoted.get(outcome, 0) + 1
        return
    job, ended = settlement.job, settlement.outcome
    failure = getattr(ended, "failure")  # noqa: B009  only those with a failure come here
    attempts: tuple[Attempt, ...] = getattr(ended, "attempts", ())
    tally.ends.append(
        End(
            outcome=outcome,
            error_class=failure.error_class.value,
            position=str(settlement.position),
            request_id=job.request_id,
            trace_id=trace_id(job.trail.traceparent),
            attempt=job.trail.retry_count + len(attempts),
            provider=failure.provider,
            latency_ms=sum(attempt.latency_ms for attempt in attempts) if attempts else None,
        )
    )

"""The default policy, row by row of the table of error classes: what a request that always fails so costs, and how it ends."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

import pytest

from headrace.attempt import Attempts
from headrace.config import DEFAULT_POLICIES, Settings
from headrace.envelope import Job, Record, Request, Response, Trail
from headrace.errors import CallFailed, ErrorClass, Failure
from headrace.handler import call_model
from headrace.outcome import Dead, Deferred, Outcome, Retry, Settlement
from headrace.outputs import Outputs
from headrace.pauses import Pauses
from headrace.trail import read_trail
from tests.support.clock import HandClock
from tests.support.fake_llm import TARGET, OneTarget

E = ErrorClass
NOW = 1_800_000_000_000
HOUR_MS = 3_600_000
REQUEST = Request(request_id="r", body={"model": "m"})


class Life(NamedTuple):
    """A request from its first call to its end: the outcomes, and the calls made."""

    outcomes: list[Outcome]
    calls: int

    @property
    def gaps_ms(self) -> list[int]:
        return [o.due_ms - o.failed_at_ms for o in self.outcomes if isinstance(o, Retry)]


class FailingLlm(OneTarget):
    """Fails the same way at each call."""

    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self.failure = failure
        self.calls = 0

    async def call(self, request: Request, *, attempt: int, timeout_s: float) -> Response:
        self.calls += 1
        raise CallFailed(self.failure)


def live(error_class: ErrorClass, *, seed: int = 1, most: int = 500, retry_after_ms: int | None = None, model: str | None = None) -> Life:
    """Lead a request through the retry topic, by the headers `outputs` writes, until it ends, or for `most` hops."""

    async def run() -> Life:
        settings = Settings()
        clock = HandClock(NOW)
        llm = FailingLlm(Failure(error_class, "m", called=True, retry_after_ms=retry_after_ms, provider="openai"))
        pauses = Pauses(settings.pause, [TARGET])
        attempts = Attempts(settings, call_model, llm, pauses, clock, tell=lambda *_: None, rng=random.Random(seed))  # type: ignore[arg-type]
        outputs = Outputs(settings.topics, {})
        record = Record(settings.topics.main, 0, 5, 1, None, b"{}", [], NOW)
        trail = Trail(record.position)
        outcomes: list[Outcome] = []
        while len(outcomes) < most:
            job = Job(record, trail, "r", "f", REQUEST)
            outcome = await attempts(job)
            outcomes.append(outcome)
            if not isinstance(outcome, (Retry, Deferred)):
                break
            (output,) = outputs.of(Settlement(job, outcome))
            record = Record(output.topic, 0, len(outcomes), 1, output.key, output.value, output.headers, clock.at_ms)
            trail = read_trail(record, trusted=True)
            clock.at_ms = outcome.due_ms
        return Life(outcomes, llm.calls)

    return asyncio.run(run())


def test_the_table_has_a_row_for_every_class() -> None:
    """The set is closed."""
    assert set(DEFAULT_POLICIES) == set(ErrorClass)


@pytest.mark.parametrize(
    ("error_class", "calls"),
    [
        (E.OVERLOADED, 5), (E.SERVER_ERROR, 5), (E.CONNECTION, 5), (E.TIMEOUT, 3), (E.INVALID_RESPONSE, 3), (E.INTERNAL, 3), (E.NOT_FOUND, 1),
        (E.CONTEXT_LENGTH, 1), (E.CONTENT_POLICY, 1), (E.INVALID_REQUEST, 1), (E.TOO_LARGE, 1), (E.EXPIRED, 1), (E.UNDECODABLE, 1), (E.ID_CONFLICT, 1),
        (E.CANCELLED, 1), (E.RATE_RULE, 1),
    ],
)  # fmt: skip
def test_calls_at_most_then_dead(error_class: ErrorClass, calls: int) -> None:
    """Exactly so many calls for a request that never succeeds; the dead letter has its class."""
    life = live(error_class)
    assert life.calls == calls
    end = life.outcomes[-1]
    assert isinstance(end, Dead)
    assert end.failure.error_class is error_class


def test_rate_limits_are_bounded_by_an_hour_alone() -> None:
    """As many calls as fit into an hour of calls and backoffs, then dead."""
    life = live(E.RATE_LIMITED)
    assert isinstance(life.outcomes[-1], Dead)
    assert sum(life.gaps_ms) <= HOUR_MS
    assert sum(life.gaps_ms) > HOUR_MS - 60_000 - 10_000
    assert life.calls > 60


@pytest.mark.parametrize("error_class", [E.QUOTA_EXHAUSTED, E.AUTH])
def test_quota_and_credentials_spend_nothing_and_never_die(error_class: ErrorClass) -> None:
    """Deferred again and again, each pause twice the last up to a quarter of an hour; the count stays at 0."""
    life = live(error_class, most=60)
    assert all(isinstance(outcome, Deferred) for outcome in life.outcomes)
    assert life.calls <= 60


@pytest.mark.parametrize(
    ("error_class", "base_ms"), [(E.RATE_LIMITED, 2_000), (E.SERVER_ERROR, 500), (E.CONNECTION, 500), (E.OVERLOADED, 500), (E.TIMEOUT, 500)]
)
def test_backoff_is_full_jitter_from_its_base(error_class: ErrorClass, base_ms: int) -> None:
    """The n-th gap lies within 0 and base × 2ⁿ⁻¹, at most 60 s, and over many requests fills that window."""
    lives = [live(error_class, seed=seed, most=3).gaps_ms for seed in range(200)]
    for n in range(min(len(gaps) for gaps in lives)):
        window = min(60_000, base_ms * 2**n)
        gaps = [of[n] for of in lives]
        assert max(gaps) <= window
        assert max(gaps) > window * 0.9
        assert min(gaps) < window * 0.1


def test_no_backoff_exceeds_a_minute() -> None:
    """The cap."""
    assert max(live(E.RATE_LIMITED).gaps_ms) <= 60_000


@pytest.mark.parametrize("asked_ms", [0, 59_000, 60_000, 61_000, 121_000])
def test_retry_after_is_never_undercut(asked_ms: int) -> None:
    """Over a minute too; spread by a fifth at most."""
    gaps = live(E.RATE_LIMITED, most=4, retry_after_ms=asked_ms).gaps_ms
    assert len(gaps) == 4
    assert min(gaps) >= asked_ms
    assert max(gaps) <= max(60_000, asked_ms * 1.2 + 1)


def test_deferrals_do_not_count_towards_the_hour() -> None:
    """An outage must not kill a backlog at its end: days of pauses leave the sum where it was."""
    outcomes = live(E.QUOTA_EXHAUSTED, most=400).outcomes
    waited = [o.due_ms for o in outcomes if isinstance(o, Deferred)]
    assert waited[-1] - NOW > 24 * HOUR_MS
    assert len(waited) == 400

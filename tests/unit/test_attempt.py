"""One attempt and what follows from it: every way a call can end, as an outcome."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import errors
from headrace.attempt import HANDLER_S, Attempts, GuardedLlm, TargetShut
from headrace.config import ProviderSettings, Settings
from headrace.envelope import Attempt, Job, Record, Request, Response, Trail
from headrace.errors import CallFailed, ErrorClass, Failure
from headrace.handler import Context, call_model
from headrace.outcome import Completed, Dead, Deferred, Outcome, Retry
from headrace.pauses import Pauses
from headrace.schedule import CLOCKS_APART_MS
from headrace.shared_controls import Cancelled, Paused
from tests.support.clock import HandClock
from tests.support.fake_llm import TARGET, OneTarget

NOW = 1_800_000_000_000
DAY_MS = 86_400_000
REQUEST = Request(request_id="r", body={"model": "m"})
ANSWER = Response(b"{}", provider="openai")


class FakeLlm(OneTarget):
    """Answers, or raises, what stands in `script`; remembers each call's attempt and time-out."""

    def __init__(self, *script: Response | BaseException) -> None:
        super().__init__()
        self.script = list(script)
        self.calls: list[tuple[int, float]] = []

    async def call(self, request: Request, *, attempt: int, timeout_s: float) -> Response:
        self.calls.append((attempt, timeout_s))
        found = self.script.pop(0) if self.script else ANSWER
        if isinstance(found, BaseException):
            raise found
        return found


class Bench:
    """Attempts over a scripted model, with pauses that are real."""

    def __init__(
        self, *script: Response | BaseException, by: Callable[[Request, Context], Awaitable[Any]] = call_model, **settings: Any
    ) -> None:
        self.clock = HandClock(NOW)
        self.told: list[str] = []
        self.settings = Settings(**settings)
        self.llm = FakeLlm(*script)
        self.pauses = Pauses(self.settings.pause, [TARGET], tell=lambda name, _: self.told.append(name))
        self.attempts = Attempts(
            self.settings, by, self.llm, self.pauses, self.clock, tell=lambda name, _: self.told.append(name), rng=random.Random(7)
        )  # type: ignore[arg-type]

    async def outcome(self, **trail: Any) -> Outcome:
        return await self.attempts(a_job(**trail))


def a_job(*, request: Request | None = REQUEST, fault: Failure | None = None, request_id: str | None = "r", **trail: Any) -> Job:
    record = Record("main", 0, 5, 1, None, b"{}", [], NOW)
    return Job(record, Trail(record.position, **trail), request_id, "f", request, fault)


def failed(error_class: ErrorClass, **more: Any) -> CallFailed:
    return CallFailed(Failure(error_class, "m", **{"called": True, "provider": "openai", **more}))


def raising(error: BaseException) -> Callable[[Request, Context], Awaitable[Response]]:
    async def handle(request: Request, ctx: Context) -> Response:
        raise error

    return handle


async def test_an_answer_completes() -> None:
    """One call, counted from 1 over the request's life, under the provider's time-out."""
    bench = Bench()
    outcome = await bench.outcome(retry_count=2)
    assert isinstance(outcome, Completed)
    assert outcome.response is ANSWER
    assert outcome.completed_at_ms == NOW
    (attempt,) = outcome.attempts
    assert (attempt.error_class, attempt.provider) == (None, "openai")
    assert bench.llm.calls == [(3, 60.0)]


@pytest.mark.parametrize("request_id", [None, "r"])
async def test_a_fault_ends_without_a_call(request_id: str | None) -> None:
    """Before deadline and due time are looked at; it holds a claim if it has an id."""
    bench = Bench()
    fault = Failure(ErrorClass.UNDECODABLE, "no JSON")
    job = a_job(request=None, fault=fault, request_id=request_id, deadline_at_ms=1, next_retry_at_ms=NOW + 10**12)
    assert await bench.attempts(job) == Dead(fault, NOW, claimed=request_id is not None)
    assert bench.llm.calls == []


@pytest.mark.parametrize("deadline_ms", [0, NOW - 1, NOW])
async def test_past_its_deadline_it_is_expired_and_never_called(deadline_ms: int) -> None:
    """At the deadline itself already; no attempt is in the dead letter."""
    bench = Bench()
    outcome = await bench.outcome(deadline_at_ms=deadline_ms)
    assert isinstance(outcome, Dead)
    assert (outcome.failure.error_class, outcome.attempts, outcome.failure.called) == (ErrorClass.EXPIRED, (), False)
    assert bench.llm.calls == []


async def test_a_due_time_ahead_waits_for_it() -> None:
    """A millisecond ahead is ahead; at its time it is called."""
    bench = Bench()
    assert await bench.outcome(next_retry_at_ms=NOW + 1) == Deferred(NOW + 1, "next_retry_at is ahead")
    assert bench.llm.calls == []
    assert isinstance(await bench.outcome(next_retry_at_ms=NOW), Completed)


async def test_beyond_the_longest_delay_it_dies() -> None:
    """Never clamped; a clock a minute apart is forgiven."""
    bench = Bench()
    allowed = NOW + DAY_MS + CLOCKS_APART_MS
    assert isinstance(await bench.outcome(next_retry_at_ms=allowed), Deferred)
    outcome = await bench.outcome(next_retry_at_ms=allowed + 1)
    assert isinstance(outcome, Dead)
    assert outcome.failure.error_class is ErrorClass.INVALID_REQUEST
    assert bench.llm.calls == []


async def test_a_call_gets_no_more_time_than_its_deadline_leaves() -> None:
    """Two seconds left are two seconds for the call."""
    bench = Bench()
    await bench.outcome(deadline_at_ms=NOW + 2_000)
    assert bench.llm.calls == [(1, 2.0)]


async def test_a_handlers_time_is_the_configured_one() -> None:
    """A provider's time-out for the default, five minutes at least for one's own, what is set where it is set."""
    seen: list[float] = []

    async def handle(request: Request, ctx: Context) -> Response:
        seen.append(ctx.deadline)
        return ANSWER

    slow = (ProviderSettings(timeout_s=900),)
    for settings in ({"handler": "m:f"}, {"handler": "m:f", "providers": slow}, {"handler": "m:f", "handler_timeout_s": 7.0}):
        await Bench(by=handle, **settings).outcome()
    assert seen == pytest.approx([HANDLER_S, 900.0, 7.0], abs=5)


async def test_a_failure_that_may_pass_is_a_retry() -> None:
    """Due within the backoff's window, with the call in it, and the sum grown by latency and backoff."""
    outcome = await Bench(failed(ErrorClass.SERVER_ERROR)).outcome(elapsed_ms=100)
    assert isinstance(outcome, Retry)
    assert NOW <= outcome.due_ms <= NOW + 500
    assert [a.error_class for a in outcome.attempts] == ["server_error"]
    assert outcome.elapsed_ms == 100 + outcome.attempts[0].latency_ms + outcome.due_ms - NOW
    assert outcome.failed_at_ms == NOW


async def test_the_last_attempt_that_fails_is_dead() -> None:
    """With the failure's class and the call it spent."""
    earlier = tuple(Attempt("server_error", 1, "openai") for _ in range(4))
    outcome = await Bench(failed(ErrorClass.SERVER_ERROR)).outcome(retry_count=4, attempts=earlier)
    assert isinstance(outcome, Dead)
    assert (outcome.failure.error_class, len(outcome.attempts), outcome.claimed) == (ErrorClass.SERVER_ERROR, 1, True)


async def test_a_failure_before_sending_spends_no_call() -> None:
    """A body that cannot be written as JSON was never sent."""
    outcome = await Bench(failed(ErrorClass.INVALID_REQUEST, called=False)).outcome()
    assert isinstance(outcome, Dead)
    assert outcome.attempts == ()


@pytest.mark.parametrize("error_class", [ErrorClass.QUOTA_EXHAUSTED, ErrorClass.AUTH])
async def test_a_spent_quota_shuts_the_target_once_and_spends_nothing(error_class: ErrorClass) -> None:
    """The request comes back after the reopening, spread out; the next is deferred without a call; one alert."""
    bench = Bench(failed(error_class, status_code=401))
    first, second = await bench.outcome(), await bench.outcome()
    for outcome in (first, second):
        assert isinstance(outcome, Deferred)
        assert NOW + 30_000 <= outcome.due_ms <= NOW + 36_000
    assert len(bench.llm.calls) == 1
    assert bench.told.count("target_shut") == 1


async def test_failures_on_their_way_when_the_target_was_shut_shut_nothing_more() -> None:
    """Of many calls in flight the first shuts it; the pause is not doubled by the rest."""
    bench = Bench()
    started = asyncio.Event()

    async def handle(request: Request, ctx: Context) -> Response:
        await ctx.llm.call(request)
        raise AssertionError

    async def slow(request: Request, *, attempt: int, timeout_s: float) -> Response:
        bench.llm.calls.append((attempt, timeout_s))
        if len(bench.llm.calls) == 20:
            started.set()
        await started.wait()
        raise failed(ErrorClass.QUOTA_EXHAUSTED)

    bench.llm.call = slow  # type: ignore[method-assign]
    outcomes = await asyncio.gather(*(bench.outcome() for _ in range(20)))
    assert all(isinstance(o, Deferred) and o.due_ms <= NOW + 36_000 for o in outcomes)
    assert bench.told == ["target_shut"]


async def test_a_deferral_ends_at_the_deadline() -> None:
    """The reopening or the deadline, the earlier: it is told that it expired when it did."""
    bench = Bench(failed(ErrorClass.QUOTA_EXHAUSTED))
    for _ in range(2):
        outcome = await bench.outcome(deadline_at_ms=NOW + 10_000)
        assert isinstance(outcome, Deferred)
        assert outcome.due_ms == NOW + 10_000


async def test_one_probe_at_a_reopening() -> None:
    """When the pause ends one call goes out; others wait for its end; its success opens the target."""
    bench = Bench(failed(ErrorClass.QUOTA_EXHAUSTED))
    await bench.outcome()
    bench.clock.at_ms = NOW + 30_000
    began, go = asyncio.Event(), asyncio.Event()

    async def slow(request: Request, *, attempt: int, timeout_s: float) -> Response:
        began.set()
        await go.wait()
        return ANSWER

    bench.llm.call = slow  # type: ignore[method-assign]
    probe = asyncio.create_task(bench.outcome())
    await began.wait()
    assert isinstance(await bench.outcome(), Deferred)
    go.set()
    assert isinstance(await probe, Completed)
    assert isinstance(await bench.outcome(), Completed)


@pytest.mark.parametrize("ending", [failed(ErrorClass.TIMEOUT), RuntimeError("x")])
async def test_a_probe_that_proved_nothing_lets_the_next_one_probe(ending: BaseException) -> None:
    """A time-out says nothing of the quota: the target is not blocked for the length of a lapse."""
    bench = Bench(failed(ErrorClass.QUOTA_EXHAUSTED), ending)
    await bench.outcome()
    bench.clock.at_ms = NOW + 30_000
    await bench.outcome()
    assert isinstance(await bench.outcome(), Completed)


async def test_a_cancelled_probe_lets_the_next_one_probe() -> None:
    """A shutdown in mid-call leaves no probe behind."""
    bench = Bench(failed(ErrorClass.QUOTA_EXHAUSTED))
    await bench.outcome()
    bench.clock.at_ms = NOW + 30_000
    bench.llm.script = [asyncio.CancelledError()]
    guarded = GuardedLlm(bench.llm, bench.pauses, bench.clock, 1, 1.0)  # type: ignore[arg-type]
    with pytest.raises(asyncio.CancelledError):
        await guarded.call(REQUEST)
    assert await guarded.call(REQUEST) is ANSWER


async def test_a_shut_target_says_until_when() -> None:
    """A handler of one's own gets an exception it can let through."""
    bench = Bench(failed(ErrorClass.AUTH, status_code=401))
    await bench.outcome()
    with pytest.raises(TargetShut) as raised:
        await GuardedLlm(bench.llm, bench.pauses, bench.clock, 1, 1.0).call(REQUEST)  # type: ignore[arg-type]
    assert raised.value.until_ms == NOW + 30_000


# --- a handler's own verdicts ------------------------------------------------------------------------------------------


async def test_a_handlers_retry_waits_at_least_as_long_as_it_says() -> None:
    """Spends an attempt; without a time the policy's backoff applies."""
    outcome = await Bench(by=raising(errors.Retry("later", after=9))).outcome()
    assert isinstance(outcome, Retry)
    assert NOW + 9_000 <= outcome.due_ms <= NOW + 9_000 * 1.2 + 1
    assert (outcome.failure.error_class, outcome.failure.code) == (ErrorClass.INTERNAL, "handler_retry")
    soon = await Bench(by=raising(errors.Retry())).outcome()
    assert isinstance(soon, Retry)
    assert soon.due_ms <= NOW + 500


@pytest.mark.parametrize("after", [float("nan"), float("inf"), -1, "5"])
async def test_a_retry_after_nonsense_is_the_handlers_fault(after: Any) -> None:
    """It ends as any other fault of the handler's, and not the lane."""

    async def handle(request: Request, ctx: Context) -> Response:
        raise errors.Retry(after=after)

    outcome = await Bench(by=handle).outcome()
    assert isinstance(outcome, Retry)
    assert outcome.failure.code in ("ValueError", "TypeError")


async def test_a_handlers_retries_end() -> None:
    """Three calls at most, as `internal`."""
    earlier = (Attempt("internal", 1, ""), Attempt("internal", 1, ""))
    assert isinstance(await Bench(by=raising(errors.Retry())).outcome(retry_count=2, attempts=earlier), Dead)


async def test_a_handlers_delay_spends_nothing() -> None:
    """Due exactly then, within the longest delay and the deadline; no spread."""
    until = datetime.fromtimestamp((NOW + 60_000) / 1000, UTC)
    assert await Bench(by=raising(errors.Delay(until=until))).outcome() == Deferred(NOW + 60_000, "the handler asked for a delay")
    far = await Bench(by=raising(errors.Delay(until=datetime.max.replace(tzinfo=UTC)))).outcome()
    assert isinstance(far, Deferred)
    assert far.due_ms == NOW + DAY_MS
    late = await Bench(by=raising(errors.Delay(until=until))).outcome(deadline_at_ms=NOW + 5)
    assert isinstance(late, Deferred)
    assert late.due_ms == NOW + 5


async def test_a_handlers_dead_is_dead() -> None:
    """Masked, and with the attempt it was."""
    outcome = await Bench(by=raising(errors.Dead('no use: "the prompt"'))).outcome(elapsed_ms=5)
    assert isinstance(outcome, Dead)
    assert (outcome.failure.error_class, outcome.failure.code) == (ErrorClass.INTERNAL, "handler_dead")
    assert "the prompt" not in outcome.failure.message
    assert len(outcome.attempts) == 1
    assert outcome.elapsed_ms >= 5


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("x"), KeyError("k"), Unprintable(), ExceptionGroup("g", [ValueError()]), StopAsyncIteration(), SystemExit(1)],
)
async def test_whatever_a_handler_raises_is_internal(error: BaseException) -> None:
    """A retry with the exception's name as its code, whatever the exception is like."""
    outcome = await Bench(by=raising(error)).outcome()
    assert isinstance(outcome, Retry)
    assert outcome.failure.error_class is ErrorClass.INTERNAL
    assert outcome.failure.called


async def test_a_handlers_message_is_masked() -> None:
    """Exceptions quote what they were given."""
    outcome = await Bench(by=raising(ValueError("could not parse 'the secret prompt'"))).outcome()
    assert isinstance(outcome, Retry)
    assert "secret" not in outcome.failure.message


async def test_a_failed_call_passes_through_a_handler() -> None:
    """Its class counts, not that a handler stood between."""

    async def handle(request: Request, ctx: Context) -> Response:
        return await ctx.llm.call(request)

    outcome = await Bench(failed(ErrorClass.CONTENT_POLICY), by=handle).outcome()
    assert isinstance(outcome, Dead)
    assert outcome.failure.error_class is ErrorClass.CONTENT_POLICY
    shut = Bench(failed(ErrorClass.QUOTA_EXHAUSTED), by=handle)
    assert isinstance(await shut.outcome(), Deferred)
    assert isinstance(await shut.outcome(), Deferred)


@pytest.mark.parametrize("answer", [None, {"a": 1}, Response(b"no json"), Response({"a": object()})])
async def test_an_answer_that_is_none_is_internal(answer: Any) -> None:
    """What could not be written into a result costs its own request only."""

    async def handle(request: Request, ctx: Context) -> Any:
        return answer

    outcome = await Bench(by=handle).outcome()
    assert isinstance(outcome, Retry)
    assert outcome.failure.error_class is ErrorClass.INTERNAL


async def test_a_handler_that_takes_too_long_is_a_timeout() -> None:
    """Ended at its time, retried as a time-out."""

    async def handle(request: Request, ctx: Context) -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    outcome = await Bench(by=handle, handler_timeout_s=0.01).outcome()
    assert isinstance(outcome, Retry)
    assert outcome.failure.error_class is ErrorClass.TIMEOUT
    deadline = await Bench(by=handle).outcome(deadline_at_ms=NOW + 10)
    assert isinstance(deadline, Dead)
    assert deadline.failure.error_class is ErrorClass.TIMEOUT


@pytest.mark.parametrize("custom", [False, True])
async def test_cancellation_passes_through(custom: bool) -> None:
    """An interrupted attempt is no outcome."""
    began = asyncio.Event()

    async def wait(*_: Any, **__: Any) -> Response:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    bench = Bench(by=wait if custom else call_model)
    bench.llm.call = wait  # type: ignore[method-assign]
    task = asyncio.create_task(bench.outcome())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_from_within_is_no_interruption() -> None:
    """A handler that awaits something somebody cancelled has failed; its caller goes on."""

    async def handle(request: Request, ctx: Context) -> Response:
        inner = asyncio.ensure_future(asyncio.Event().wait())
        inner.cancel()
        await inner
        raise AssertionError

    outcome = await Bench(by=handle).outcome()
    assert isinstance(outcome, Retry)
    assert (outcome.failure.error_class, outcome.failure.code) == (ErrorClass.INTERNAL, "CancelledError")


@given(
    error_class=st.sampled_from(ErrorClass), spent=st.integers(0, 8), elapsed_ms=st.integers(0, 4_000_000), retry_after_ms=st.none() | st.integers(-5, 10**9),
    left_ms=st.none() | st.integers(1, 10**7), should_retry=st.none() | st.booleans(),
)  # fmt: skip
def test_every_failure_ends_in_a_bounded_outcome(
    error_class: ErrorClass, spent: int, elapsed_ms: int, retry_after_ms: int | None, left_ms: int | None, should_retry: bool | None
) -> None:
    """Whatever fails, whenever: a retry never earlier than asked, never past the deadline or the longest delay; else dead; else deferred."""

    async def run() -> Outcome:
        bench = Bench(failed(error_class, retry_after_ms=retry_after_ms, should_retry=should_retry))
        return await bench.outcome(retry_count=spent, elapsed_ms=elapsed_ms, deadline_at_ms=None if left_ms is None else NOW + left_ms)

    outcome = asyncio.run(run())
    match outcome:
        case Retry():
            assert NOW + max(0, retry_after_ms or 0) <= outcome.due_ms <= NOW + DAY_MS
            assert left_ms is None or outcome.due_ms < NOW + left_ms
            assert len(outcome.attempts) == 1
        case Deferred():
            assert error_class in (ErrorClass.QUOTA_EXHAUSTED, ErrorClass.AUTH)
            assert left_ms is None or outcome.due_ms <= NOW + left_ms
            assert NOW < outcome.due_ms <= NOW + DAY_MS
        case Dead():
            assert outcome.failure.error_class is error_class
            assert len(outcome.attempts) == 1
        case _:
            pytest.fail(f"no outcome of a failure: {outcome}")


class Ordering:
    """Operators who say this of every request."""

    active = True

    def __init__(self, *orders: Cancelled | Paused | None) -> None:
        self.orders = list(orders)

    async def judge(self, job: Job) -> Cancelled | Paused | None:
        return self.orders.pop(0) if self.orders else None

    def spaced(self, until_ms: int) -> int:
        return until_ms + 7


def ordered(*orders: Cancelled | Paused | None) -> Bench:
    bench = Bench()
    bench.attempts._controls = Ordering(*orders)
    return bench


async def test_what_an_operator_cancelled_is_dead_without_a_call() -> None:
    """Its class and message are the operator's; the attempts it had stay spent, none is added."""
    failure = Failure(ErrorClass.CANCELLED, "cancelled by ada: why", code="operator")
    bench = ordered(Cancelled(failure))
    assert await bench.outcome(retry_count=2, elapsed_ms=30) == Dead(failure, NOW, (), 30)
    assert bench.llm.calls == []


async def test_what_an_operator_paused_waits_unspent_and_no_longer_than_its_deadline() -> None:
    """A little spread, never beyond the deadline; one that has passed ends it, so that it cannot come back for ever."""
    bench = ordered(Paused(NOW + 10_000))
    outcome = await bench.outcome()
    assert isinstance(outcome, Deferred)
    assert NOW + 10_000 <= outcome.due_ms <= NOW + 12_000
    assert outcome.reason == "paused by an operator"
    assert await ordered(Paused(NOW + 10_000)).outcome(deadline_at_ms=NOW + 4_000) == Deferred(NOW + 4_000, "paused by an operator")
    expired = await ordered(Paused(NOW + 10_000)).outcome(deadline_at_ms=NOW)
    assert isinstance(expired, Dead)
    assert expired.failure.error_class is ErrorClass.EXPIRED
    assert bench.llm.calls == []


async def test_without_an_order_it_is_called() -> None:
    """Also while there are orders about others."""
    bench = ordered(None)
    assert isinstance(await bench.outcome(), Completed)
    assert len(bench.llm.calls) == 1


async def test_what_a_handler_raised_is_told_and_what_it_decided_is_not() -> None:
    """An exception nobody foresaw is a line in the log; Retry is a decision."""

    async def fails(request: Request, ctx: Context) -> Response:
        raise KeyError("gone")

    async def decides(request: Request, ctx: Context) -> Response:
        raise errors.Retry

    failing, deciding = Bench(by=fails), Bench(by=decides)
    await failing.outcome()
    await deciding.outcome()
    assert failing.told == ["handler_failed"]
    assert deciding.told == []

"""One attempt at a request: the handler under its deadline, and which outcome follows. Writes nothing, settles nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import random

import orjson

from headrace import errors
from headrace.clock import Clock
from headrace.config import Settings
from headrace.context import Context, Contexts
from headrace.deadline import Deadlines
from headrace.envelope import Attempt, Job, Request, Response
from headrace.errors import CallFailed, ErrorClass, Failure
from headrace.guarded import Ended, GuardedLlm, TargetShut, staying_classes
from headrace.handler import Handler, call_model, decisive
from headrace.instrument import Tell
from headrace.instrument.about import about
from headrace.instrument.failures import Failures
from headrace.llm import Llm, classify_exception
from headrace.outcome import Completed, Dead, Deferred, Outcome, Retry
from headrace.pauses import Pauses
from headrace.policy import GiveUp, NextLink, RetryAt, decide
from headrace.redact import mask, without_echo
from headrace.schedule import CLOCKS_APART_MS
from headrace.shared_controls import Cancelled, Judging, Paused, Uncontrolled
from headrace.trail import plain_model

HANDLER_S = 300.0  # for a user's handler, where handler_timeout_s is not set
STORE_AWAY_MS = 5_000  # a request that cannot go on without Redis is asked for again after this, and has spent nothing
SPREAD = 0.2  # deferred requests come back over this share of their pause, not all at once


class Attempts:
    """Turns a job into its outcome, for the main and the retry lane alike."""

    def __init__(
        self,
        settings: Settings,
        handler: Handler,
        llm: Llm,
        pauses: Pauses,
        clock: Clock,
        *,
        tell: Tell,
        rng: random.Random | None = None,
        contexts: Contexts | None = None,
        controls: Judging | None = None,
    ) -> None:
        self._controls = controls or Uncontrolled()
        self._settings = settings
        self._handler = handler
        self._llm = llm
        self._pauses = pauses
        self._clock = clock
        self._raised = Failures(tell)
        self._rng = rng or random.Random()  # noqa: S311  jitter, no secret
        self._timeout_s = longest_s(settings)
        self._staying = staying_classes(settings)
        self._deadlines = Deadlines()
        self._contexts = contexts or Contexts(clock)
        self._monotonic = self._contexts.monotonic
        self._longest_ms = int(settings.limits.longest_delay_s * 1000)

    async def __call__(self, job: Job) -> Outcome:
        """The outcome of one attempt. CancelledError passes through: an interrupted attempt is no outcome."""
        now_ms = self._clock.now_ms()
        ended = self._without_a_call(job, now_ms)
        if ended is not None:
            return ended
        if self._controls.active and (ordered := await self._ordered(job)) is not None:
            return ordered
        request, trail = job.request, job.trail
        assert request is not None, "a job without a request has a fault"
        left_s = self._timeout_s if trail.deadline_at_ms is None else min(self._timeout_s, (trail.deadline_at_ms - now_ms) / 1000)
        began = self._monotonic()
        number = trail.retry_count + 1
        llm = GuardedLlm(self._llm, self._pauses, self._clock, number, left_s, trail.attempts, staying=self._staying)
        try:
            if self._handler is call_model:  # the client's own timer ends the one call it makes; a second one would cost 2 µs a record
                response = await llm.call(request)
            else:
                with self._deadlines.within(left_s), about(request.request_id, trail.traceparent, number):
                    ctx = Context(self._contexts, job, llm, number, left_s)
                    response = ctx.llm.credited(checked(await decisive(self._handler(request, ctx))))
        except TargetShut as shut:
            return self._deferred(job, self._controls.spaced(shut.until_ms), "target shut")
        except errors.Delay as delay:
            return self._deferred(job, int(delay.until.timestamp() * 1000), "the handler asked for a delay", spread=0)
        except (errors.StoreUnavailable, errors.StoreLost, errors.NotHeld) as error:  # ctx.once had to give up waiting
            return self._deferred(job, self._clock.now_ms() + STORE_AWAY_MS, str(error))
        except errors.Dead as dead:
            failure = _without_echo(Failure(ErrorClass.INTERNAL, mask(str(dead)), code=dead.code, called=True), request)
            attempt = Attempt(failure.error_class.value, self._ms_since(began), "")
            return Dead(failure, self._clock.now_ms(), (attempt,), trail.elapsed_ms + attempt.latency_ms)
        except asyncio.CancelledError as error:
            if _told_to_stop():
                raise
            self._raised(request.request_id, number, error)
            return self._failed(job, _failure(error, left_s), self._ms_since(began))
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a handler raises becomes an outcome, sys.exit() included
            failure = _failure(error, left_s)
            if failure.error_class is ErrorClass.INTERNAL and not isinstance(error, errors.Retry | CallFailed):
                self._raised(request.request_id, number, error)
            return self._failed(job, failure, self._ms_since(began), llm.ended(failure))
        latency_ms = self._ms_since(began)
        attempt = Attempt(None, latency_ms, response.provider or "", plain_model(response.model or ""))
        return Completed(response, (attempt,), self._clock.now_ms(), latency_ms)

    def _ms_since(self, began: float) -> int:
        return round((self._monotonic() - began) * 1000)

    async def _ordered(self, job: Job) -> Outcome | None:
        """What operators have ordered for it."""
        match await self._controls.judge(job):
            case Cancelled(failure):
                return Dead(failure, self._clock.now_ms(), elapsed_ms=job.trail.elapsed_ms)
            case Paused(until_ms):
                return self._deferred(job, until_ms, "paused by an operator")
        return None

    def _without_a_call(self, job: Job, now_ms: int) -> Outcome | None:
        """What ends a job before it costs anything."""
        trail = job.trail
        if job.fault is not None:
            return Dead(job.fault, now_ms, claimed=job.request_id is not None)
        due_ms = trail.next_retry_at_ms or 0
        if due_ms - now_ms > self._longest_ms + CLOCKS_APART_MS:
            message = f"next_retry_at: lies more than {self._longest_ms // 1000} s ahead, the longest delay (limits.longest_delay_s)"
            return Dead(Failure(ErrorClass.INVALID_REQUEST, message), now_ms)
        if trail.deadline_at_ms is not None and trail.deadline_at_ms <= now_ms:
            return Dead(Failure(ErrorClass.EXPIRED, "deadline_at has passed"), now_ms)
        if due_ms > now_ms:
            return Deferred(due_ms, "next_retry_at is ahead")
        return None

    def _failed(self, job: Job, failure: Failure, latency_ms: int, ended: Ended | None = None) -> Outcome:
        now_ms = self._clock.now_ms()
        assert job.request is not None, "only a request is called for"
        ended = ended or Ended(failure, goes_on=False, reopens_ms=None)  # the handler's own
        failure = _without_echo(failure, job.request)
        decision = decide(
            failure,
            job.trail,
            policy=self._settings.policy_of(failure.error_class),
            latency_ms=latency_ms,
            now_ms=now_ms,
            deadline_ms=job.trail.deadline_at_ms,
            longest_delay_ms=self._longest_ms,
            rng=self._rng,
            goes_on=ended.goes_on,
        )
        attempt = Attempt(failure.error_class.value, latency_ms, failure.provider or "", plain_model(failure.model or ""))
        match decision:
            case RetryAt():
                return Retry(decision.failure, (attempt,), decision.due_ms, decision.elapsed_ms, now_ms)
            case NextLink():
                return Retry(decision.failure, (dataclasses.replace(attempt, left=True),), now_ms, decision.elapsed_ms, now_ms)
            case GiveUp():
                return Dead(decision.failure, now_ms, (attempt,) if failure.called else (), decision.elapsed_ms)
            case _:
                # Quota or credentials: nobody can use this target, so the request waits and has spent nothing.
                first_ms = int(self._settings.pause.first_s * 1000)
                return self._deferred(job, ended.reopens_ms or now_ms + first_ms, failure.error_class.value)

    def _deferred(self, job: Job, due_ms: int, reason: str, *, spread: float = SPREAD) -> Deferred:
        now_ms = self._clock.now_ms()
        due_ms += int(max(0, due_ms - now_ms) * self._rng.uniform(0.0, spread))
        due_ms = min(due_ms, now_ms + self._longest_ms)
        if job.trail.deadline_at_ms is not None:
            due_ms = min(due_ms, max(job.trail.deadline_at_ms, now_ms))
        return Deferred(due_ms, reason)


def checked(response: object) -> Response:
    """What a user's handler returned, fit to be written into a result. Raises TypeError or ValueError for what is not."""
    if not isinstance(response, Response):
        raise TypeError(f"the handler returned {type(response).__name__}, not Response")
    if isinstance(response.body, bytes):
        orjson.loads(response.body)
        body = response.body
    else:
        body = orjson.dumps(response.body)
    orjson.dumps(
        [response.status_code, response.provider, response.model, response.provider_request_id, response.finish_reason, response.usage]
    )
    return dataclasses.replace(response, body=body)


def _told_to_stop() -> bool:
    """Whether this task was cancelled; a CancelledError without that comes out of something the handler awaited."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _failure(error: Exception | asyncio.CancelledError | SystemExit, left_s: float) -> Failure:
    """The failure in whatever a handler raised."""
    match error:
        case asyncio.CancelledError():
            return Failure(ErrorClass.INTERNAL, "the handler awaited what was cancelled", code="CancelledError", called=True)
        case SystemExit():
            return Failure(ErrorClass.INTERNAL, "the handler asked to exit", code="SystemExit", called=True)
        case CallFailed():
            return error.failure
        case errors.Retry():
            after_ms = None if error.after is None else int(error.after * 1000)
            return Failure(ErrorClass.INTERNAL, mask(str(error)), code="handler_retry", retry_after_ms=after_ms, called=True)
        case TimeoutError():
            return Failure(ErrorClass.TIMEOUT, f"no answer within {left_s:.3g} s", called=True)
        case _:
            return dataclasses.replace(classify_exception(error), code=type(error).__name__[:64], called=True)


def _without_echo(failure: Failure, request: Request) -> Failure:
    """Whoever wrote the message had the prompt before him; the model's name may stand in it."""
    sent = {name: value for name, value in request.body.items() if name != "model"}
    return dataclasses.replace(failure, message=without_echo(failure.message, sent))


def longest_s(settings: Settings) -> float:
    """How long an attempt may take. One call may take what its provider allows; a handler of the user's may make several."""
    if settings.handler_timeout_s is not None:
        return settings.handler_timeout_s
    call_s = max(provider.longest_s() for provider in settings.providers)
    return call_s if settings.handler is None else max(HANDLER_S, call_s)

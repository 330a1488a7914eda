"""What a handler is given: the model, its steps that run once, its time, its log. Made for a user's handler only; the default needs none of it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Protocol, TypeVar, overload

import structlog

from headrace.bigjson import dumps
from headrace.claims import Claim
from headrace.clock import Clock
from headrace.effects import Effects, OnUnknown, StepStore
from headrace.envelope import Endpoint, Job, Request, Response
from headrace.instrument.about import named

T = TypeVar("T")
_NAME_CHARS = 100  # of a request id in a call's own id: providers take so much and hardly more
_TOKENS = ("prompt_tokens", "completion_tokens", "total_tokens")
_MARK = "/"  # no request id holds it


class Model(Protocol):
    """The guarded client: one call to a model under the attempt's deadline. Raises CallFailed, and TargetShut while it is paused."""

    async def call(self, request: Request) -> Response: ...


class Caller:
    """`ctx.llm`. Every call is guarded: it heeds pauses, fails with a class, and is bounded by the attempt's time.

    A call carries an idempotency key of its own: that of the request for the request as it came, else one that follows from what
    is sent, so that the same call has the same key when a handler runs again.
    """

    __slots__ = ("_last", "_model", "_request", "_seen", "_usage")

    def __init__(self, model: Model, request: Request) -> None:
        self._model = model
        self._request = request
        self._seen: dict[str, int] = {}
        self._last: Response | None = None
        self._usage: dict[str, int] = {}

    async def call(self, request: Request) -> Response:
        """One call with a whole request: the one that came, or `request.model_copy(update={"body": …})`. Raises CallFailed."""
        return self._noted(await self._model.call(request if request is self._request else self._of_its_own(request)))

    async def chat(
        self,
        messages: str | Sequence[dict[str, Any]],
        *,
        model: str | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        **params: Any,
    ) -> Response:
        """One chat completion. `messages` is OpenAI's list, or a text; `params` are any others of the API (`temperature`, `response_format`, …).

        Without a `model` the request's own is used, else the provider's default. Raises CallFailed.
        """
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        return await self._made("/v1/chat/completions", {"messages": said, "tools": tools and list(tools), **params}, model)

    async def embed(self, texts: str | Sequence[str], *, model: str | None = None, **params: Any) -> Response:
        """One embeddings call; `Response.vectors` has them in the order of `texts`. Raises CallFailed."""
        return await self._made("/v1/embeddings", {"input": texts if isinstance(texts, str) else list(texts), **params}, model)

    async def _made(self, endpoint: Endpoint, body: dict[str, Any], model: str | None) -> Response:
        if model is None and self._request.endpoint == endpoint:
            model = self._request.body.get("model")
        body = {name: value for name, value in (body | {"model": model}).items() if value is not None}
        return self._noted(await self._model.call(self._of_its_own(self._request.model_copy(update={"endpoint": endpoint, "body": body}))))

    def _noted(self, answer: Response) -> Response:
        self._last = answer
        for name in _TOKENS:
            if type(count := (answer.usage or {}).get(name)) is int:
                self._usage[name] = self._usage.get(name, 0) + count
        return answer

    def credited(self, response: Response) -> Response:
        """What a handler returned. Where it names no provider and model, those of the last call; without usage, the sum of all calls."""
        if self._last is None:
            return response
        if response.provider is None and response.model is None:
            response = replace(response, provider=self._last.provider, model=self._last.model)
        return replace(response, usage=self._usage) if response.usage is None and self._usage else response

    def _of_its_own(self, request: Request) -> Request:
        name = self._request.request_id
        if len(name) > _NAME_CHARS:
            name = "=" + sha256(name.encode()).hexdigest()[:32]
        try:
            sent = dumps([request.endpoint, request.body], sort_keys=True)
        except TypeError:
            return request  # the client refuses it, and says why
        digest = sha256(sent).hexdigest()[:12]
        count = self._seen[digest] = self._seen.get(digest, 0) + 1
        key = f"{name}{_MARK}{digest}" if count == 1 else f"{name}{_MARK}{digest}-{count}"
        return request.model_copy(update={"request_id": key})


class Context:
    """What a handler gets beside its request.

    `attempt` counts from 1 over the request's life, and `llm` is the guarded client.
    """

    __slots__ = ("_contexts", "_effects", "_ends_at_s", "_job", "_log", "attempt", "llm")

    def __init__(self, contexts: Contexts, job: Job, llm: Model, attempt: int, left_s: float) -> None:
        assert job.request is not None, "only a request is handled"
        self.llm = Caller(llm, job.request)
        self.attempt = attempt
        self._contexts = contexts
        self._job = job
        self._ends_at_s = contexts.monotonic() + left_s
        self._effects: Effects | None = None
        self._log: Any = None

    @property
    def deadline(self) -> float:
        """The time left, in seconds; 0 when it is over. Then the handler is cancelled, and its attempt is a `timeout`."""
        return max(0.0, self._ends_at_s - self._contexts.monotonic())

    @property
    def now(self) -> datetime:
        """The worker's time, which is Redis': right even where this machine's is not. For `Delay(until=ctx.now + …)`."""
        return datetime.fromtimestamp(self._contexts.clock.now_ms() / 1000, UTC)

    @property
    def log(self) -> Any:
        """A structlog logger that says in every line which request it is about, at which attempt, and its trace."""
        if self._log is None:
            about = named(self._job.request_id or "", self._job.trail.traceparent)
            self._log = structlog.get_logger().bind(**about, attempt=self.attempt)
        return self._log

    @overload
    async def once(self, key: str, fn: Callable[[], Awaitable[T]], *, on_unknown: OnUnknown = "dead") -> T: ...
    @overload
    async def once(self, key: str, fn: Callable[[], T], *, on_unknown: OnUnknown = "dead") -> T: ...
    async def once(self, key: str, fn: Callable[[], Any], *, on_unknown: OnUnknown = "dead") -> Any:
        """The value of `fn()`, which runs at most once for this request and `key`, however often the handler runs; JSON, as it is read back.

        `fn` may be async; it returns JSON of at most 256 KiB. Kept as long as the request's own mark, while Redis keeps its data.
        Where an earlier run was begun and never reported back (a crash, a time-out, an exception) it may have happened. Then
        `on_unknown` decides: `"dead"` raises OnceUnknown, which ends the request if it is let through; `"again"` runs `fn` once
        more, for what may be done twice; a function is run instead of `fn`, to find out or to put right, and its value is kept.
        An error of Headrace's own out of `fn` (Retry, Delay, Dead, CallFailed) says that it did not happen.

        Raises ValueError for a key that cannot be used. Redis away: waits, then the request comes back later and has spent nothing.
        """
        if self._effects is None:
            self._effects = self._contexts.effects(self._job, lambda: self.deadline)
        return await self._effects.once(key, fn, on_unknown)


class Contexts:
    """Makes the contexts of one lane. Without `steps` there is no `ctx.once`. `claim_of` names the claim a job is handled under."""

    def __init__(
        self,
        clock: Clock,
        steps: StepStore | None = None,
        claim_of: Callable[[Job], Claim] | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.monotonic = monotonic
        self._steps = steps
        self._claim_of = claim_of

    def effects(self, job: Job, left_s: Callable[[], float]) -> Effects:
        """What runs the steps of one attempt."""
        assert self._steps is not None, "ctx.once needs a store"
        assert self._claim_of is not None, "and a claim to run under"
        return Effects(self._steps, self._claim_of(job), left_s)

"""The guarded client: a request becomes one call to a provider, and its reply a Response or CallFailed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import orjson

from headrace import __version__
from headrace.config import ProviderSettings
from headrace.envelope import Request, Response
from headrace.errors import CallFailed, ErrorClass, Failure
from headrace.llm.direct import DirectTransport
from headrace.llm.errors import classify_reply
from headrace.llm.transport import Call, Transport
from headrace.redact import MESSAGE_BYTES, clip, mask

_MODEL_BYTES = 256
_SECRET_CHARS = 6  # a shorter header is a word that stands anywhere


class Target(NamedTuple):
    """What a pause is of. `key_id` names the key without giving it away."""

    provider: str
    model: str
    key_id: str


class Upstream(NamedTuple):
    """A configured provider, ready to be called: its transport, and the headers every call carries."""

    settings: ProviderSettings
    transport: Transport
    headers: dict[str, str]
    key_id: str

    def discreet(self, text: bytes) -> bytes:
        """The text without this provider's key and headers, whatever they look like: a provider may say what it was given."""
        given = [self.settings.api_key, *self.settings.headers.values()]
        for secret in [one.get_secret_value() for one in given if one is not None]:
            if len(secret) >= _SECRET_CHARS:
                text = text.replace(secret.encode("utf-8", "surrogateescape"), b"<hidden>")
        return text


def key_id_of(provider: ProviderSettings) -> str:
    """Eight hex digits that tell keys apart; `none` without a key."""
    if provider.api_key is None:
        return "none"
    return hashlib.sha256(provider.api_key.get_secret_value().encode()).hexdigest()[:8]


def transport_for(provider: ProviderSettings, *, pool: int) -> Transport:
    """The transport a provider's configuration names, with `pool` connections."""
    if provider.transport == "direct":
        return DirectTransport(provider.base_url, pool=pool)
    # Imported here: the SDK costs a second of start-up that `direct` need not pay.
    from headrace.llm.sdk import SdkTransport

    return SdkTransport.to(provider.base_url, pool=pool)


class Llm:
    """Calls the model. Built once per process; `pool` bounds the calls on the wire, the rest queue before their timer.

    `now_ms` is the worker's clock, for Retry-After dates. `transport` replaces the configured one (a user's own
    client). One provider for now: the first; `_upstream_of` is where a chain would choose.
    """

    def __init__(
        self,
        providers: Sequence[ProviderSettings],
        *,
        pool: int,
        now_ms: Callable[[], int],
        transport: Transport | None = None,
    ) -> None:
        self._upstreams = tuple(
            Upstream(one, transport or transport_for(one, pool=pool), _headers(one), key_id_of(one)) for one in providers[:1]
        )
        self._now_ms = now_ms
        # Waiting for a connection must not eat a call's own time, nor look like the provider's slowness.
        self._connections = asyncio.Semaphore(pool)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The configured targets: each provider with its default model."""
        return tuple(Target(up.settings.name, up.settings.default_model, up.key_id) for up in self._upstreams)

    def target_of(self, request: Request) -> Target:
        """Who would be called for this request."""
        upstream = self._upstream_of(request)
        return Target(upstream.settings.name, _model_of(request, upstream), upstream.key_id)

    async def call(self, request: Request, *, attempt: int, timeout_s: float) -> Response:
        """One call. `timeout_s` runs from sending to the last byte. Raises CallFailed; `attempt` counts from 1."""
        upstream = self._upstream_of(request)
        settings, model = upstream.settings, _model_of(request, upstream)
        try:
            call = Call(
                request.endpoint,
                _encode(request.body, settings.default_model),
                upstream.headers | {"Idempotency-Key": request.request_id, "X-Headrace-Attempt": str(attempt)},
                min(timeout_s, settings.timeout_s),
                min(settings.connect_timeout_s, settings.timeout_s),
            )
            async with self._connections:
                reply = await upstream.transport.send(call)
        except CallFailed as error:
            message = clip(upstream.discreet(error.failure.message.encode()).decode(), MESSAGE_BYTES)
            raise CallFailed(replace(error.failure, message=message, provider=settings.name, model=model)) from None
        classify = partial(classify_reply, endpoint=request.endpoint, provider=settings.name, model=model, now_ms=self._now_ms())
        answer = classify(reply)
        if isinstance(answer, Response):
            return answer
        discreet = classify(reply._replace(body=upstream.discreet(reply.body)))
        raise CallFailed(discreet if isinstance(discreet, Failure) else answer)

    async def close(self) -> None:
        """Close every connection; idempotent."""
        for upstream in self._upstreams:
            await upstream.transport.close()

    def _upstream_of(self, request: Request) -> Upstream:
        return self._upstreams[0]


def _headers(provider: ProviderSettings) -> dict[str, str]:
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": f"headrace/{__version__}",
    }
    if provider.api_key is not None:
        headers["Authorization"] = f"Bearer {provider.api_key.get_secret_value()}"
    return headers | {name: value.get_secret_value() for name, value in provider.headers.items()}


def _model_of(request: Request, upstream: Upstream) -> str:
    model = request.body.get("model")
    return clip(model, _MODEL_BYTES) if isinstance(model, str) and model else upstream.settings.default_model


def _encode(body: dict[str, Any], default_model: str) -> bytes:
    model = body.get("model")
    if model is None:
        body = body | {"model": default_model}
    elif not isinstance(model, str):
        raise _refused("model must be a string")
    if body.get("stream") or body.get("background"):
        raise _refused("stream and background are not possible here: one request, one answer; leave them out")
    try:
        return orjson.dumps(body)
    except TypeError as error:
        # A lone surrogate, or a number beyond 64 bits: it can never be sent, so it is never retried.
        raise _refused(f"the body cannot be written as JSON: {error}") from None


def _refused(message: str) -> CallFailed:
    return CallFailed(Failure(ErrorClass.INVALID_REQUEST, mask(message)))

"""The guarded client: a request becomes one call to a provider, and its reply a Response or CallFailed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import NamedTuple

from headrace.config import LinkSettings, ProviderSettings
from headrace.envelope import Request, Response
from headrace.errors import CallFailed, Failure
from headrace.instrument import Tell, silent
from headrace.llm.azure import path_of, root_of
from headrace.llm.balance import Balance
from headrace.llm.body import asked_model, encode
from headrace.llm.chain import Chains, Route
from headrace.llm.direct import DirectTransport
from headrace.llm.endpoint import Endpoint, EndpointState, Key, discreet
from headrace.llm.errors import classify_reply
from headrace.llm.health import checks_of
from headrace.llm.keys import Keys
from headrace.llm.transport import Call, Reply, Transport
from headrace.redact import MESSAGE_BYTES, clip

_SPOTS = 64  # models' names come from callers


class Target(NamedTuple):
    """What a pause is of. `key_id` names the key without giving it away."""

    provider: str
    model: str
    key_id: str


class Spot(NamedTuple):
    """Where one call goes: the endpoint, and the target as it is now, with the key the call will carry."""

    endpoint: Endpoint
    target: Target


Open = Callable[[Target], bool]


def transport_for(provider: ProviderSettings, base_url: str, *, pool: int) -> Transport:
    """The transport a provider's configuration names, to one of its addresses, with `pool` connections."""
    if provider.kind == "azure":
        base_url = root_of(base_url)
    if provider.transport == "direct":
        return DirectTransport(base_url, pool=pool)
    # Imported here: the SDK costs a second of start-up that `direct` need not pay.
    from headrace.llm.sdk import SdkTransport

    return SdkTransport.to(base_url, pool=pool)


class Llm:
    """Calls the model. Built once per process; `pool` bounds the calls on the wire, the rest queue before their timer.

    `now_ms` is the worker's clock, for Retry-After dates. `transport` replaces the configured ones (a user's own client).
    `models` are the chains. `run` watches keys and endpoints; without it they are as they were at the start.
    """

    def __init__(
        self,
        providers: Sequence[ProviderSettings],
        *,
        pool: int,
        now_ms: Callable[[], int],
        transport: Transport | None = None,
        models: Mapping[str, Sequence[LinkSettings]] | None = None,
        tell: Tell = silent,
    ) -> None:
        self._chains = Chains(providers, models or {})
        used = self._chains.providers
        self._upstreams = {one.name: _balance(one, pool, transport, tell) for one in providers if one.name in used}
        self._spots: dict[Route, Spot] = {}
        self._now_ms = now_ms
        # Waiting for a connection must not eat a call's own time, nor look like the provider's slowness.
        self._connections = asyncio.Semaphore(pool)
        self.keys = Keys(self._endpoints(), tell=tell, changed=self._rekeyed)
        self._checks = [check for balance in self._upstreams.values() for check in checks_of(balance)]
        self.on_new_keys: list[Callable[[Sequence[Target]], None]] = []

    @property
    def targets(self) -> tuple[Target, ...]:
        """The configured targets: each provider that is called, with its default model, by each of its keys."""
        targets = (target for route in self._chains.defaults() for target in self.targets_of(route))
        return tuple(dict.fromkeys(targets))

    def targets_of(self, route: Route) -> Iterator[Target]:
        """Everything a link can be called as: one for each of the provider's keys."""
        ids = dict.fromkeys(one.key.key_id for one in self._upstreams[route.provider].endpoints)
        return (Target(route.provider, route.model, key_id) for key_id in ids)

    def target_of(self, request: Request) -> Target:
        """Who would be called first for this request."""
        return next(self.targets_of(self.routes(request)[0]))

    def routes(self, request: Request) -> tuple[Route, ...]:
        """The chain of the model this request asks for."""
        return self._chains.routes(asked_model(request.body))

    def pick(self, routes: Sequence[Route], is_open: Open | None = None) -> Spot | None:
        """Where the next call goes: the first link with an endpoint that works and whose key `is_open`; else the first that is open at all."""
        if is_open is None and (known := self._spots.get(routes[0])) is not None and not known.endpoint.down:
            return known
        for choose in (Balance.pick, Balance.any):
            for route in routes:
                endpoint = choose(self._upstreams[route.provider], None if is_open is None else _usable(route, is_open))
                if endpoint is not None:
                    return self._spot(endpoint, route)
        return None

    def _spot(self, endpoint: Endpoint, route: Route) -> Spot:
        spot = Spot(endpoint, Target(route.provider, route.model, endpoint.key.key_id))
        if self._upstreams[route.provider].single:  # nothing will be chosen there: the same spot until its key changes
            if len(self._spots) >= _SPOTS:
                self._spots.clear()
            self._spots[route] = spot
        return spot

    async def call(self, request: Request, *, attempt: int, timeout_s: float) -> Response:
        """One call to the first link of the chain that has an endpoint. As `send`."""
        spot = self.pick(self.routes(request))
        assert spot is not None, "nothing is shut here"
        return await self.send(spot, request, attempt=attempt, timeout_s=timeout_s)

    async def send(self, spot: Spot, request: Request, *, attempt: int, timeout_s: float) -> Response:
        """One call. `timeout_s` runs from sending to the last byte. Raises CallFailed; `attempt` counts from 1."""
        endpoint, target = spot
        key, balance = endpoint.key, self._upstreams[target.provider]
        call = self._call(endpoint, target, request, attempt, timeout_s)
        endpoint.in_flight += 1
        if not balance.single:
            balance.begins(endpoint)
        end: Response | Failure | None = None
        try:
            async with self._connections:
                reply = await endpoint.transport.send(call)
            end = self._read(reply, request.endpoint, target, key)
        except CallFailed as error:
            message = clip(discreet(error.failure.message.encode(), key).decode(), MESSAGE_BYTES)
            end = replace(error.failure, message=message, provider=target.provider, model=target.model)
        finally:
            endpoint.in_flight -= 1
            if not balance.single:
                balance.ended(endpoint, end, whole=call.timeout_s >= endpoint.server.timeout_s)
        if isinstance(end, Failure):
            raise CallFailed(end)
        return end

    def endpoints(self) -> tuple[EndpointState, ...]:
        """How every endpoint stands: for metrics and status."""
        now_s = monotonic()
        return tuple(endpoint.state(now_s) for endpoint in self._endpoints())

    async def run(self) -> None:
        """Watch key files and ask endpoints for their health, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self.keys:
                group.create_task(self.keys.run(), name="keys")
            for check in self._checks:
                group.create_task(check.run(), name="health")

    @property
    def watches(self) -> bool:
        """Whether `run` has anything to do."""
        return bool(self.keys or self._checks)

    async def close(self) -> None:
        """Close every connection; idempotent."""
        for endpoint in self._endpoints():
            await endpoint.transport.close()

    def _call(self, endpoint: Endpoint, target: Target, request: Request, attempt: int, timeout_s: float) -> Call:
        try:
            body = encode(request.body, target.model)
        except CallFailed as error:
            raise CallFailed(replace(error.failure, provider=target.provider, model=target.model)) from None
        server = endpoint.server
        return Call(
            request.endpoint,
            body,
            endpoint.key.headers | {"Idempotency-Key": request.request_id, "X-Headrace-Attempt": str(attempt)},
            min(timeout_s, server.timeout_s),
            server.connect_timeout_s,
            path_of(endpoint.settings, request.endpoint, target.model) if endpoint.settings.kind == "azure" else None,
        )

    def _read(self, reply: Reply, endpoint: str, target: Target, key: Key) -> Response | Failure:
        now_ms = self._now_ms()
        answer = classify_reply(reply, endpoint, provider=target.provider, model=target.model, now_ms=now_ms)
        if isinstance(answer, Response):
            return answer
        quiet = classify_reply(
            reply._replace(body=discreet(reply.body, key)), endpoint, provider=target.provider, model=target.model, now_ms=now_ms
        )
        return quiet if isinstance(quiet, Failure) else answer

    def _endpoints(self) -> Iterator[Endpoint]:
        return (endpoint for balance in self._upstreams.values() for endpoint in balance.endpoints)

    def _rekeyed(self) -> None:
        self._spots.clear()
        for heard in self.on_new_keys:
            heard(self.targets)


def _balance(provider: ProviderSettings, pool: int, transport: Transport | None, tell: Tell) -> Balance:
    endpoints = [Endpoint(provider, at, transport or transport_for(provider, at.base_url, pool=pool)) for at in provider.servers()]
    return Balance(provider, endpoints, tell=tell)


def _usable(route: Route, is_open: Open) -> Callable[[Endpoint], bool]:
    return lambda endpoint: is_open(Target(route.provider, route.model, endpoint.key.key_id))

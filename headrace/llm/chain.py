"""Who is asked for a model, and in which order: pure over the configuration and over what a request's trail says of its earlier calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from headrace.config import ANY, LINKS, LinkSettings, ProviderSettings
from headrace.envelope import Attempt
from headrace.trail import plain_model


class Route(NamedTuple):
    """One link of a chain, for one request: the provider, and the model it is asked for."""

    provider: str
    model: str


class Chains:
    """The chains of the configuration.

    A model has its own chain, else that of `*`, else every provider in the order they are listed, for the model by its name. A request
    that names no model is for the first provider's default model where that has a chain, else each provider's own default.
    """

    def __init__(self, providers: Sequence[ProviderSettings], models: Mapping[str, Sequence[LinkSettings]]) -> None:
        self._defaults = {one.name: one.default_model for one in providers}
        self._first = providers[0].default_model
        self._models = models
        self._rest = models.get(ANY) or tuple(LinkSettings(provider=one.name) for one in providers[:LINKS])
        # names come from callers: few are remembered
        self.routes = lru_cache(64)(self._routes)

    @property
    def providers(self) -> frozenset[str]:
        """Those that some chain calls."""
        return frozenset(link.provider for chain in (*self._models.values(), self._rest) for link in chain)

    def defaults(self) -> Iterable[Route]:
        """Each provider that is called, with its default model."""
        used = self.providers
        return (Route(name, model) for name, model in self._defaults.items() if name in used)

    def _routes(self, model: str | None) -> tuple[Route, ...]:
        chain = self._models.get(self._first if model is None else model)
        if model is None and chain is not None:
            model = self._first
        routes = (Route(link.provider, link.model or model or self._defaults[link.provider]) for link in chain or self._rest)
        return tuple(dict.fromkeys(routes))


def remaining(routes: Sequence[Route], attempts: Sequence[Attempt]) -> Sequence[Route]:
    """The links that this request has not left yet; the last one where it has left all: attempts are read from headers."""
    left = {(attempt.provider, attempt.model) for attempt in attempts if attempt.left}
    if not left:
        return routes
    return [route for route in routes if (route.provider, plain_model(route.model)) not in left] or routes[-1:]

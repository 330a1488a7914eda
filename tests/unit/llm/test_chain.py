"""Chains: who is asked for a model in which order, and what a trail of earlier calls leaves of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import LINKS, LinkSettings, ProviderSettings
from headrace.envelope import Attempt
from headrace.llm.chain import Chains, Route, remaining
from headrace.trail import LAST_ATTEMPTS, _attempts, dump_attempts, plain_model

A, B, C = (ProviderSettings(name=name, base_url="http://h/v1", default_model=f"{name}-own") for name in "abc")
LINKED = {
    "big": (LinkSettings(provider="b"), LinkSettings(provider="a", model="small")),
    "a-own": (LinkSettings(provider="c"),),
}


@pytest.mark.parametrize(
    ("models", "asked", "routes"),
    [
        ({}, "x", [("a", "x"), ("b", "x"), ("c", "x")]),
        ({}, None, [("a", "a-own"), ("b", "b-own"), ("c", "c-own")]),
        (LINKED, "big", [("b", "big"), ("a", "small")]),
        (LINKED, "x", [("a", "x"), ("b", "x"), ("c", "x")]),
        (LINKED, None, [("c", "a-own")]),
        ({"*": (LinkSettings(provider="b"),)}, "x", [("b", "x")]),
        ({"*": (LinkSettings(provider="b"),)}, None, [("b", "b-own")]),
        ({"*": (LinkSettings(provider="b", model="m"),)}, "x", [("b", "m")]),
        ({"m": (LinkSettings(provider="b"), LinkSettings(provider="b", model="m"))}, "m", [("b", "m")]),
    ],
)
def test_who_is_asked(models: dict[str, tuple[LinkSettings, ...]], asked: str | None, routes: list[tuple[str, str]]) -> None:
    """A model's own chain, else that of `*`, else every provider as listed; the same link never twice."""
    assert list(Chains([A, B, C], models).routes(asked)) == [Route(*route) for route in routes]


def test_only_providers_of_a_chain_are_called() -> None:
    """A provider that no chain names needs no key and shuts no lane."""
    assert Chains([A, B, C], {"*": (LinkSettings(provider="b"),)}).providers == {"b"}
    assert Chains([A, B, C], {"*": (LinkSettings(provider="b"),)} | LINKED).providers == {"a", "b", "c"}


ROUTES = [Route("a", "m"), Route("b", "m"), Route("b", "n")]


@pytest.mark.parametrize(
    ("left", "rest"),
    [
        ([], ROUTES),
        ([("a", "m")], ROUTES[1:]),
        ([("b", "m")], [ROUTES[0], ROUTES[2]]),
        ([("a", "m"), ("b", "m"), ("b", "n")], [ROUTES[2]]),
        ([("other", "m")], ROUTES),
    ],
)
def test_what_is_left_of_a_chain(left: list[tuple[str, str]], rest: list[Route]) -> None:
    """What was left is not called again; with all of them left, the last one is: there is always somebody to call."""
    attempts = [Attempt("server_error", 1, provider, model, left=True) for provider, model in left]
    assert list(remaining(ROUTES, attempts)) == rest


@given(
    models=st.lists(st.text(min_size=1, max_size=256), min_size=2, max_size=LINKS, unique_by=plain_model),
    waits=st.lists(st.integers(0, 30), min_size=LINKS, max_size=LINKS),
    provider=st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
)
def test_a_chain_is_walked_to_its_end_through_the_headers(models: list[str], waits: list[int], provider: str) -> None:
    """Whatever the names and however often a link is asked again, the trail's header carries the position: no link comes back, none is missed."""
    routes = [Route(provider, model) for model in models]
    attempts: tuple[Attempt, ...] = ()
    for at, route in enumerate(routes):
        for _ in range(waits[at]):
            assert remaining(routes, attempts)[0] == route
            attempts = _attempts(dump_attempts((*attempts, Attempt("rate_limited", 10**12, provider, plain_model(route.model)))))
            assert len(attempts) <= LAST_ATTEMPTS
        if at + 1 < len(routes):
            attempts = _attempts(
                dump_attempts((*attempts, Attempt("quota_exhausted", 10**12, provider, plain_model(route.model), left=True)))
            )
            assert list(remaining(routes, attempts)) == routes[at + 1 :]


@given(st.lists(st.builds(Attempt, st.none() | st.just("timeout"), st.integers(), st.text(), st.text(), st.booleans()), max_size=20))
def test_no_trail_leaves_nobody_to_call(attempts: list[Attempt]) -> None:
    """Attempts are untrusted input: whatever they say, one link of the chain remains, in its order."""
    rest = list(remaining(ROUTES, attempts))
    assert rest
    assert rest == [route for route in ROUTES if route in rest]

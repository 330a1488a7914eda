"""The endpoints of a provider: whose turn it is, who is left out for failing, and who comes back."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest

from headrace.config import EndpointSettings, ProviderSettings
from headrace.envelope import Response
from headrace.errors import ErrorClass, Failure
from headrace.llm.balance import Balance, failing
from headrace.llm.endpoint import Endpoint
from headrace.llm.transport import Transport

E = ErrorClass
DOWN = Failure(E.CONNECTION, "m", called=True)
FINE = Response(b"{}")


class Bench:
    """Endpoints a, b, … and a clock in the test's hand."""

    def __init__(self, *weights: float, **settings: Any) -> None:
        listed = tuple(EndpointSettings(base_url=f"http://{name}/v1", weight=w) for name, w in zip("abcdefgh", weights, strict=False))
        self.now_s = 100.0
        self.told: list[tuple[str, str]] = []
        provider = ProviderSettings(name="p", endpoints=listed, **settings)
        endpoints = [Endpoint(provider, at, cast("Transport", None)) for at in provider.servers()]
        self.balance = Balance(
            provider, endpoints, tell=lambda name, fields: self.told.append((name, fields["endpoint"][7])), now_s=lambda: self.now_s
        )
        self.by_name = {one.label[7]: one for one in endpoints}

    def picked(self) -> str:
        one = self.balance.pick()
        assert one is not None
        return one.label[7]

    def call(self, name: str, end: Response | Failure | None) -> None:
        self.balance.begins(self.by_name[name])
        self.balance.ended(self.by_name[name], end)

    def fail(self, name: str, times: int = 5) -> None:
        for _ in range(times):
            self.call(name, DOWN)


def test_weights_are_shares_without_bursts() -> None:
    """Of 5, 1 and 1 in each seven calls, and the heavy one not five times in a row."""
    bench = Bench(5, 1, 1)
    order = "".join(bench.picked() for _ in range(70))
    assert Counter(order) == {"a": 50, "b": 10, "c": 10}
    assert "aaaaa" not in order


def test_the_least_busy_for_its_weight_is_next() -> None:
    """Two calls at one of weight 2 are as one at a single one; among equals each has its turn."""
    bench = Bench(1, 2, balance="least_in_flight")
    bench.by_name["a"].in_flight, bench.by_name["b"].in_flight = 1, 2
    assert bench.picked() == "b"
    bench.by_name["b"].in_flight = 4
    assert bench.picked() == "a"
    equal = Bench(1, 1, 1, balance="least_in_flight")
    assert {equal.picked() for _ in range(3)} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("failure", "counts"),
    [
        (Failure(E.CONNECTION, "m", called=True), True),
        (Failure(E.TIMEOUT, "m", called=True), True),
        (Failure(E.SERVER_ERROR, "m", status_code=502, called=True), True),
        (Failure(E.OVERLOADED, "m", status_code=503, called=True), True),
        (Failure(E.OVERLOADED, "m", status_code=429, called=True), False),
        (Failure(E.RATE_LIMITED, "m", status_code=429, called=True), False),
        (Failure(E.SERVER_ERROR, "m", status_code=409, called=True), False),
        (Failure(E.CONTEXT_LENGTH, "m", status_code=500, called=True), False),
        (Failure(E.AUTH, "m", status_code=401, called=True), False),
        (Failure(E.TIMEOUT, "no time was left"), False),
    ],
)
def test_what_counts_against_an_endpoint(failure: Failure, counts: bool) -> None:
    """Connection, time-out and 5xx; never 4xx, nor what is about the request, nor what was not sent."""
    assert failing(failure) is counts


def test_failures_in_a_row_leave_an_endpoint_out() -> None:
    """Five of them; a good one in between starts anew. Nobody is sent there until its time is over, then one probe."""
    bench = Bench(1, 1)
    bench.fail("a", 4)
    bench.call("a", FINE)
    bench.fail("a", 4)
    assert not bench.told
    bench.fail("a", 1)
    assert bench.told == [("endpoint_ejected", "a")]
    assert {bench.picked() for _ in range(10)} == {"b"}
    assert bench.by_name["a"].state(bench.now_s)[4:6] == (10.0, "connection")
    bench.now_s += 10
    assert {bench.picked() for _ in range(2)} == {"a", "b"}
    bench.balance.begins(bench.by_name["a"])
    assert {bench.picked() for _ in range(10)} == {"b"}, "one probe, and no second beside it"
    bench.balance.ended(bench.by_name["a"], FINE)
    assert bench.told[-1] == ("endpoint_returned", "a")
    assert {bench.picked() for _ in range(2)} == {"a", "b"}


def test_a_failed_probe_doubles_the_time_out() -> None:
    """10, 20, 40 s, up to the cap; and again from 10 s after it has served as long as it was out."""
    bench = Bench(1, 1, ejection={"cap_s": 30})
    bench.fail("a")
    for length_s in (10, 20, 30, 30):
        assert bench.by_name["a"].out_until_s == bench.now_s + length_s
        bench.now_s += length_s
        bench.call("a", DOWN)
    bench.now_s += 30
    bench.call("a", FINE)
    bench.fail("a")
    assert bench.by_name["a"].out_until_s == bench.now_s + 30, "it did not last"
    bench.now_s += 30
    bench.call("a", FINE)
    bench.now_s += 31
    bench.fail("a")
    assert bench.by_name["a"].out_until_s == bench.now_s + 10


def test_a_cancelled_probe_lets_another_try() -> None:
    """It said nothing."""
    bench = Bench(1, 1)
    bench.fail("a")
    bench.now_s += 10
    bench.call("a", None)
    assert {bench.picked() for _ in range(2)} == {"a", "b"}


@pytest.mark.parametrize(("endpoints", "share", "out"), [(1, 0.5, 0), (2, 0.5, 1), (3, 0.5, 1), (4, 0.5, 2), (3, 1.0, 2), (4, 0.0, 0)])
def test_at_most_half_are_out(endpoints: int, share: float, out: int) -> None:
    """Where all fail it is not the endpoint; and one always remains."""
    bench = Bench(*[1.0] * endpoints, ejection={"most_share": share})
    for name in bench.by_name:
        bench.fail(name, 20)
    assert sum(one.left_out for one in bench.by_name.values()) == out


def test_health_takes_out_and_brings_back() -> None:
    """Told once each; where none is healthy, `any` still names one, for a check can be wrong."""
    bench = Bench(1, 1)
    for _ in range(2):
        bench.balance.checked(bench.by_name["a"], well=False, why="HTTP 503")
    assert {bench.picked() for _ in range(4)} == {"b"}
    bench.balance.checked(bench.by_name["b"], well=False)
    assert bench.balance.pick() is None
    assert bench.balance.any() is not None
    bench.balance.checked(bench.by_name["b"], well=True)
    assert bench.picked() == "b"
    assert bench.told == [("endpoint_ejected", "a"), ("endpoint_ejected", "b"), ("endpoint_returned", "b")]

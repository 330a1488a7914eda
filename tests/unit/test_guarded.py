"""The guarded client over the real one: which link of a chain is called, what a refusal costs, and what a rotated key does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from headrace.attempt import Attempts
from headrace.config import EndpointSettings, LinkSettings, PauseSettings, ProviderSettings, Settings
from headrace.envelope import Attempt, Job, Record, Request, Trail
from headrace.errors import CallFailed, ErrorClass
from headrace.guarded import GuardedLlm, TargetShut
from headrace.handler import Context, call_model
from headrace.llm import Call, Llm, Reply
from headrace.outcome import Completed, Dead, Deferred, Outcome, Retry, Settlement
from headrace.outputs import Outputs
from headrace.pauses import Pauses
from headrace.trail import read_trail
from tests.support.clock import HandClock

NOW = 1_800_000_000_000
REQUEST = Request(request_id="r", body={"model": "m", "messages": [], "seed": 1})
OK = Reply(200, {}, b'{"model":"served","choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}', 1)


def error(status: int, code: str = "x") -> Reply:
    """A reply that is none."""
    return Reply(status, {}, orjson.dumps({"error": {"message": "m", "code": code}}), 1)


REFUSED, SPENT, UNGRANTED, BROKEN, UNKNOWN = (
    error(401),
    error(429, "insufficient_quota"),
    error(403),
    error(500),
    error(404, "model_not_found"),
)


class Wire:
    """Answers by the key a call carries, in order, the last one again and again; remembers (key, model)."""

    def __init__(self, **replies: list[Reply]) -> None:
        self.replies = replies
        self.sent: list[tuple[str, str]] = []
        self.then: Callable[[], None] = lambda: None

    async def send(self, call: Call) -> Reply:
        key = call.headers["Authorization"].removeprefix("Bearer sk-key-")
        self.sent.append((key, orjson.loads(call.body)["model"]))
        self.then()
        left = self.replies[key]
        return left.pop(0) if len(left) > 1 else left[0]

    async def close(self) -> None:
        """Nothing is open."""


def provider(name: str, **fields: Any) -> ProviderSettings:
    return ProviderSettings(**({"name": name, "base_url": f"http://{name}", "api_key": f"sk-key-{name}"} | fields))


class Bench:
    """Providers a and b, if no others are given, over a wire of the test's."""

    def __init__(self, *providers: ProviderSettings, models: Any = None, policy: Any = None, **replies: list[Reply]) -> None:
        self.wire = Wire(**replies)
        self.clock = HandClock(NOW)
        self.told: list[str] = []
        listed = providers or (provider("a"), provider("b"))
        self.settings = Settings(providers=listed, models=models or {}, policy=policy or {})
        self.llm = Llm(listed, pool=9, now_ms=lambda: NOW, transport=self.wire, models=self.settings.models)
        self.pauses = Pauses(PauseSettings(), self.llm.targets, tell=lambda name, _: self.told.append(name))
        self.llm.on_new_keys.append(self.pauses.configure)

    async def call(self, *attempts: Attempt, timeout_s: float = 9) -> Any:
        guarded = GuardedLlm(self.llm, self.pauses, self.clock, 1, timeout_s, attempts)  # type: ignore[arg-type]
        return await guarded.call(REQUEST)

    async def live(self, handler: Any = call_model, most: int = 60) -> list[Outcome]:
        """A request's whole life, through the headers of the retry topic."""
        attempts = Attempts(self.settings, handler, self.llm, self.pauses, self.clock, tell=lambda *_: None)  # type: ignore[arg-type]
        outputs = Outputs(self.settings.topics, {})
        record = Record("t", 0, 0, 1, None, b"{}", [], NOW)
        trail, outcomes = Trail(record.position), list[Outcome]()
        while len(outcomes) < most:
            job = Job(record, trail, "r", "f", REQUEST)
            outcomes.append(outcome := await attempts(job))
            if not isinstance(outcome, Retry | Deferred):
                break
            (output,) = outputs.of(Settlement(job, outcome))
            record = Record("t", 0, 0, 1, None, b"{}", output.headers, NOW)
            trail = read_trail(record, trusted=True)
            self.clock.at_ms = max(self.clock.at_ms, outcome.due_ms)
        return outcomes


async def test_a_spent_link_is_followed_by_the_next() -> None:
    """Server errors at the first: its five calls, then the second's, at once; every attempt is one call, and the last one answers."""
    bench = Bench(a=[BROKEN], b=[BROKEN, OK])
    outcomes = await bench.live()
    assert bench.wire.sent == [("a", "m")] * 5 + [("b", "m")] * 2
    assert isinstance(outcomes[-1], Completed)
    assert (outcomes[-1].response.provider, outcomes[-1].response.model) == ("b", "served")
    fifth = outcomes[4]
    assert isinstance(fifth, Retry)
    assert fifth.due_ms == fifth.failed_at_ms
    assert fifth.attempts[0].left
    assert len(outcomes) == 7


async def test_each_link_has_its_own_calls_and_the_last_one_ends_the_request() -> None:
    """Five and five, and the dead letter names the last."""
    bench = Bench(a=[BROKEN], b=[BROKEN])
    outcomes = await bench.live()
    assert [key for key, _ in bench.wire.sent] == ["a"] * 5 + ["b"] * 5
    assert isinstance(outcomes[-1], Dead)
    assert outcomes[-1].failure.provider == "b"


@pytest.mark.parametrize(
    ("reply", "sent"),
    [
        (UNKNOWN, "ab"),
        (error(400, "context_length_exceeded"), "ab"),
        (error(400), "a"),
        (error(413), "a"),
        (error(400, "content_filter"), "a"),
    ],
)
async def test_what_another_model_may_know_is_asked_at_once(reply: Reply, sent: str) -> None:
    """An unknown model and too long a context; never what is the request's own fault."""
    bench = Bench(a=[reply], b=[OK])
    await bench.live()
    assert "".join(key for key, _ in bench.wire.sent) == sent


async def test_a_chain_changes_nothing_but_the_model() -> None:
    """The link's model is what is asked of it; the seed and the rest go as they are."""
    bench = Bench(models={"m": (LinkSettings(provider="a"), LinkSettings(provider="b", model="other"))}, a=[UNKNOWN], b=[OK])
    await bench.live()
    assert bench.wire.sent == [("a", "m"), ("b", "other")]


@pytest.mark.parametrize("refusal", [REFUSED, SPENT, UNGRANTED])
async def test_a_refused_key_is_passed_by_within_the_attempt(refusal: Reply) -> None:
    """The target is paused, the next link answers, and nothing is spent; the next request does not ask there at all."""
    bench = Bench(a=[refusal], b=[OK])
    assert (await bench.call()).provider == "b"
    assert bench.told == ["target_shut"]
    await bench.call()
    assert [key for key, _ in bench.wire.sent] == ["a", "b", "b"]
    (pause,) = bench.pauses.snapshot(NOW)
    assert (pause.error_class, pause.until_ms) == ("quota_exhausted" if refusal is SPENT else "auth", NOW + 30_000)


async def test_with_every_link_shut_a_request_waits_for_the_first_to_reopen() -> None:
    """It has spent nothing, and the lane has nobody to call."""
    bench = Bench(a=[REFUSED], b=[SPENT])
    (outcome, *_) = await bench.live(most=1)
    assert isinstance(outcome, Deferred)
    assert NOW + 30_000 <= outcome.due_ms <= NOW + 36_000
    assert bench.pauses.all_shut(NOW)
    bench.clock.at_ms = NOW
    with pytest.raises(TargetShut) as raised:
        await bench.call()
    assert raised.value.until_ms == NOW + 30_000
    assert len(bench.wire.sent) == 2


async def test_one_open_target_keeps_the_lane_going() -> None:
    """Only when each is shut does it stop."""
    bench = Bench(a=[REFUSED], b=[OK])
    await bench.call()
    assert not bench.pauses.all_shut(NOW)


async def test_fallback_never_keeps_requests_at_a_shut_link() -> None:
    """An operator may rather wait for the quota than pay elsewhere."""
    bench = Bench(a=[SPENT], b=[OK], policy={"quota_exhausted": {"fallback": "never"}})
    outcomes = await bench.live(most=3)
    assert all(isinstance(outcome, Deferred) for outcome in outcomes)
    assert {key for key, _ in bench.wire.sent} == {"a"}


async def test_a_pause_is_of_one_key_of_a_provider() -> None:
    """Endpoints with keys of their own are paused alone, and the link stays open."""
    listed = tuple(EndpointSettings(base_url=f"http://{name}", api_key=f"sk-key-{name}") for name in ("x", "y"))
    bench = Bench(provider("a", endpoints=listed), x=[REFUSED], y=[OK])
    for _ in range(6):
        assert (await bench.call()).provider == "a"
    assert [key for key, _ in bench.wire.sent].count("x") == 1
    assert len(bench.llm.targets) == 2


async def test_a_key_that_was_rotated_causes_no_pause(tmp_path: Path) -> None:
    """The file is looked at before the target is paused, and the call goes on with the new key, in the same attempt."""
    path = tmp_path / "key"
    path.write_text("sk-key-old")
    bench = Bench(provider("a", api_key="sk-key-old", api_key_file=path), old=[OK, REFUSED], new=[OK])
    await bench.call()
    path.write_text("sk-key-new")
    assert (await bench.call()).provider == "a"
    assert [key for key, _ in bench.wire.sent] == ["old", "old", "new"]
    assert not bench.told
    assert bench.pauses.quiet


async def test_a_probe_that_is_refused_for_an_old_key_frees_its_place(tmp_path: Path) -> None:
    """Another endpoint still has that key: its reopening is not held back by a probe that ended long ago."""
    path = tmp_path / "key"
    path.write_text("sk-key-old")
    rotated = EndpointSettings(base_url="http://x", api_key="sk-key-old", api_key_file=path, weight=9)
    bench = Bench(
        provider("a", endpoints=(rotated, EndpointSettings(base_url="http://y", api_key="sk-key-old"))),
        old=[REFUSED], new=[OK],
    )  # fmt: skip
    with pytest.raises(CallFailed):
        await bench.call()
    bench.clock.at_ms = NOW + 31_000
    path.write_text("sk-key-new")
    assert (await bench.call()).provider == "a"
    assert [key for key, _ in bench.wire.sent] == ["old", "old", "new"]
    shut = [target for target in bench.llm.targets if bench.pauses.why_shut(target, bench.clock.at_ms)]
    assert not shut, "nobody is at it: whoever comes next may find out"


@pytest.mark.parametrize(("took_ms", "sent"), [(8_000, "ab"), (9_000, "a")])
async def test_a_call_after_a_refusal_has_what_time_is_left(took_ms: int, sent: str) -> None:
    """The attempt's time is one; where none is left nothing is sent, and the target not asked stays free to be."""
    bench = Bench(a=[REFUSED], b=[OK])
    timeouts: list[float] = []
    plain = bench.wire.send

    async def slow(call: Call) -> Reply:
        timeouts.append(call.timeout_s)
        bench.clock.at_ms += took_ms
        return await plain(call)

    bench.wire.send = slow  # type: ignore[method-assign]
    if sent == "a":
        with pytest.raises(CallFailed):
            await bench.call()
    else:
        await bench.call()
    assert "".join(key for key, _ in bench.wire.sent) == sent
    assert timeouts == [9, 1][: len(sent)]


async def test_a_changed_key_ends_the_old_ones_pause(tmp_path: Path) -> None:
    """A pause is of a key: once nobody has it any more, the lane goes on."""
    path = tmp_path / "key"
    path.write_text("sk-key-old")
    bench = Bench(provider("a", api_key="sk-key-old", api_key_file=path), old=[REFUSED], new=[OK])
    with pytest.raises(CallFailed):
        await bench.call()
    assert bench.pauses.all_shut(NOW)
    path.write_text("sk-key-new")
    await bench.llm.keys.look()
    assert not bench.pauses.all_shut(NOW)
    assert bench.told == ["target_shut", "target_reopened"]
    assert (await bench.call()).provider == "a"


async def test_a_link_shut_for_a_while_is_called_again_when_it_reopens() -> None:
    """Passing by is not leaving: only what a call has ended is left."""
    bench = Bench(a=[SPENT, OK], b=[BROKEN, BROKEN, OK])
    outcomes = await bench.live(most=1)
    assert isinstance(outcomes[0], Retry)
    assert not outcomes[0].attempts[0].left
    bench.clock.at_ms = NOW + 31_000
    assert (await bench.call(*outcomes[0].attempts)).provider == "a"


async def test_a_handler_of_ones_own_walks_the_same_chain() -> None:
    """Its next run, after a failure of the first link, calls the second."""

    async def twice(request: Request, ctx: Context) -> Any:
        await ctx.llm.chat("one")
        return await ctx.llm.call(request)

    bench = Bench(a=[OK, UNKNOWN], b=[OK])
    outcomes = await bench.live(twice)
    assert isinstance(outcomes[-1], Completed)
    assert [key for key, _ in bench.wire.sent] == ["a", "a", "b", "b"]


async def test_calls_that_fail_together_walk_the_chain_too() -> None:
    """Whichever of the failures decides: an outage fails both in one turn of the loop, and the next run calls the second link."""

    async def both(request: Request, ctx: Context) -> Any:
        first, _ = await asyncio.gather(ctx.llm.chat("one"), ctx.llm.chat("two"))
        return first

    bench = Bench(a=[UNKNOWN], b=[OK])
    outcomes = await bench.live(both)
    assert isinstance(outcomes[-1], Completed)
    assert [key for key, _ in bench.wire.sent] == ["a", "a", "b", "b"]


async def test_a_provider_that_asks_not_to_be_asked_again_is_left_at_once() -> None:
    """`x-should-retry: false` speaks for itself, not for the next."""
    no = Reply(500, {"x-should-retry": "false"}, b"{}", 1)
    bench = Bench(a=[no], b=[OK])
    await bench.live()
    assert [key for key, _ in bench.wire.sent] == ["a", "b"]


async def test_the_whole_request_is_bounded_in_time_over_all_links() -> None:
    """`in_all_s` is of the request: no further link is asked beyond it."""
    bench = Bench(a=[BROKEN], b=[OK], policy={ErrorClass.SERVER_ERROR: {"in_all_s": 0.001, "base_s": 60}})
    outcomes = await bench.live()
    assert isinstance(outcomes[-1], Dead)
    assert {key for key, _ in bench.wire.sent} == {"a"}


async def test_a_rate_limit_goes_on_where_it_is_told_to() -> None:
    """By default it is waited for, at the same link; with `at_once` the next is asked after the first."""
    limited = error(429, "rate_limit_exceeded")
    bench = Bench(a=[limited, OK], b=[OK])
    await bench.live()
    assert [key for key, _ in bench.wire.sent] == ["a", "a"]
    told = Bench(a=[limited, OK], b=[OK], policy={"rate_limited": {"fallback": "at_once"}})
    await told.live()
    assert [key for key, _ in told.wire.sent] == ["a", "b"]

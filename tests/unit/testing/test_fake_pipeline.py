"""The pipeline that tests of handlers run on: the real rules, time that jumps, crashes where they are wanted."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from headrace import Context, Dead, Delay, OnceUnknown, Request, Response, Retry
from headrace.config import Settings
from headrace.testing import Asked, FakeModel, FakePipeline, answer, cut, failure, hang, tool_calls, vectors

DONE = Response({"done": True})


async def refuses(request: Request, ctx: Context) -> Response:
    raise Dead("too vague", code="vague")


def test_a_request_goes_in_and_a_result_comes_out() -> None:
    """The default handler: one call, the provider's answer in the result."""
    pipeline = FakePipeline(model=FakeModel(answer("four")))
    assert pipeline.send(prompt="2 + 2") == "r1"
    pipeline.run()
    assert pipeline.answer("r1")["choices"][0]["message"]["content"] == "four"
    assert pipeline.result("r1")["status"] == "completed"
    assert [asked.prompt for asked in pipeline.model.asked] == ["2 + 2"]


def test_failures_are_retried_by_the_real_policy_in_no_time() -> None:
    """A second for Retry-After, the backoffs, the bound on calls; the clock jumps, the test does not wait."""
    began = time.monotonic()
    pipeline = FakePipeline(model=FakeModel(failure(429, retry_after_s=600), failure(503), cut(), answer("b")))
    pipeline.send(prompt="x")
    pipeline.run()
    assert pipeline.story("r1") == ["Retry", "Retry", "Retry", "Completed"]
    assert [each["class"] for each in pipeline.result("r1")["attempts"]["each"]] == ["rate_limited", "overloaded", "connection", None]
    assert [asked.attempt for asked in pipeline.model.asked] == [1, 2, 3, 4]
    assert 600 <= pipeline.seconds < 800
    assert time.monotonic() - began < 30


def test_a_dead_letter_can_be_looked_at_and_sent_again() -> None:
    """Class, code and message as the desk shows them; a replay completes, with the count at zero again."""
    bad = [True]

    async def handle(request: Request, ctx: Context) -> Response:
        if bad[0]:
            raise Dead("too vague", code="vague")
        assert ctx.attempt == 1
        return DONE

    pipeline = FakePipeline(handle)
    pipeline.send(prompt="x")
    (letter,) = pipeline.run().dead_letters
    assert (letter.request_id, letter.error_class, letter.code, letter.message) == ("r1", "internal", "vague", "too vague")
    bad[0] = False
    pipeline.replay(letter)
    assert pipeline.run().answer("r1") == {"done": True}
    assert [one["status"] for one in pipeline.results] == ["failed", "completed"]


def test_verdicts_work_end_to_end() -> None:
    """Retry spends an attempt and keeps to its time, Delay spends none, anything else is internal and bounded."""

    async def handle(request: Request, ctx: Context) -> Response:
        seen.append((ctx.attempt, round(pipeline.seconds)))
        if len(seen) == 1:
            raise Retry("not yet", after=10)
        if len(seen) == 2:
            raise Delay("at noon", until=ctx.now + timedelta(hours=1))
        if len(seen) == 3:
            raise RuntimeError("a bug")
        return DONE

    seen: list[tuple[int, int]] = []
    pipeline = FakePipeline(handle)
    pipeline.send(prompt="x")
    pipeline.run()
    assert pipeline.story("r1") == ["Retry", "Deferred", "Retry", "Completed"]
    assert [attempt for attempt, _ in seen] == [1, 2, 2, 3]
    assert 10 <= seen[1][1] <= 13
    assert 3_610 <= seen[2][1] <= 3_613


def test_a_silent_model_ends_at_the_time_out_and_latency_is_counted() -> None:
    """Time passes while a model is awaited, and only then."""
    pipeline = FakePipeline(model=FakeModel(hang(), answer("late", latency_s=20)))
    pipeline.send(prompt="x")
    result = pipeline.run().result("r1")
    assert [(each["class"], round(each["latency_ms"], -2)) for each in result["attempts"]["each"]] == [("timeout", 60_000), (None, 20_000)]


def test_a_handlers_own_time_ends_it() -> None:
    """handler_timeout_s; ctx.deadline shrinks as time passes."""

    async def handle(request: Request, ctx: Context) -> Response:
        seen.append(ctx.deadline)
        await asyncio.sleep(4)
        seen.append(ctx.deadline)
        await asyncio.sleep(100)
        return DONE

    seen: list[float] = []
    pipeline = FakePipeline(handle, settings={"handler_timeout_s": 10, "policy": {"timeout": {"calls": 1}}})
    pipeline.send(prompt="x")
    (letter,) = pipeline.run().dead_letters
    assert letter.error_class == "timeout"
    assert seen == pytest.approx([10, 6])


@pytest.mark.parametrize(
    ("crash", "effects", "ends"),
    [
        ({"after": "charge"}, 1, "Completed"),
        ({"before": "charge"}, 0, "Dead"),
        ({"within": "charge"}, 1, "Dead"),
        ({"call": 1}, 1, "Completed"),
        ({"settle": "r1"}, 1, "Completed"),
    ],
)
def test_a_crash_anywhere_leaves_one_effect_at_most(crash: dict[str, Any], effects: int, ends: str) -> None:
    """Another worker takes over when the claim has lapsed; where the effect may have happened, it is not repeated."""
    charged: list[str] = []

    async def handle(request: Request, ctx: Context) -> Response:
        await ctx.once("charge", lambda: charged.append(request.request_id))
        return await ctx.llm.chat("hello")

    pipeline = FakePipeline(handle)
    pipeline.send(prompt="x")
    pipeline.crash(**crash)
    pipeline.run()
    assert len(charged) == effects
    assert pipeline.story("r1") == [ends]
    assert pipeline.seconds >= 15
    assert [letter.code for letter in pipeline.dead_letters] == (["once_unknown"] if ends == "Dead" else [])


def test_several_crashes_and_steps_in_one_story() -> None:
    """Each point once, in any order; what was done before a crash is not done again, and its value is there."""
    done: list[str] = []

    def step(name: str) -> str:
        done.append(name)
        return name

    async def handle(request: Request, ctx: Context) -> Response:
        values = [await ctx.once(name, lambda name=name: step(name), on_unknown="again") for name in ("a", "b", "c")]  # type: ignore[misc]
        return Response({"values": values})

    pipeline = FakePipeline(handle)
    pipeline.send(prompt="x")
    pipeline.crash(after="a")
    pipeline.crash(within="b")
    pipeline.crash(settle="r1")
    assert pipeline.run().answer("r1") == {"values": ["a", "b", "c"]}
    assert done == ["a", "b", "b", "c"]
    assert pipeline.step("r1", "b") == "b"


def test_a_crashed_handler_does_not_go_on() -> None:
    """No finally, no except, not later either: a killed process has no last words."""
    words: list[str] = []

    async def handle(request: Request, ctx: Context) -> Response:
        try:
            await ctx.once("a", lambda: 1)
        finally:
            words.append("finally")
        return DONE

    pipeline = FakePipeline(handle)
    pipeline.send(prompt="x")
    pipeline.crash(after="a")
    pipeline.run()
    assert words == ["finally"]


def test_a_crash_that_does_not_come_fails_the_test() -> None:
    """A misspelt step would prove nothing."""
    pipeline = FakePipeline()
    pipeline.send(prompt="x")
    pipeline.crash(after="no such step")
    with pytest.raises(AssertionError, match="did not come"):
        pipeline.run()
    with pytest.raises(ValueError, match="needs a point"):
        pipeline.crash()


def test_what_never_ends_fails_the_test() -> None:
    """Bounded in the frozen time, with what waits."""

    async def handle(request: Request, ctx: Context) -> Response:
        raise Delay("never", until=ctx.now + timedelta(minutes=5))

    pipeline = FakePipeline(handle)
    pipeline.send(prompt="x")
    with pytest.raises(AssertionError, match=r"not settled within 3600 s: .*Deferred"):
        pipeline.run(within_s=3_600)


def test_copies_and_conflicts_end_as_they_do_in_earnest() -> None:
    """The claims are the real ones: one call, a notice for the copy, a dead letter for the changed content."""
    pipeline = FakePipeline()
    pipeline.send(request_id="a", prompt="x")
    pipeline.run()
    pipeline.send(request_id="a", prompt="x")
    pipeline.send(request_id="a", prompt="y")
    pipeline.run()
    assert [one["status"] for one in pipeline.results] == ["completed", "duplicate", "duplicate"]
    assert [letter.error_class for letter in pipeline.dead_letters] == ["id_conflict"]
    assert len(pipeline.model.asked) == 1


def test_hostile_bytes_are_a_dead_letter() -> None:
    """The decoder is the real one."""
    pipeline = FakePipeline()
    pipeline.send(b"\xff")
    assert [letter.error_class for letter in pipeline.run().dead_letters] == ["undecodable"]


def test_many_requests_go_at_once() -> None:
    """Eight callers a lane, as in a worker; each waits for its own."""
    pipeline = FakePipeline(model=FakeModel(by=lambda asked: answer(asked.prompt.upper(), latency_s=10)))
    ids = [pipeline.send(prompt=f"q{number}") for number in range(16)]
    pipeline.run()
    assert [pipeline.answer(one)["choices"][0]["message"]["content"] for one in ids] == [f"Q{number}" for number in range(16)]
    assert 20 <= pipeline.seconds < 21


def test_the_same_seed_gives_the_same_story() -> None:
    """Backoffs included."""

    def story(seed: int) -> float:
        pipeline = FakePipeline(model=FakeModel(failure(500), failure(500), answer()), seed=seed)
        pipeline.send(prompt="x")
        return pipeline.run().seconds

    assert story(3) == story(3)
    assert story(3) != story(4)


async def test_it_runs_inside_an_async_test_too() -> None:
    """Beside a running loop it takes a thread."""
    pipeline = FakePipeline(refuses)
    pipeline.send(prompt="x")
    assert len(pipeline.run().dead_letters) == 1


def test_while_a_thread_works_time_is_real() -> None:
    """A handler that calls blocking code is not timed out by a clock that jumps."""

    async def handle(request: Request, ctx: Context) -> Response:
        await asyncio.to_thread(time.sleep, 0.05)
        assert ctx.deadline > 200
        return DONE

    pipeline = FakePipeline(handle)
    pipeline.send(prompt="x")
    assert pipeline.run().story("r1") == ["Completed"]


def test_after_its_awaiting_was_cancelled_a_thread_still_makes_time_real() -> None:
    """It goes on, and what it does must not fall into a later moment."""
    ended: list[float] = []

    def work() -> None:
        time.sleep(0.1)
        ended.append(pipeline.seconds)

    async def handle(request: Request, ctx: Context) -> Response:
        if ctx.attempt == 1:
            task = asyncio.create_task(asyncio.to_thread(work))
            await asyncio.sleep(0)
            task.cancel()
            raise Retry("x", after=1_000)
        return DONE

    pipeline = FakePipeline(handle)
    pipeline.send(prompt="x")
    pipeline.run()
    assert ended[0] < 100


@pytest.mark.parametrize(
    ("errors", "ends"),
    [
        ([ValueError("x"), Dead("no", code="no")], "no"),
        ([Retry("later"), ValueError("x"), Dead("no", code="no")], "no"),
        ([ValueError("x"), ZeroDivisionError()], "ValueError"),
    ],
)
def test_of_errors_raised_together_one_decides(errors: list[Exception], ends: str) -> None:
    """A TaskGroup raises a group: what is in it counts, a verdict before anything else, however deep it stands."""

    async def handle(request: Request, ctx: Context) -> Response:
        raise ExceptionGroup("several", [ExceptionGroup("inner", errors)])

    pipeline = FakePipeline(handle, settings={"policy": {"internal": {"calls": 1}}})
    pipeline.send(prompt="x")
    assert [letter.code for letter in pipeline.run().dead_letters] == [ends]


def test_settings_may_be_the_workers_own() -> None:
    """As a mapping or as Settings; a fault in them is named by the model of the configuration."""
    assert FakePipeline(settings=Settings(namespace="n")).run().results == []
    with pytest.raises(ValueError, match="no_such"):
        FakePipeline(settings={"no_such": 1})


def test_a_spent_quota_pauses_and_spends_nothing() -> None:
    """The pauses are real too: the request comes back after the reopening."""
    pipeline = FakePipeline(model=FakeModel(failure(429, code="insufficient_quota"), answer("ok")))
    pipeline.send(prompt="x")
    pipeline.run()
    assert pipeline.story("r1") == ["Deferred", "Completed"]
    assert pipeline.result("r1")["attempts"]["count"] == 1
    assert pipeline.seconds >= 30


def test_an_unknown_step_is_found_out_by_a_function() -> None:
    """The way out of doubt: ask whoever was asked before."""
    sent: list[str] = []

    async def handle(request: Request, ctx: Context) -> Response:
        def send() -> str:
            sent.append("mail")
            return "sent"

        how = await ctx.once("mail", send, on_unknown=lambda: "was sent" if sent else send())
        return Response({"mail": how})

    pipeline = FakePipeline(handle)
    pipeline.send(prompt="x")
    pipeline.crash(within="mail")
    assert pipeline.run().answer("r1") == {"mail": "was sent"}
    assert sent == ["mail"]


def test_replies_of_every_kind_reach_the_handler() -> None:
    """Tool calls and vectors, by script or by a function that sees what was asked."""

    async def handle(request: Request, ctx: Context) -> Response:
        called = await ctx.llm.chat("weather?", tools=[{"type": "function", "function": {"name": "look"}}])
        embedded = await ctx.llm.embed(["a", "b"])
        return Response({"tool": called.tool_calls[0]["function"], "vectors": embedded.vectors})

    def by(asked: Asked) -> Any:
        return vectors([1, 2], [3, 4])

    pipeline = FakePipeline(handle, FakeModel(tool_calls(("look", {"city": "Ulm"})), by=by))
    pipeline.send(prompt="x")
    assert pipeline.run().answer("r1") == {"tool": {"name": "look", "arguments": '{"city":"Ulm"}'}, "vectors": [[1, 2], [3, 4]]}
    assert pipeline.model.asked[0].body["tools"][0]["function"]["name"] == "look"
    assert pipeline.model.left == 0


def test_a_step_without_a_value_has_none() -> None:
    """`step` tells what is kept, and says where nothing is."""

    async def handle(request: Request, ctx: Context) -> Response:
        with pytest.raises(ZeroDivisionError):
            await ctx.once("a", lambda: 1 / 0)
        with pytest.raises(OnceUnknown):
            await ctx.once("a", lambda: 1)
        return DONE

    pipeline = FakePipeline(handle)
    pipeline.send(prompt="x")
    pipeline.run()
    for key in ("a", "b"):
        with pytest.raises(KeyError):
            pipeline.step("r1", key)


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/embeddings", "/v1/responses"])
def test_without_a_script_every_endpoint_is_answered(endpoint: str) -> None:
    """Plainly."""
    pipeline = FakePipeline()
    pipeline.send(endpoint=endpoint, body={"input": "x", "prompt": "x"})
    assert pipeline.run().story("r1") == ["Completed"]

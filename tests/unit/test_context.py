"""What a handler is given: its calls of the model, its time, its log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
import structlog

from headrace import Context, Request, Response
from headrace.context import Caller, Contexts
from headrace.envelope import Job, Record, Trail
from tests.support.clock import HandClock

NOW = 1_800_000_000_000
REQUEST = Request(request_id="r", body={"model": "mine", "messages": []})


class Model:
    """Remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    async def call(self, request: Request) -> Response:
        self.asked.append(request)
        return Response({})


def a_context(*, monotonic: Any = lambda: 50.0, request: Request = REQUEST, **trail: Any) -> Context:
    record = Record("main", 0, 5, 1, None, b"{}", [], NOW)
    job = Job(record, Trail(record.position, **trail), request.request_id, "f", request)
    return Context(Contexts(HandClock(NOW), monotonic=monotonic), job, Model(), 3, 20.0)


async def test_the_request_as_it_came_keeps_its_id() -> None:
    """It is the same call as the default handler's."""
    model = Model()
    await Caller(model, REQUEST).call(REQUEST)
    assert model.asked == [REQUEST]
    assert model.asked[0] is REQUEST


async def test_every_other_call_has_an_id_that_follows_from_what_is_sent() -> None:
    """Different calls differ, the same call of another run is the same whatever came before it, a repetition within a run is another."""
    first, second = Model(), Model()
    caller = Caller(first, REQUEST)
    await caller.chat("a")
    await caller.chat("b")
    await caller.chat("b")
    await caller.call(REQUEST.model_copy(update={"body": {"messages": ["c"]}}))
    await caller.call(REQUEST)
    await Caller(second, REQUEST).chat("b")
    ids = [asked.request_id for asked in first.asked]
    assert len(set(ids)) == 5
    assert ids[4] == "r"
    assert ids[2] == ids[1] + "-2"
    assert second.asked[0].request_id == ids[1]
    assert all(one.startswith("r/") for one in ids[:4])


async def test_a_long_request_id_leaves_room_for_the_calls_own() -> None:
    """Providers and proxies refuse long keys: whole, it is at most 128 characters."""
    model = Model()
    request = REQUEST.model_copy(update={"request_id": "x" * 128})
    await Caller(model, request).chat("a")
    assert len(model.asked[0].request_id) <= 128


async def test_a_chat_is_an_openai_request() -> None:
    """Messages, tools and any other parameter; the request's model unless another is named; what is None is left out."""
    model = Model()
    caller = Caller(model, REQUEST)
    await caller.chat("hello", temperature=0.1, seed=None)
    await caller.chat([{"role": "system", "content": "s"}], model="other", tools=[{"type": "function"}])
    assert [(asked.endpoint, asked.body) for asked in model.asked] == [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "temperature": 0.1, "model": "mine"}),
        ("/v1/chat/completions", {"messages": [{"role": "system", "content": "s"}], "tools": [{"type": "function"}], "model": "other"}),
    ]


async def test_embeddings_do_not_take_the_chat_requests_model() -> None:
    """Without a model of its own such a call goes to the provider's default; for a request that is one itself, to its."""
    model = Model()
    await Caller(model, REQUEST).embed(["a", "b"])
    await Caller(model, REQUEST.model_copy(update={"endpoint": "/v1/embeddings", "body": {"model": "e"}})).embed("a", dimensions=3)
    assert [(asked.endpoint, asked.body) for asked in model.asked] == [
        ("/v1/embeddings", {"input": ["a", "b"]}),
        ("/v1/embeddings", {"input": "a", "dimensions": 3, "model": "e"}),
    ]


async def test_what_cannot_be_sent_is_left_to_the_client_to_refuse() -> None:
    """Its refusal has a class."""
    model = Model()
    await Caller(model, REQUEST).chat("\ud800")
    assert len(model.asked) == 1


def test_the_deadline_is_the_time_left() -> None:
    """In seconds, live, never below zero."""
    at = [50.0]
    ctx = a_context(monotonic=lambda: at[0])
    seen = [ctx.deadline]
    for at[0] in (65.0, 70.0, 90.0):
        seen.append(ctx.deadline)
    assert seen == [20.0, 5.0, 0.0, 0.0]


def test_now_is_the_workers_time() -> None:
    """An aware datetime, for Delay(until=…)."""
    assert a_context().now == datetime.fromtimestamp(NOW / 1000, UTC)
    assert a_context().now + timedelta(seconds=1) > a_context().now


def test_the_log_says_which_request_it_is_about() -> None:
    """Id, attempt and trace are in each line; a trace there is none of is left out."""
    with structlog.testing.capture_logs() as lines:
        a_context(traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01").log.info("found", documents=3)
        a_context().log.info("found")
    assert lines[0] == {"event": "found", "log_level": "info", "documents": 3, "request_id": "r", "attempt": 3, "trace_id": "ab" * 16}
    assert "trace_id" not in lines[1]


CHAT = {"choices": [{"message": {"role": "assistant", "content": "hi", "tool_calls": [{"id": "c"}]}}]}


@pytest.mark.parametrize("as_bytes", [True, False])
def test_an_answer_is_read_for_the_handler(as_bytes: bool) -> None:
    """Text, message, tool calls and vectors, from bytes or an object."""

    def answer(body: dict[str, Any]) -> Response:
        return Response(orjson.dumps(body) if as_bytes else body)

    assert answer(CHAT).text == "hi"
    assert answer(CHAT).message == CHAT["choices"][0]["message"]
    assert answer(CHAT).tool_calls == [{"id": "c"}]
    assert answer({"choices": [{"text": "t"}]}).text == "t"
    parts = [{"type": "output_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    assert answer({"output": [{"type": "reasoning"}, {"type": "message", "content": parts}]}).text == "ab"
    assert answer({"data": [{"index": 1, "embedding": [2]}, {"index": 0, "embedding": [1]}]}).vectors == [[1], [2]]


@pytest.mark.parametrize(
    "body", [{}, {"choices": []}, {"choices": None}, {"choices": [{"message": None}]}, {"choices": [{"message": {"content": None}}]}, b"[]"]
)
def test_what_is_not_there_is_empty(body: Any) -> None:
    """Not an exception in the middle of a handler."""
    answer = Response(body)
    assert (answer.text, answer.tool_calls, answer.vectors) == ("", [], [])


def test_what_a_handler_does_not_use_is_not_made() -> None:
    """Neither a logger nor steps."""
    ctx = a_context()
    assert ctx._effects is None
    assert ctx._log is None

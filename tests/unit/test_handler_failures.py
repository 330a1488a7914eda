"""What is told of a handler's exception, and what a handler's result is credited with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headrace import effects
from headrace.context import Caller
from headrace.envelope import Request, Response
from headrace.instrument.failures import BURST, Failures

SECRET = "the text of a prompt"
REQUEST = Request(request_id="r", body={"model": "m"})


def fail() -> None:
    raise ValueError(SECRET)


def raised() -> ValueError:
    try:
        fail()
    except ValueError as error:
        return error
    raise AssertionError("it raises")


def told_of(count: int = 1) -> list[Mapping[str, Any]]:
    lines: list[Mapping[str, Any]] = []
    failures = Failures(lambda _, fields: lines.append(fields), now_s=lambda: 0.0)
    for _ in range(count):
        failures("r", 1, raised())
    return lines


def test_a_line_says_where_and_nothing_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Type, file and line are told; a text that may quote a record is not."""
    monkeypatch.delenv("HEADRACE_DEBUG", raising=False)
    (line,) = told_of()
    assert (line["type"], line["request_id"]) == ("ValueError", "r")
    assert line["where"].startswith("test_handler_failures.py:")
    assert line["stack"].endswith(" raised")
    assert SECRET not in str(line)


def test_debug_adds_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """HEADRACE_DEBUG=1 shows all of it."""
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    assert SECRET in told_of()[0]["traceback"]


def test_an_outage_does_not_flood_the_log() -> None:
    """Beyond the burst nothing is written."""
    assert len(told_of(500)) == BURST


async def test_a_result_is_credited_with_the_calls_of_its_attempt() -> None:
    """Provider and model of the last call, tokens of all; what the handler says itself stays."""

    class Model:
        async def call(self, request: Request) -> Response:
            return Response(b"{}", provider="p", model="m1", usage={"prompt_tokens": 2, "total_tokens": 3})

    caller = Caller(Model(), REQUEST)
    own = Response({"any": 1}, model="mine", usage={"x": 1})
    assert caller.credited(Response({"a": 1})).provider is None
    await caller.chat("one")
    await caller.chat("two")
    filled = caller.credited(Response({"a": 1}))
    assert (filled.provider, filled.model, filled.usage) == ("p", "m1", {"prompt_tokens": 4, "total_tokens": 6})
    assert caller.credited(own) == own


def test_what_a_step_raised_is_remembered_by_type_and_bounded() -> None:
    """A later `once_unknown` names the type, never the text; memory does not grow."""
    for number in range(effects.REMEMBERED + 5):
        effects._remember("r", str(number), raised())
    assert len(effects._raised) == effects.REMEMBERED
    assert effects._last_raised("r", str(effects.REMEMBERED)) == "; the step raised ValueError last time"
    assert effects._last_raised("r", "0") == ""

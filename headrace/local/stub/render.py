"""An action and a call made into a reply: the error bodies, and the answers bent as a failing provider bends them."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import MappingProxyType
from typing import Final

import orjson

from headrace.local.stub.answer import Answer, make_answer
from headrace.local.stub.call import Call
from headrace.local.stub.reply import Reply
from headrace.local.stub.rule import Action
from headrace.local.stub.signals import SIGNALS, Signal


def render(action: Action, call: Call, number: str, now_s: float) -> tuple[Reply, int]:
    """The reply `action` gives to `call`, and the tokens it costs. `number` is this call's own; `now_s` is epoch s."""
    signal = SIGNALS[action.signal]
    headers = (
        ("x-request-id", f"req_{number}"),
        *signal.headers,
        *_hints(action, signal, now_s),
        *action.headers.items(),
    )
    status = action.status or signal.status
    if action.body is not None:
        return Reply(status, action.body.encode(), headers), 0
    if signal.html is not None:
        return Reply(status, signal.html.encode(), headers, "text/html; charset=utf-8"), 0
    if signal.document is not None:
        return Reply(status, orjson.dumps(_worded(signal.document, action, call)), headers), 0
    answer = make_answer(call, number, int(now_s), action.answer_bytes)
    bend = _BENDS.get(action.signal)
    if bend is not None:
        bend(answer)
    body = orjson.dumps(answer.document)
    damage = _DAMAGES.get(action.signal)
    return Reply(status, body if damage is None else damage(body), headers), answer.tokens


def _hints(action: Action, signal: Signal, now_s: float) -> list[tuple[str, str]]:
    """Headers that say when to come back: as the rule asks, else in seconds where the signal has them."""
    hints = [] if action.should_retry is None else [("x-should-retry", str(action.should_retry).lower())]
    form = action.retry_after or ("seconds" if signal.retry_after else "none")
    after_s = action.retry_after_s
    if form == "seconds":
        hints.append(("retry-after", f"{after_s:g}" if after_s < 1e6 else str(int(after_s))))
    elif form == "ms":
        hints.append(("retry-after-ms", str(math.ceil(after_s * 1000))))
    elif form == "http_date":
        # An HTTP date has whole seconds: rounded up, it never asks for less than the rule says.
        due = datetime.fromtimestamp(0, UTC) + timedelta(seconds=max(0, math.ceil(now_s + after_s)))
        hints.append(("retry-after", format_datetime(due, usegmt=True)))
    elif form == "garbage":
        hints.append(("retry-after", "soon; perhaps"))
    return hints


def _worded(document: object, action: Action, call: Call) -> object:
    if (action.message is None and not action.echo_prompt) or not isinstance(document, dict):
        return document
    said = deepcopy(document)
    error = said.get("error")
    place, key = (error, "message") if isinstance(error, dict) else (said, "error" if "error" in said else "detail")
    words = str(place[key]) if action.message is None else action.message
    place[key] = f"{words} Input: {call.prompt}" if action.echo_prompt else words
    return said


def _finish(reason: str) -> Callable[[Answer], None]:
    def bend(answer: Answer) -> None:
        choices = answer.document.get("choices")
        if isinstance(choices, list):
            for choice in choices:
                choice["finish_reason"] = reason
                if reason == "content_filter" and "message" in choice:
                    choice["message"]["content"] = None

    return bend


def _replace(**fields: object) -> Callable[[Answer], None]:
    return lambda answer: answer.document.update(fields)


def _list_of(value: object) -> Callable[[Answer], None]:
    def bend(answer: Answer) -> None:
        for key in ("choices", "output", "data"):
            if key in answer.document:
                answer.document[key] = value

    return bend


_BENDS: Final = MappingProxyType(
    {
        "no_choices": _list_of([]),
        "null_choices": _list_of(None),
        "finish_abort": _finish("abort"),
        "finish_length": _finish("length"),
        "finish_content_filter": _finish("content_filter"),
        "response_failed": _replace(
            status="failed",
            output=[],
            error={"code": "server_error", "message": "The model failed to generate a response."},
        ),
        "response_incomplete": _replace(status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        "response_incomplete_filter": _replace(status="incomplete", incomplete_details={"reason": "content_filter"}),
        "response_queued": _replace(status="queued", output=[], usage=None),
        "response_in_progress": _replace(status="in_progress", output=[], usage=None),
    }
)
_DAMAGES: Final = MappingProxyType[str, Callable[[bytes], bytes]](
    {
        "nan_json": lambda body: body.replace(b'"usage":{', b'"usage":{"cost":NaN,', 1),
        "truncated_json": lambda body: body[: len(body) // 2],
    }
)

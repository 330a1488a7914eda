"""What a scripted model says, as values: answers, tool calls, vectors, and everything that goes wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

Broken = Literal["cut", "hang", "no_http"]


@dataclass(frozen=True, slots=True)
class Said:
    """One reply: an HTTP status with a body and headers after `latency_s`, or one that is `broken`: a connection cut, silence, or no HTTP."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    latency_s: float = 0.0
    broken: Broken | None = None


def answer(text: str = "ok", *, finish_reason: str = "stop", latency_s: float = 0.0, **message: Any) -> Said:
    """A chat completion that says `text`. `message` are further fields of the message (`refusal`, `audio`, …)."""
    return _completion({"role": "assistant", "content": text, **message}, finish_reason, latency_s)


def tool_calls(*calls: tuple[str, Mapping[str, Any]], latency_s: float = 0.0) -> Said:
    """A chat completion that asks for tools: a name and its arguments for each."""
    asked = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": orjson.dumps(arguments).decode()}}
        for number, (name, arguments) in enumerate(calls, start=1)
    ]
    return _completion({"role": "assistant", "content": None, "tool_calls": asked}, "tool_calls", latency_s)


def vectors(*each: Sequence[float], latency_s: float = 0.0) -> Said:
    """An answer to an embeddings call, a vector for each input."""
    data = [{"object": "embedding", "index": number, "embedding": list(vector)} for number, vector in enumerate(each)]
    document = {"object": "list", "model": "fake", "data": data, "usage": {"prompt_tokens": len(each), "total_tokens": len(each)}}
    return Said(body=orjson.dumps(document), latency_s=latency_s)


def failure(
    status: int, message: str = "scripted", *, code: str | None = None, retry_after_s: float | None = None, latency_s: float = 0.0
) -> Said:
    """An HTTP error in OpenAI's form. `code` as providers send it (`insufficient_quota`, `context_length_exceeded`, …)."""
    headers = {} if retry_after_s is None else {"retry-after": f"{retry_after_s:g}"}
    body = {"error": {"message": message, "type": None, "param": None, "code": code}}
    return Said(status, orjson.dumps(body), headers, latency_s)


def hang() -> Said:
    """Nothing, ever: the call ends at its time-out."""
    return Said(broken="hang")


def cut(*, latency_s: float = 0.0) -> Said:
    """The connection is cut before or within the reply."""
    return Said(broken="cut", latency_s=latency_s)


def no_http(*, latency_s: float = 0.0) -> Said:
    """Bytes come that are no HTTP."""
    return Said(broken="no_http", latency_s=latency_s)


def _completion(message: dict[str, Any], finish_reason: str, latency_s: float) -> Said:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    choices = [{"index": 0, "message": message, "finish_reason": finish_reason}]
    document = {"id": "chatcmpl-fake", "object": "chat.completion", "model": "fake", "choices": choices, "usage": usage}
    return Said(body=orjson.dumps(document), latency_s=latency_s)

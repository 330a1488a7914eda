"""A model that says what it is told to: the third transport beside `direct` and `sdk`, held to the same contract test."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from headrace.errors import CallFailed, ErrorClass, Failure
from headrace.llm import Call, Reply, classify_exception
from headrace.llm.transport import MAX_BODY_BYTES, out_of_time, oversized
from headrace.testing.replies import Said, answer, vectors


@dataclass(frozen=True, slots=True)
class Asked:
    """One call as the model saw it. `key` is its idempotency key, `attempt` that of the request, from 1."""

    endpoint: str
    raw: bytes
    headers: Mapping[str, str]

    @property
    def body(self) -> dict[str, Any]:
        """The request object."""
        return dict(orjson.loads(self.raw))

    @property
    def prompt(self) -> str:
        """The text of the last message, else of the prompt or input."""
        body = self.body
        said = body["messages"][-1].get("content") if body.get("messages") else body.get("prompt") or body.get("input")
        return said if isinstance(said, str) else orjson.dumps(said).decode()

    @property
    def key(self) -> str:
        return self.headers.get("Idempotency-Key", "")

    @property
    def attempt(self) -> int:
        return int(self.headers.get("X-Headrace-Attempt", "0"))


By = Callable[[Asked], Said | Awaitable[Said]]


class FakeModel:
    """Says what stands in its script, in order; then whatever `by` says of a call, and without it a plain answer for each.

    `asked` holds every call in order. Latencies and silences take the time of the loop it runs in: none in a FakePipeline.
    """

    def __init__(self, *script: Said, by: By | None = None, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._script = deque(script)
        self._by = by or _plain
        self._max_body_bytes = max_body_bytes
        self.asked: list[Asked] = []

    @property
    def left(self) -> int:
        """How much of the script nobody has asked for."""
        return len(self._script)

    async def send(self, call: Call) -> Reply:
        """As a transport's."""
        if call.timeout_s <= 0:
            raise out_of_time()
        began = asyncio.get_running_loop().time()
        asked = Asked(call.endpoint, call.body, dict(call.headers))
        self.asked.append(asked)
        try:
            async with asyncio.timeout(call.timeout_s):
                said = await self._said(asked)
        except (TimeoutError, ConnectionError) as error:
            raise CallFailed(classify_exception(error)) from None
        return self._reply(said, round((asyncio.get_running_loop().time() - began) * 1000))

    async def close(self) -> None:
        """Nothing is open."""

    async def _said(self, asked: Asked) -> Said:
        said = self._script.popleft() if self._script else self._by(asked)
        if inspect.isawaitable(said):
            said = await said
        await asyncio.sleep(said.latency_s)
        if said.broken == "hang":
            await asyncio.Event().wait()
        if said.broken == "cut":
            raise ConnectionResetError("the scripted model cut the connection")
        return said

    def _reply(self, said: Said, latency_ms: int) -> Reply:
        headers = _Headers(said.headers)
        if said.broken == "no_http":
            raise CallFailed(Failure(ErrorClass.INVALID_RESPONSE, "the reply is no HTTP", called=True))
        if headers.get("content-encoding", "identity") != "identity":
            raise CallFailed(Failure(ErrorClass.INVALID_RESPONSE, "the scripted model packs nothing", called=True))
        if len(said.body) > self._max_body_bytes:
            raise oversized(self._max_body_bytes)
        return Reply(said.status, headers, said.body, latency_ms)


class _Headers(Mapping[str, str]):
    """Headers that ignore case, as those of an HTTP client do."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def __getitem__(self, name: str) -> str:
        return self._given[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def _plain(asked: Asked) -> Said:
    if asked.endpoint == "/v1/embeddings":
        texts = asked.body.get("input", "")
        return vectors(*([1.0, 0.0] for _ in ([texts] if isinstance(texts, str) else texts)))
    if asked.endpoint == "/v1/completions":
        return Said(body=orjson.dumps({"model": "fake", "choices": [{"index": 0, "text": "ok", "finish_reason": "stop"}]}))
    if asked.endpoint == "/v1/responses":
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]}
        return Said(body=orjson.dumps({"object": "response", "status": "completed", "error": None, "model": "fake", "output": [said]}))
    return answer()

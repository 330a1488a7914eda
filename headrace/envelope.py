"""What travels: a source record, the request in it, and the trail the pipeline keeps in its own headers.

Parsing bytes into these is `decode`'s work; what a request ends as is `outcome`'s. Of what is made for every record
here, named tuples: a frozen dataclass of twelve fields costs 2.2 µs to make, a named tuple 0.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

import orjson
import pydantic

from headrace.errors import Failure

Header = tuple[str, bytes | None]
Priority = Literal["high", "normal", "low"]
Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
ENDPOINTS: tuple[str, ...] = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


class Position(NamedTuple):
    """Where a record stands; as text `topic/partition/offset`."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """The position in `text`. Raises ValueError for anything else."""
        topic, partition, offset = text.rsplit("/", 2)
        if not topic or len(text) > 300 or not (partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit()):
            raise ValueError("a position reads topic/partition/offset")
        if len(partition) > 10 or len(offset) > 19:
            raise ValueError("a partition has at most 10 digits, an offset at most 19")
        return cls(topic, int(partition), int(offset))


class Record(NamedTuple):
    """A record as it was read, with the epoch of the assignment it was read under. Key, value and headers are hostile."""

    topic: str
    partition: int
    offset: int
    epoch: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    timestamp_ms: int

    @property
    def position(self) -> Position:
        return Position(self.topic, self.partition, self.offset)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call to a model: its class (None: it succeeded), latency, who was called, and for which model (as `plain_model` has it).

    `left`: the request goes on to the next link of its chain, and not back to this one.
    """

    error_class: str | None
    latency_ms: int
    provider: str
    model: str = ""
    left: bool = False


class Trail(NamedTuple):
    """What the pipeline knows of a request from its earlier hops: the `headrace_*` headers, parsed and bounded.

    `retry_count` counts calls spent so far; times are epoch milliseconds; `elapsed_ms` sums calls and planned
    backoffs; `hop` grows with each handing on by the claim's holder (DESIGN §5).
    """

    origin: Position
    hop: int = 0
    retry_count: int = 0
    next_retry_at_ms: int | None = None
    deadline_at_ms: int | None = None
    first_failed_at_ms: int | None = None
    elapsed_ms: int = 0
    attempts: tuple[Attempt, ...] = ()
    replay_id: str | None = None
    replay_count: int = 0
    failure: Failure | None = None
    traceparent: str | None = None


class Request(pydantic.BaseModel):
    """One inference request, as its producer wrote it (DESIGN §5). `body` is the OpenAI request object."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")

    request_id: str = pydantic.Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")
    endpoint: Endpoint = "/v1/chat/completions"
    body: dict[str, Any]
    agent_id: str = pydantic.Field("default", min_length=1, max_length=256)
    channel: str = pydantic.Field("default", min_length=1, max_length=256)
    priority: Priority = "normal"
    created_at: datetime | None = None
    deadline_at: datetime | None = None
    metadata: dict[str, str] | None = pydantic.Field(None, max_length=16)


class Job(NamedTuple):
    """A record on its way through a lane. Without a `request` it is dead already, and `fault` says why.

    `request_id` and `fingerprint` are there whenever they could be read, also beside a `fault`: such a record
    is claimed before its fault can end it.
    """

    record: Record
    trail: Trail
    request_id: str | None = None
    fingerprint: str | None = None
    request: Request | None = None
    fault: Failure | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """A model's answer. `body` is the provider's JSON, as bytes untouched, or an object a handler made.

    What is read out of it (`text`, `message`, `tool_calls`, `vectors`) is read anew each time, and empty where it is not there.
    """

    body: bytes | dict[str, Any]
    status_code: int = 200
    provider: str | None = None
    model: str | None = None
    provider_request_id: str | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None

    def json(self) -> dict[str, Any]:
        """The body as an object."""
        found = orjson.loads(self.body) if isinstance(self.body, bytes) else self.body
        return found if isinstance(found, dict) else {}

    @property
    def message(self) -> dict[str, Any]:
        """The first choice's message of a chat completion, fit to be sent back in the next one's `messages`."""
        found = self._first("choices").get("message")
        return found if isinstance(found, dict) else {}

    @property
    def text(self) -> str:
        """What the model said, in a chat completion, a completion or a response."""
        if isinstance(said := self.message.get("content") or self._first("choices").get("text"), str):
            return said
        parts = [part for item in self._list("output") for part in item.get("content") or () if isinstance(part, dict)]
        return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The tools the model asks for in a chat completion."""
        return [call for call in self.message.get("tool_calls") or () if isinstance(call, dict)]

    @property
    def vectors(self) -> list[Any]:
        """The embeddings, in the order of their inputs: lists of numbers, or base64 where that was asked for."""
        return [item.get("embedding") for item in sorted(self._list("data"), key=lambda item: item.get("index", 0))]

    def _first(self, name: str) -> dict[str, Any]:
        return next(iter(self._list(name)), {})

    def _list(self, name: str) -> list[dict[str, Any]]:
        found = self.json().get(name)
        return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []

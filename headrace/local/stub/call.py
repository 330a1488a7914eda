"""A call of the model as this server reads it: endpoint, model, prompt and the options it heeds. No answers here."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import orjson

ENDPOINTS: Final = MappingProxyType(
    {
        "/chat/completions": "chat",
        "/completions": "completions",
        "/embeddings": "embeddings",
        "/responses": "responses",
    }
)
_PROMPT_FIELD: Final = MappingProxyType({"chat": "messages", "completions": "prompt", "embeddings": "input", "responses": "input"})


class BadCall(Exception):
    """The body is not a call of this endpoint; `param` names the field at fault. Never quotes the body."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `inputs` are the texts of an embeddings call; `max_tokens` bounds the answer, None is no bound."""

    endpoint: str
    model: str
    prompt: str
    inputs: tuple[str, ...] = ()
    max_tokens: int | None = None
    choices: int = 1
    base64: bool = False
    dimensions: int = 16

    @property
    def prompt_tokens(self) -> int:
        """Four characters to a token, the usual estimate for English."""
        return len(self.prompt) // 4 + 1


def parse_call(endpoint: str, body: bytes) -> Call:
    """Read `body` as a call of `endpoint`. Raises `BadCall`."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadCall("The body is not valid JSON.") from error
    if not isinstance(document, dict):
        raise BadCall("The body is not a JSON object.")
    model = document.get("model")
    if not isinstance(model, str) or not model:
        raise BadCall("You must provide a model parameter.", "model")
    if document.get("stream"):
        raise BadCall("Streaming is not offered by this server.", "stream")
    inputs = _texts(document, _PROMPT_FIELD[endpoint])
    if endpoint == "responses" and isinstance(document.get("instructions"), str):
        inputs = (document["instructions"], *inputs)
    limit = _whole(document, "max_tokens", 1_000_000)
    for alias in ("max_completion_tokens", "max_output_tokens"):
        limit = _whole(document, alias, 1_000_000) or limit
    return Call(
        endpoint,
        model,
        inputs[0] if len(inputs) == 1 else "\n".join(inputs),
        inputs,
        limit,
        _whole(document, "n", 16) or 1,
        document.get("encoding_format") == "base64",
        _whole(document, "dimensions", 4096) or 16,
    )


def _whole(document: dict[str, object], name: str, most: int) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise BadCall(f"{name} must be a whole number from 1 to {most}.", name)
    return value


def _texts(document: dict[str, object], name: str) -> tuple[str, ...]:
    value = document.get(name)
    if isinstance(value, str) and name != "messages":
        return (value,)
    if not isinstance(value, list) or not value:
        raise BadCall(f"You must provide {name}.", name)
    if _tokens(value):
        return (" ".join(map(str, value)),)
    return tuple(_text(item, name) for item in value)


def _tokens(value: list[object]) -> bool:
    return all(isinstance(token, int) for token in value)


def _text(item: object, name: str) -> str:
    if isinstance(item, str) and name != "messages":
        return item
    if isinstance(item, dict):
        content = item.get("content")
        if isinstance(content, str):
            return content
        if content is None and name == "messages":
            return ""
        if isinstance(content, list):
            texts = [part.get("text") for part in content if isinstance(part, dict)]
            return " ".join(text for text in texts if isinstance(text, str))
    if isinstance(item, list) and name != "messages" and _tokens(item):
        return " ".join(map(str, item))
    raise BadCall(f"An item of {name} is neither a text nor a message.", name)

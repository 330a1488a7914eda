"""An outcome as bytes, for its position's next owner: one line of JSON, then the response's body untouched."""

from __future__ import annotations

from typing import Any, cast

import orjson
from pydantic import TypeAdapter

from headrace.envelope import Attempt, Response
from headrace.outcome import Completed, Dead, Deferred, Degraded, Dropped, Outcome, Retry

VERSION = 1
_KINDS: dict[tuple[str, int], type[Completed | Degraded | Retry | Deferred | Dead | Dropped]] = {
    ("completed", VERSION): Completed,
    ("degraded", VERSION): Degraded,
    ("retry", VERSION): Retry,
    ("deferred", VERSION): Deferred,
    ("dead", VERSION): Dead,
    ("dropped", VERSION): Dropped,
}
_ADAPTERS: dict[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in _KINDS.values()}
_NAMES = {kind: name for (name, _), kind in _KINDS.items()}


class UnreadableOutcome(ValueError):
    """The bytes are no outcome this version knows: written by another version, or damaged."""


def dump_outcome(outcome: Outcome) -> bytes:
    """The outcome as bytes. Raises TypeError for one that holds no claim (a duplicate, a move)."""
    name = _NAMES.get(type(outcome))  # type: ignore[arg-type]  # the others are refused here
    if name is None:
        raise TypeError(f"{type(outcome).__name__} holds no claim and cannot be handed over")
    fields = {field: getattr(outcome, field) for field in outcome.__dataclass_fields__}
    head: dict[str, Any] = {"v": VERSION, "kind": name, "fields": fields}
    body = b""
    if isinstance(outcome, (Completed, Degraded)):
        response = {field: getattr(outcome.response, field) for field in Response.__dataclass_fields__}
        if isinstance(outcome.response.body, bytes):
            body, response["body"] = outcome.response.body, None
        fields["response"] = response
    if attempts := fields.get("attempts"):
        fields["attempts"] = [_attempt(one) for one in attempts]
    return orjson.dumps(head) + b"\n" + body


def _attempt(attempt: Attempt) -> dict[str, Any]:
    """Without what an older version did not have, where it says nothing."""
    row: dict[str, Any] = {"error_class": attempt.error_class, "latency_ms": attempt.latency_ms, "provider": attempt.provider}
    return row | ({"model": attempt.model} if attempt.model else {}) | ({"left": True} if attempt.left else {})


def load_outcome(payload: bytes) -> Outcome:
    """The outcome in `payload`. Raises UnreadableOutcome."""
    line, _, body = payload.partition(b"\n")
    try:
        head = orjson.loads(line)
        kind, fields = _KINDS[head["kind"], head["v"]], head["fields"]
        if not isinstance(fields, dict) or not fields.keys() <= kind.__dataclass_fields__.keys():
            raise KeyError("a field of another version")  # noqa: TRY301  it may change what the others mean
        if "response" in fields and fields["response"]["body"] is None:
            fields["response"]["body"] = body
        return cast("Outcome", _ADAPTERS[kind].validate_python(fields))
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableOutcome(f"the outcome cannot be read ({type(error).__name__})") from None

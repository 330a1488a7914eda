"""A request's end as a client is given it: an answer to read, or an error to raise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from headrace.errors import ResultConflict, ResultFailed, ResultGone
from headrace.results.told import Told


@dataclass(frozen=True, slots=True)
class Result:
    """How a request ended. `status`: completed, degraded (a configured substitute answered), failed, conflict or gone.

    `value` is the record of llm_results as it stands there (docs/records.md); of `gone` there is none.
    """

    request_id: str
    status: str
    value: bytes = b"{}"

    @classmethod
    def of(cls, told: Told) -> Result:
        """The end that a record tells."""
        return cls(told.key.decode(), "conflict" if told.status == "duplicate" else told.status, told.value)

    @property
    def ok(self) -> bool:
        """Whether there is an answer."""
        return self.status in ("completed", "degraded")

    def data(self) -> dict[str, Any]:
        """The record, parsed anew at each call."""
        parsed: dict[str, Any] = orjson.loads(self.value)
        return parsed

    def body(self) -> Any:
        """The model's own answer (the OpenAI response object). Raises as `check` does."""
        return self.check().data()["response"]["body"]

    def text(self) -> str:
        """The text of a chat completion's, a completion's or a response's first answer; "" where it has none. Raises as `check` does."""
        body = self.body()
        try:
            if "choices" in body:
                choice = body["choices"][0]
                return str((choice["message"]["content"] if "message" in choice else choice["text"]) or "")
            return "".join(part["text"] for item in body["output"] for part in item.get("content", ()) if part.get("type") == "output_text")
        except (KeyError, IndexError, TypeError, AttributeError):
            return ""

    def check(self) -> Result:
        """Itself, where there is an answer. Raises ResultFailed, ResultConflict or ResultGone."""
        if self.ok:
            return self
        if self.status == "gone":
            raise ResultGone(
                self.request_id,
                f"{self.request_id}: was answered before, and its answer is no longer in the topic of results; a new request_id costs a new call",
            )
        error = self.data().get("error")
        error_class, message, code = (_text(error, name) for name in ("class", "message", "code"))
        if self.status == "conflict":
            raise ResultConflict(self.request_id, f"{self.request_id}: {message or ''}")
        raise ResultFailed(self.request_id, error_class or "unknown", message or "", code=code)


def _text(error: object, name: str) -> str | None:
    """A field of a record's error; None where there is no text: anybody may have written it."""
    value = error.get(name) if isinstance(error, dict) else None
    return value if isinstance(value, str) else None

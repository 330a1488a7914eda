"""What an error body says: its codes and message, in whatever shape, and the error class they stand for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

from headrace.errors import ErrorClass

# Patterns see at most this much of a message; what a provider echoes can be as long as a prompt.
_SEARCHED = 4_000
_CODE_LENGTH = 64
# What a code may look like to be shown; keys and sentences do not.
_CODE = re.compile(r"(?!(?i:sk|pk|rk|key)-)[A-Za-z0-9][A-Za-z0-9_.-]*")

_Q, _A, _P = ErrorClass.QUOTA_EXHAUSTED, ErrorClass.AUTH, ErrorClass.CONTENT_POLICY
_C, _O, _N = ErrorClass.CONTEXT_LENGTH, ErrorClass.OVERLOADED, ErrorClass.NOT_FOUND

# Codes and types that mean the same under any status; the first class in this order wins.
_CODES: dict[ErrorClass, frozenset[str]] = {
    _Q: frozenset({
        "insufficient_quota", "credit_balance_exhausted", "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded", "organization_usage_limit_exceeded", "enforced_spend_limit_reached",
        "billing_error", "billing_hard_limit_reached", "billing_not_active",
    }),
    _A: frozenset({"invalid_api_key", "api_key_invalid", "authentication_error", "account_deactivated"}),
    _P: frozenset({
        "content_filter", "content_policy_violation", "responsibleaipolicyviolation", "invalid_prompt",
        "moderation_blocked",
    }),
    _C: frozenset({"context_length_exceeded", "exceed_context_size_error"}),
    _O: frozenset({"overloaded_error", "overloaded", "server_is_overloaded", "engine_overloaded"}),
    _N: frozenset({"model_not_found"}),
}  # fmt: skip
_PRECEDENCE = tuple((code, error_class) for error_class, codes in _CODES.items() for code in codes)

_SPENT = re.compile(r"\bspend(?:ing)? limit|usage limits?\b.{0,80}\bregain access|credit balance", re.IGNORECASE)
_CONTEXT = re.compile(
    r"context[ _](?:length|window|size)|maximum model length|max_model_len|prompt is too long|"
    r"input is too long|reduce the length of the (?:messages|prompt|input)",
    re.IGNORECASE,
)
_FILTERED = re.compile(r"content management policy|content policy", re.IGNORECASE)
_BUSY = re.compile(r"overloaded|maximum pending requests|at capacity", re.IGNORECASE)
# Servers in Python tell a request that does not validate as a 500 of their own (llama-cpp-python).
_INVALID = re.compile(r"\s*\d+ validation errors?\b", re.IGNORECASE)
_LIMIT = re.compile(r"\blimit\D{0,12}(\d[\d,]{0,15})", re.IGNORECASE)
_REQUESTED = re.compile(r"\brequested\D{0,12}(\d[\d,]{0,15})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Signal:
    """What an error body says. `codes` holds every code and type in it, in lower case; `code` is the one that may be shown."""

    message: str = ""
    code: str | None = None
    codes: frozenset[str] = frozenset()

    def coded_class(self) -> ErrorClass | None:
        """The class its codes stand for under any status, if any."""
        if not self.codes:
            return None
        return next((error_class for code, error_class in _PRECEDENCE if code in self.codes), None)

    def says_spent(self) -> bool:
        return bool(_SPENT.search(self.message))

    def says_context(self) -> bool:
        return bool(_CONTEXT.search(self.message))

    def says_filtered(self) -> bool:
        return bool(_FILTERED.search(self.message))

    def says_busy(self) -> bool:
        return bool(_BUSY.search(self.message))

    def says_invalid(self) -> bool:
        return bool(_INVALID.match(self.message))

    def can_never_fit(self) -> bool:
        """A rate limit that this one request exceeds by itself ("Limit 30000, Requested 45000")."""
        limit, requested = _LIMIT.search(self.message), _REQUESTED.search(self.message)
        if not (limit and requested):
            return False
        return int(requested[1].replace(",", "")) > int(limit[1].replace(",", ""))


def read_signal(body: bytes) -> Signal:
    """What an error's body says: JSON in any of the known shapes, plain text, HTML, or nothing."""
    try:
        return signal_of(orjson.loads(body))
    except orjson.JSONDecodeError:
        text = body[:_SEARCHED].decode("utf-8", "replace").strip()
        return Signal(message="an HTML page instead of an API's answer" if looks_like_html(text) else text)


def signal_of(document: Any) -> Signal:
    """The same, of a body already parsed."""
    if isinstance(document, list) and document:
        document = document[0]
    if not isinstance(document, dict):
        return Signal(message=_text(document))
    error = document.get("error") or document.get("errors") or document.get("detail")
    if isinstance(error, list):
        error = {"message": "; ".join(_text(item.get("msg") if isinstance(item, dict) else item) for item in error[:8])}
    if not isinstance(error, dict):
        error = {**document, "message": _text(error) or document.get("message")}
    return _from_object(error, document)


def looks_like_html(text: str) -> bool:
    """Whether a text is a web page."""
    start = text[:200].lstrip("\ufeff \t\r\n").lower()
    return start.startswith(("<!doctype", "<html", "<head", "<body"))


def _from_object(error: dict[str, Any], document: dict[str, Any]) -> Signal:
    nested = [error.get(name) for name in ("details", "innererror", "metadata")]
    places = [error, document, *(place for place in nested if isinstance(place, dict))]
    found = [
        str(value)
        for place in places
        for name in ("code", "error_code", "type", "error_type", "reason", "status")
        if isinstance(value := place.get(name), str | int) and not isinstance(value, bool) and len(str(value)) <= _CODE_LENGTH
    ]
    return Signal(
        message=_text(error.get("message") or error.get("detail")),
        code=next((code for code in found if _CODE.fullmatch(code)), None),
        codes=frozenset(code.lower() for code in found),
    )


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value[:_SEARCHED]
    return orjson.dumps(value, default=str)[:_SEARCHED].decode("utf-8", "replace")

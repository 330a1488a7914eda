"""A reply of status 2xx: an answer to deliver, its bytes untouched, or a failure that only looks like a success."""

from __future__ import annotations

from typing import Any

import orjson

from headrace.envelope import Response
from headrace.errors import ErrorClass, Failure
from headrace.llm.hints import request_id
from headrace.llm.signals import looks_like_html, signal_of
from headrace.llm.transport import Reply
from headrace.redact import clip, mask

_MODEL_BYTES = 256
_FILTERED = "content_filter"
_RESPONSES = "/v1/responses"
# Codes of a failed `/v1/responses` object that the table of HTTP signals does not know.
_RESPONSE_CODES = {"rate_limit_exceeded": ErrorClass.RATE_LIMITED, "server_error": ErrorClass.SERVER_ERROR}


class _Unusable(Exception):
    """The answer is none: carries its class, message and code."""

    def __init__(self, message: str, error_class: ErrorClass = ErrorClass.INVALID_RESPONSE, code: str | None = None) -> None:
        super().__init__(message)
        self.error_class = error_class
        self.code = code


def read_answer(reply: Reply, endpoint: str, *, provider: str | None, model: str | None) -> Response | Failure:
    """The answer in a 2xx reply, or why it is none. `model` is the one asked for, where the reply names none."""
    try:
        document = _document(reply.body, endpoint)
        finish_reason = _READERS[endpoint](document)
    except _Unusable as error:
        return Failure(
            error.error_class, mask(str(error)), code=error.code, status_code=reply.status, called=True,
            provider=provider, model=model,
        )  # fmt: skip
    served = document.get("model")
    return Response(
        body=reply.body,
        status_code=reply.status,
        provider=provider,
        model=clip(served, _MODEL_BYTES) if isinstance(served, str) and served else model,
        provider_request_id=request_id(reply.headers),
        finish_reason=finish_reason,
        usage=_usage(document),
    )


def _usage(document: dict[str, Any]) -> dict[str, Any] | None:
    """The figures, fit to be written: what is read may be nested deeper than what is written, and the answer is worth more than they are."""
    usage = document.get("usage")
    try:
        orjson.dumps(usage)
    except TypeError:
        return None
    return usage if isinstance(usage, dict) else None


def _document(body: bytes, endpoint: str) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if not body.strip():
            raise _Unusable("the reply has no body") from None
        if looks_like_html(body[:200].decode("utf-8", "replace")):
            raise _Unusable("an HTML page instead of an answer") from None
        raise _Unusable(f"the reply is not JSON: {error.msg} at byte {error.pos}") from None
    if not isinstance(document, dict):
        raise _Unusable("the reply is not a JSON object")
    # A failed `/v1/responses` object has an error too: its own reader knows more of it.
    if document.get("error") and endpoint != _RESPONSES:
        signal = signal_of(document)
        raise _Unusable(f"an error under a status of success: {signal.message}", code=signal.code)
    return document


def _finished(document: dict[str, Any], content: str, kind: type) -> str | None:
    choices = document.get("choices")
    if not isinstance(choices, list) or not choices:
        raise _Unusable("the answer has no choices")
    for choice in choices:
        if not isinstance(choice, dict):
            raise _Unusable("a choice of the answer is not an object")
        reason = choice.get("finish_reason", "")
        if reason == _FILTERED:
            raise _Unusable("the provider's content filter withheld the answer", ErrorClass.CONTENT_POLICY, _FILTERED)
        if reason in ("abort", "error"):
            raise _Unusable(f"the provider gave up in the middle of the answer: finish_reason {reason}", code=reason)
        if reason is None:
            raise _Unusable("the answer was cut: its finish_reason is null")
        if not isinstance(choice.get(content), kind):
            raise _Unusable(f"a choice of the answer has no {content}")
    reason = choices[0].get("finish_reason")
    return reason[:64] if isinstance(reason, str) else None


def _chat(document: dict[str, Any]) -> str | None:
    return _finished(document, "message", dict)


def _completion(document: dict[str, Any]) -> str | None:
    return _finished(document, "text", str)


def _embedding(document: dict[str, Any]) -> str | None:
    data = document.get("data")
    if not isinstance(data, list) or not data:
        raise _Unusable("the answer has no data")
    return None


def _response(document: dict[str, Any]) -> str | None:
    """As `finish_reason`, `stop` for completed and `length` for one cut by `max_output_tokens`."""
    status = document.get("status")
    if status == "failed" or document.get("error"):
        raise _failed(document)
    if status == "completed":
        return "stop"
    if status == "incomplete":
        details = document.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        if reason == "max_output_tokens":
            return "length"
        if reason == _FILTERED:
            raise _Unusable("the provider's content filter cut the answer", ErrorClass.CONTENT_POLICY, _FILTERED)
        raise _Unusable("the response is incomplete")
    raise _Unusable("the response is not completed")


def _failed(document: dict[str, Any]) -> _Unusable:
    signal = signal_of({"error": document.get("error")})
    coded = signal.coded_class() or (_RESPONSE_CODES.get(signal.code) if signal.code else None)
    return _Unusable(f"the response failed: {signal.message}", coded or ErrorClass.INVALID_RESPONSE, signal.code)


_READERS = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/v1/embeddings": _embedding,
    _RESPONSES: _response,
}

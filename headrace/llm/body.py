"""The bytes of a call: the request's body with nothing changed in it but the model, where the chain says so."""

from __future__ import annotations

from typing import Any

from headrace.bigjson import dumps
from headrace.errors import CallFailed, ErrorClass, Failure
from headrace.redact import clip, mask

MODEL_BYTES = 256


def asked_model(body: dict[str, Any]) -> str | None:
    """The model a body names, cut to 256 bytes where its caller has chosen a longer one; None where it names none."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        return None
    return model if len(model) <= MODEL_BYTES and model.isascii() else clip(model, MODEL_BYTES)


def encode(body: dict[str, Any], model: str) -> bytes:
    """The body as JSON, asking for `model`. Raises CallFailed for one that can never be sent."""
    asked = body.get("model")
    if asked is not None and not isinstance(asked, str):
        raise _refused("model must be a string")
    if body.get("stream") or body.get("background"):
        raise _refused("stream and background are not possible here: one request, one answer; leave them out")
    if asked != model and asked_model(body) != model:
        body = body | {"model": model}
    try:
        return dumps(body)
    except TypeError as error:
        # A lone surrogate, or a number that is none: it can never be sent, so it is never retried.
        raise _refused(f"the body cannot be written as JSON: {error}") from None


def _refused(message: str) -> CallFailed:
    return CallFailed(Failure(ErrorClass.INVALID_REQUEST, mask(message)))

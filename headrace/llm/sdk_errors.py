"""What the OpenAI SDK and its HTTP client raise, as a failure. Imported only where the SDK is already loaded."""

from __future__ import annotations

import time

import httpx2
import openai

from headrace.errors import ErrorClass, Failure
from headrace.llm import errors
from headrace.llm.hints import retry_after_ms, should_retry
from headrace.llm.signals import Signal, signal_of
from headrace.redact import mask

_BY_TYPE: tuple[tuple[type[Exception], ErrorClass], ...] = (
    (openai.APIResponseValidationError, ErrorClass.INVALID_RESPONSE),
    (openai.LengthFinishReasonError, ErrorClass.INVALID_RESPONSE),
    (openai.ContentFilterFinishReasonError, ErrorClass.CONTENT_POLICY),
    # Anything else is wrong use of the SDK: missing credentials, removed calls, a queue of our own.
    (openai.OpenAIError, ErrorClass.INTERNAL),
)

# By name, for not every 3.x exports them.
_BY_NAME = {
    "SubjectTokenProviderError": ErrorClass.AUTH,
    "MutuallyExclusiveAuthError": ErrorClass.AUTH,
    "WebSocketConnectionClosedError": ErrorClass.CONNECTION,
}


def classify(error: Exception) -> Failure | None:
    """The failure behind an exception of the SDK or of the HTTP client under it; None for any other."""
    if isinstance(error, openai.APIConnectionError):
        return _unreached(error)
    if isinstance(error, openai.APIStatusError):
        return _of_status(error)
    if isinstance(error, openai.APIError) and not isinstance(error, openai.APIResponseValidationError):
        return _in_mid_stream(error)
    if not isinstance(error, openai.OpenAIError):
        carried = _httpx_class(error)
        return Failure(carried, errors.describe(error), called=carried is not ErrorClass.INTERNAL) if carried else None
    found = _BY_NAME.get(type(error).__name__) or next(known for kind, known in _BY_TYPE if isinstance(error, kind))
    return Failure(found, errors.describe(error), called=found is not ErrorClass.INTERNAL)


def _unreached(error: openai.APIConnectionError) -> Failure:
    cause = error.__cause__
    if isinstance(cause, Exception) and not isinstance(cause, openai.OpenAIError):
        failure = errors.classify_exception(cause)
        # The SDK says it was the network; a cause nobody knows does not make it our own fault.
        if failure.error_class is not ErrorClass.INTERNAL or isinstance(cause, httpx2.RequestError | httpx2.InvalidURL):
            return failure
    timed_out = isinstance(error, openai.APITimeoutError)
    return Failure(ErrorClass.TIMEOUT if timed_out else ErrorClass.CONNECTION, errors.describe(error), called=True)


def _of_status(error: openai.APIStatusError) -> Failure:
    signal = signal_of({"error": error.body} if isinstance(error.body, dict) else error.body)
    headers = error.response.headers
    return Failure(
        errors.class_of(error.status_code, signal),
        mask(f"HTTP {error.status_code}: {signal.message or error.message}"),
        code=signal.code,
        status_code=error.status_code,
        # Only where the reply has no Date; a handler that raises this has no clock of ours to offer.
        retry_after_ms=retry_after_ms(headers, time.time_ns() // 1_000_000),
        called=True,
        should_retry=should_retry(headers),
    )


def _in_mid_stream(error: openai.APIError) -> Failure:
    signal = signal_of({"error": error.body} if isinstance(error.body, dict) else error.body)
    known = signal.coded_class() or (ErrorClass.RATE_LIMITED if "rate_limit_exceeded" in signal.codes else None)
    return Failure(known or ErrorClass.SERVER_ERROR, errors.describe(error), code=signal.code, called=True)


def _httpx_class(error: Exception) -> ErrorClass | None:
    if isinstance(error, httpx2.PoolTimeout | httpx2.InvalidURL | httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
        # A pool time-out is our own queue; the others are our own configuration.
        return ErrorClass.INTERNAL
    if isinstance(error, httpx2.ConnectTimeout):
        return ErrorClass.CONNECTION
    if isinstance(error, httpx2.TimeoutException):
        return ErrorClass.TIMEOUT
    if isinstance(error, httpx2.HTTPStatusError):
        return errors.class_of(error.response.status_code, Signal())
    if isinstance(error, httpx2.DecodingError | httpx2.TooManyRedirects | httpx2.RemoteProtocolError | httpx2.SSEError):
        disconnected = isinstance(error, httpx2.RemoteProtocolError) and "disconnected" in str(error)
        return ErrorClass.CONNECTION if disconnected else ErrorClass.INVALID_RESPONSE
    return ErrorClass.CONNECTION if isinstance(error, httpx2.RequestError) else None

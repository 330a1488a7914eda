"""The one place where a provider's replies and foreign exceptions become an error class.

Covers every row of the table of signals; what a class may cost is `policy`'s matter.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import sys

import aiohttp
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError

from headrace.envelope import Response
from headrace.errors import CallFailed, ErrorClass, Failure
from headrace.llm import hints
from headrace.llm.answer import read_answer
from headrace.llm.signals import Signal, read_signal
from headrace.llm.transport import Reply
from headrace.redact import mask

_BY_STATUS = {
    402: ErrorClass.QUOTA_EXHAUSTED,
    404: ErrorClass.NOT_FOUND,
    408: ErrorClass.SERVER_ERROR,
    409: ErrorClass.SERVER_ERROR,
    413: ErrorClass.TOO_LARGE,
    425: ErrorClass.SERVER_ERROR,
    429: ErrorClass.RATE_LIMITED,
    503: ErrorClass.OVERLOADED,
    529: ErrorClass.OVERLOADED,
}
# Local exhaustion: nothing the provider did, so nothing its breaker should count.
_LOCAL_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
_NETWORK_ERRNOS = {
    errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN, errno.ESHUTDOWN,
    errno.EPIPE, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET,
}  # fmt: skip


def classify_reply(
    reply: Reply, endpoint: str, *, provider: str | None = None, model: str | None = None, now_ms: int
) -> Response | Failure:
    """The answer in a reply, or why there is none. `now_ms` serves a Retry-After date in a reply without a Date."""
    if 200 <= reply.status < 300:
        return read_answer(reply, endpoint, provider=provider, model=model)
    signal = read_signal(reply.body)
    return Failure(
        class_of(reply.status, signal),
        mask(f"HTTP {reply.status}: {signal.message or 'no message'}"),
        code=signal.code,
        status_code=reply.status,
        retry_after_ms=hints.retry_after_ms(reply.headers, now_ms),
        called=True,
        should_retry=hints.should_retry(reply.headers),
        provider=provider,
        model=model,
    )


def class_of(status: int, signal: Signal) -> ErrorClass:
    """The class of a reply that is no success. What its body says goes before its status."""
    coded = signal.coded_class()
    if status in (401, 403) and coded is not ErrorClass.QUOTA_EXHAUSTED and coded is not ErrorClass.CONTENT_POLICY:
        # A model that is not granted is a matter of the key, whatever the code calls it.
        return ErrorClass.QUOTA_EXHAUSTED if status == 403 and signal.says_spent() else ErrorClass.AUTH
    if coded is not None and status >= 400:
        return coded
    if status in (400, 429) and signal.says_spent():
        return ErrorClass.QUOTA_EXHAUSTED
    if status == 429:
        return ErrorClass.TOO_LARGE if signal.can_never_fit() else ErrorClass.RATE_LIMITED
    if status in (400, 422, 500) and signal.says_context():
        return ErrorClass.CONTEXT_LENGTH
    if status == 400 and signal.says_filtered():
        return ErrorClass.CONTENT_POLICY
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if 500 <= status < 600:
        return _of_5xx(status, signal)
    return ErrorClass.INVALID_REQUEST if 400 <= status < 500 else ErrorClass.INVALID_RESPONSE


def _of_5xx(status: int, signal: Signal) -> ErrorClass:
    if status == 500 and signal.says_invalid():
        return ErrorClass.INVALID_REQUEST
    return ErrorClass.OVERLOADED if signal.says_busy() else ErrorClass.SERVER_ERROR


def classify_exception(error: Exception) -> Failure:
    """The failure behind an exception of ours, aiohttp, httpx, asyncio, ssl, socket or openai; else `internal`."""
    if isinstance(error, CallFailed):
        return error.failure
    if "openai" in sys.modules:
        # Not imported where `direct` alone is used: a second of start-up and tens of megabytes.
        from headrace.llm import sdk_errors

        failure = sdk_errors.classify(error)
        if failure is not None:
            return failure
    error_class = _aiohttp_class(error) or _system_class(error) or ErrorClass.INTERNAL
    return Failure(error_class, describe(error), called=error_class is not ErrorClass.INTERNAL)


def describe(error: Exception) -> str:
    """An exception's type and text, masked."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  an exception whose own text fails; its type is told
        text = ""
    return mask(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _aiohttp_class(error: Exception) -> ErrorClass | None:
    if not isinstance(error, aiohttp.ClientError):
        return None
    if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError) and not isinstance(error, aiohttp.RedirectClientError):
        return ErrorClass.INTERNAL
    if isinstance(error, aiohttp.ClientPayloadError) and isinstance(error.__cause__, ContentEncodingError):
        return ErrorClass.INVALID_RESPONSE
    if isinstance(error, aiohttp.ContentTypeError | aiohttp.TooManyRedirects | aiohttp.RedirectClientError):
        return ErrorClass.INVALID_RESPONSE
    if isinstance(error, aiohttp.ClientResponseError):
        # aiohttp dresses a reply it cannot parse as status 400.
        unparsed = isinstance(error.__cause__, HttpProcessingError) or error.status < 300
        return ErrorClass.INVALID_RESPONSE if unparsed else class_of(error.status, Signal())
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ErrorClass.CONNECTION
    if isinstance(error, aiohttp.ServerTimeoutError):
        return ErrorClass.TIMEOUT
    if isinstance(error, OSError) and error.errno in _LOCAL_ERRNOS:
        return ErrorClass.INTERNAL
    return ErrorClass.CONNECTION


def _system_class(error: Exception) -> ErrorClass | None:
    if isinstance(error, TimeoutError):
        return ErrorClass.TIMEOUT
    if isinstance(error, ConnectionError | socket.gaierror | socket.herror | ssl.SSLError | asyncio.IncompleteReadError):
        return ErrorClass.CONNECTION
    if isinstance(error, HttpProcessingError):
        return ErrorClass.INVALID_RESPONSE
    if isinstance(error, OSError) and error.errno in _NETWORK_ERRNOS:
        return ErrorClass.CONNECTION
    return ErrorClass.INVALID_REQUEST if isinstance(error, UnicodeEncodeError) else None

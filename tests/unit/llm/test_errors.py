"""Foreign exceptions and odd bodies: nothing leaves `errors` without a class."""

from __future__ import annotations

import errno
import inspect
import operator
import socket
import ssl
from typing import Any

import aiohttp
import httpx2
import openai
import pytest
from aiohttp import http_exceptions
from aiohttp.client_reqrep import ConnectionKey
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CallFailed, ErrorClass, Failure
from headrace.llm.errors import classify_exception, classify_reply
from headrace.llm.signals import read_signal
from headrace.llm.transport import Reply

E = ErrorClass
NAME = operator.attrgetter("__name__")
REQUEST = httpx2.Request("POST", "http://127.0.0.1/v1")
KEY = ConnectionKey("h", 80, False, True, None, None, None)


def tree(root: type[Exception]) -> set[type[Exception]]:
    return {root} | {leaf for child in root.__subclasses__() for leaf in tree(child)}


def bare(kind: type[Exception]) -> Exception:
    """An instance of `kind` whose constructor need not be known."""
    made = kind.__new__(kind)
    made.args = ("m",)
    return made


# What each class of the libraries must become; a class the libraries add later fails the test until it is placed.
AIOHTTP = {
    E.INTERNAL: {"InvalidURL", "InvalidUrlClientError", "NonHttpUrlClientError"},
    E.TIMEOUT: {"ServerTimeoutError", "SocketTimeoutError"},
    E.INVALID_RESPONSE: {
        "ContentTypeError", "TooManyRedirects", "RedirectClientError", "InvalidUrlRedirectClientError",
        "NonHttpUrlRedirectClientError",
    },
    E.SERVER_ERROR: {"ClientResponseError", "WSServerHandshakeError", "ClientHttpProxyError"},  # status 502 below
    E.CONNECTION: {
        "ClientError", "ClientConnectionError", "ClientConnectionResetError", "ClientOSError", "ClientConnectorError",
        "ClientConnectorDNSError", "ClientProxyConnectionError", "UnixClientConnectorError", "ClientSSLError",
        "ClientConnectorSSLError", "ClientConnectorCertificateError", "ServerConnectionError", "ServerDisconnectedError",
        "ConnectionTimeoutError", "ServerFingerprintMismatch", "ClientPayloadError", "UploadAbortedError",
    },
}  # fmt: skip
OPENAI = {
    E.INTERNAL: {
        "OpenAIError", "WebSocketQueueFullError", "StreamAlreadyConsumed", "APIRemovedInV1", "_AmbiguousModuleClientUsageError",
    },
    E.AUTH: {"SubjectTokenProviderError", "MutuallyExclusiveAuthError", "AuthenticationError", "OAuthError", "PermissionDeniedError"},
    E.SERVER_ERROR: {"APIError", "APIStatusError", "ConflictError", "InternalServerError"},
    E.INVALID_RESPONSE: {"APIResponseValidationError", "LengthFinishReasonError"},
    E.CONTENT_POLICY: {"ContentFilterFinishReasonError"},
    E.INVALID_REQUEST: {"BadRequestError", "UnprocessableEntityError"},
    E.NOT_FOUND: {"NotFoundError"},
    E.RATE_LIMITED: {"RateLimitError"},
    E.CONNECTION: {"APIConnectionError", "WebSocketConnectionClosedError"},
    E.TIMEOUT: {"APITimeoutError"},
}  # fmt: skip
HTTPX = {
    E.INTERNAL: {"PoolTimeout", "UnsupportedProtocol", "LocalProtocolError"},
    E.TIMEOUT: {"TimeoutException", "ReadTimeout", "WriteTimeout"},
    E.INVALID_RESPONSE: {"DecodingError", "TooManyRedirects", "ProtocolError", "RemoteProtocolError", "SSEError"},
    E.SERVER_ERROR: {"HTTPStatusError"},
    E.CONNECTION: {
        "RequestError", "TransportError", "ConnectTimeout", "NetworkError", "ReadError", "WriteError", "ConnectError",
        "CloseError", "ProxyError", "ProtocolError",
    },
}  # fmt: skip


def placed(table: dict[ErrorClass, set[str]], name: str) -> set[ErrorClass]:
    return {error_class for error_class, names in table.items() if name in names}


def aiohttp_error(kind: Any) -> Exception:
    made: Exception
    if issubclass(kind, aiohttp.ServerFingerprintMismatch):
        made = kind(b"", b"", "h", 1)
    elif issubclass(kind, aiohttp.client_exceptions.UnixClientConnectorError):
        made = kind("path", KEY, OSError(errno.ECONNREFUSED, "refused"))
    elif issubclass(kind, aiohttp.ClientConnectorCertificateError):
        made = kind(KEY, ssl.SSLError("bad"))
    elif issubclass(kind, aiohttp.ClientConnectorError):
        made = kind(KEY, OSError(errno.ECONNREFUSED, "refused"))
    elif issubclass(kind, aiohttp.InvalidURL):
        made = kind("http://x")
    elif issubclass(kind, aiohttp.ClientResponseError):
        made = kind(type("Info", (), {"real_url": "http://x"})(), (), status=502)
    else:
        made = bare(kind)
    return made


@pytest.mark.parametrize("kind", sorted(tree(aiohttp.ClientError), key=NAME))
def test_every_aiohttp_error_is_placed(kind: type[Exception]) -> None:
    """Each class under aiohttp.ClientError has exactly the class this table gives it."""
    assert {classify_exception(aiohttp_error(kind)).error_class} == placed(AIOHTTP, kind.__name__)


def sdk_error(kind: type[Exception]) -> Exception:
    if issubclass(kind, openai.APIStatusError):
        by_name = {
            "BadRequestError": 400, "AuthenticationError": 401, "OAuthError": 401, "PermissionDeniedError": 403,
            "NotFoundError": 404, "ConflictError": 409, "UnprocessableEntityError": 422, "RateLimitError": 429,
        }  # fmt: skip
        response = httpx2.Response(by_name.get(kind.__name__, 500), request=REQUEST, headers={"retry-after": "3"})
        if issubclass(kind, openai.OAuthError):
            return kind(response=response, body={"error": "invalid_grant"})
        return kind("m", response=response, body=None)
    if issubclass(kind, openai.APIResponseValidationError):
        return kind(httpx2.Response(200, request=REQUEST), None)
    if issubclass(kind, openai.APITimeoutError):
        return kind(REQUEST)
    if issubclass(kind, openai.APIConnectionError):
        return kind(request=REQUEST)
    if issubclass(kind, openai.APIError):
        return kind("m", REQUEST, body=None)
    return bare(kind)


@pytest.mark.parametrize("kind", sorted(tree(openai.OpenAIError), key=NAME))
def test_every_sdk_error_is_placed(kind: type[Exception]) -> None:
    """Each class under openai.OpenAIError has exactly the class this table gives it."""
    failure = classify_exception(sdk_error(kind))
    assert {failure.error_class} == placed(OPENAI, kind.__name__)
    assert failure.retry_after_ms == (3000 if issubclass(kind, openai.APIStatusError) else None)


def test_no_public_sdk_exception_stands_outside_the_tree() -> None:
    """What `openai` exports and is no OpenAIError would be missed by the walk: only webhook checks are."""
    outside = {
        name for name, kind in inspect.getmembers(openai, inspect.isclass)
        if issubclass(kind, Exception) and not issubclass(kind, openai.OpenAIError)
    }  # fmt: skip
    assert outside <= {"InvalidWebhookSignatureError"}


@pytest.mark.parametrize("kind", sorted(tree(httpx2.HTTPError), key=NAME))
def test_every_httpx_error_is_placed(kind: type[Exception]) -> None:
    """Each class under httpx2.HTTPError is placed, raw as a handler's own client would raise it."""
    if kind is httpx2.HTTPError:
        assert classify_exception(httpx2.HTTPError("m")).error_class is E.INTERNAL
        return
    made: Exception = (
        httpx2.HTTPStatusError("m", request=REQUEST, response=httpx2.Response(502)) if kind is httpx2.HTTPStatusError else kind("m")
    )
    assert classify_exception(made).error_class in placed(HTTPX, kind.__name__)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError(), E.TIMEOUT),
        (ConnectionResetError(), E.CONNECTION),
        (BrokenPipeError(), E.CONNECTION),
        (socket.gaierror(-2, "unknown"), E.CONNECTION),
        (ssl.SSLCertVerificationError("bad"), E.CONNECTION),
        (OSError(errno.EHOSTUNREACH, "m"), E.CONNECTION),
        (OSError(errno.EMFILE, "too many open files"), E.INTERNAL),
        (aiohttp.ClientConnectorError(KEY, OSError(errno.EMFILE, "too many open files")), E.INTERNAL),
        (FileNotFoundError("a handler's own file"), E.INTERNAL),
        (http_exceptions.BadStatusLine("x"), E.INVALID_RESPONSE),
        (KeyError("x"), E.INTERNAL),
        (CallFailed(Failure(E.NOT_FOUND, "m")), E.NOT_FOUND),
    ],
)
def test_exceptions_of_the_system(error: Exception, expected: ErrorClass) -> None:
    """Network faults are `connection`; our own exhaustion and a handler's own bugs are not the provider's fault."""
    assert classify_exception(error).error_class is expected


def test_a_lone_surrogate_is_no_connection_error() -> None:
    """A prompt that cannot be encoded is `invalid_request`: never sent, so never retried."""
    with pytest.raises(UnicodeEncodeError) as caught:
        "\ud800".encode()
    failure = classify_exception(caught.value)
    assert failure.error_class is E.INVALID_REQUEST
    assert failure.message.encode()


@pytest.mark.parametrize(("cause", "expected"), [(httpx2.ConnectTimeout("m"), E.CONNECTION), (httpx2.PoolTimeout("m"), E.INTERNAL)])
def test_the_cause_of_an_sdk_time_out_counts(cause: Exception, expected: ErrorClass) -> None:
    """The SDK calls every time-out one: a connect time-out is `connection`, our own full pool no fault of the provider."""
    error = openai.APITimeoutError(REQUEST)
    error.__cause__ = cause
    assert classify_exception(error).error_class is expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"code": "insufficient_quota", "type": "insufficient_quota"}, E.QUOTA_EXHAUSTED),
        ({"code": "context_length_exceeded"}, E.CONTEXT_LENGTH),
        ({"code": "rate_limit_exceeded"}, E.RATE_LIMITED),
        ("text", E.SERVER_ERROR),
    ],
)
def test_an_error_in_mid_stream_is_read_by_its_code(body: object, expected: ErrorClass) -> None:
    """A plain APIError has no status: its code decides."""
    assert classify_exception(openai.APIError("m", REQUEST, body=body)).error_class is expected


@given(
    st.integers(-1, 999),
    st.binary(max_size=200) | st.sampled_from([b"[]", b"null", b'{"error":[]}', b'{"error":{"code":{}}}', b"[" * 3000]),
)
def test_any_reply_has_a_class(status: int, body: bytes) -> None:
    """No status and no bytes break the classifier; what is no success is never taken for one."""
    result = classify_reply(Reply(status, {}, body, 1), "/v1/chat/completions", now_ms=0)
    assert isinstance(result, Failure)
    assert result.called
    assert len(result.message.encode()) <= 1024


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        (b'{"error":{"message":"m","type":"t","code":"c"}}', "m", "c"),
        (b'{"error":{"message":"m","type":"t","code":null}}', "m", "t"),
        (b'{"error":{"message":"m","code":404}}', "m", "404"),
        (b'{"error":"text"}', "text", None),
        (b'{"detail":"text"}', "text", None),
        (b'{"detail":[{"msg":"a","input":"secret"},{"msg":"b"}]}', "a; b", None),
        (b'{"object":"error","message":"m","type":"NotFoundError","code":404}', "m", "404"),
        (b'[{"error":{"message":"m","status":"UNAVAILABLE"}}]', "m", "UNAVAILABLE"),
        (b'{"error":{"message":"m","code":"organization_spend_limit_exceeded"}}', "m", "organization_spend_limit_exceeded"),
        (b'{"error":{"message":"m","code":"sk-abcdef","type":"t"}}', "m", "t"),
        (b'{"error":{"message":"m","code":"my prompt"}}', "m", None),
        (b"plain", "plain", None),
        (b"", "", None),
        (b"<!DOCTYPE html><p>x", "an HTML page instead of an API's answer", None),
    ],
)
def test_every_shape_of_error_body_is_read(body: bytes, message: str, code: str | None) -> None:
    """Object, text, detail, list, vLLM's bare object, HTML and nothing: message and code are found."""
    signal = read_signal(body)
    assert (signal.message, signal.code) == (message, code)

"""One contract for all transports: every signal of a provider reaches the caller as the same class, over real sockets or out of a script."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Any

import openai
import orjson
import pytest

from headrace.config import ProviderSettings
from headrace.envelope import Request, Response
from headrace.errors import CallFailed, ErrorClass, Failure
from headrace.llm import Call, Llm, Reply, Transport
from headrace.llm.direct import DirectTransport
from headrace.llm.sdk import SdkTransport
from headrace.testing import Asked, FakeModel, Said

Handler = Callable[[bytes, bytes, asyncio.StreamWriter], Awaitable[None]]
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
OK = {"model": "served", "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"total_tokens": 3}}
HTML = b"<html><body>502 Bad Gateway</body></html>"


class Server:
    """A provider on loopback that answers what the test says; keeps the head and body of each request, by order."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.open = self.most_open = 0
        self.handler: Handler = answer(200, OK)
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
                body = await reader.readexactly(length)
                self.heads.append(head)
                self.bodies.append(body)
                await self.handler(head, body, writer)
                await writer.drain()
        self.open -= 1
        writer.close()


def raw(status: int, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", *(f"{name}: {value}" for name, value in (headers or {}).items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answer(status: int, body: Any, **headers: str) -> Handler:
    data = body if isinstance(body, bytes) else orjson.dumps(body)

    async def handle(head: bytes, request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(raw(status, data, {name.replace("_", "-"): value for name, value in headers.items()}))

    return handle


def error(message: str = "m", kind: str | None = None, code: str | int | None = None, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code, **more}}


def chat(reason: str | None, **choice: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": ""}, "finish_reason": reason, **choice}]}


E = ErrorClass
# One row for each row of the table of signals: endpoint, status, body, class (None: delivered).
ROWS: list[tuple[str, str, int, Any, ErrorClass | None]] = [
    ("rate", CHAT, 429, error("Limit 30000, Used 29000, Requested 2000", "tokens", "rate_limit_exceeded"), E.RATE_LIMITED),
    ("rate-never-fits", CHAT, 429, error("TPM: Limit 30000, Requested 45000.", "tokens", "rate_limit_exceeded"), E.TOO_LARGE),
    ("slow-down", CHAT, 429, error("m", "requests", "slow_down"), E.RATE_LIMITED),
    *[
        (code, CHAT, 429, error("m", "insufficient_quota", code), E.QUOTA_EXHAUSTED)
        for code in (
            "insufficient_quota", "credit_balance_exhausted", "organization_spend_limit_exceeded",
            "project_spend_limit_exceeded", "organization_usage_limit_exceeded",
        )
    ],
    ("quota-by-code-alone", CHAT, 429, error("m", None, "credit_balance_exhausted"), E.QUOTA_EXHAUSTED),
    ("anthropic-spend-429", CHAT, 429, error("m", "rate_limit_error", details={"error_code": "enforced_spend_limit_reached"}), E.QUOTA_EXHAUSTED),
    ("anthropic-billing", CHAT, 402, {"type": "error", "error": {"type": "billing_error", "message": "m"}}, E.QUOTA_EXHAUSTED),
    ("anthropic-spend-400", CHAT, 400, error("You have reached your specified API spend limit.", "invalid_request_error"), E.QUOTA_EXHAUSTED),
    ("anthropic-rate", CHAT, 429, {"type": "error", "error": {"type": "rate_limit_error", "message": "m"}}, E.RATE_LIMITED),
    ("anthropic-529", CHAT, 529, {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}, E.OVERLOADED),
    ("overloaded-503", CHAT, 503, error("m", None, "server_is_overloaded"), E.OVERLOADED),
    ("engine-overloaded", CHAT, 503, error("That engine is currently overloaded", "server_error"), E.OVERLOADED),
    ("ollama-503", CHAT, 503, {"error": "server busy: maximum pending requests exceeded"}, E.OVERLOADED),
    ("overloaded-429", CHAT, 429, error("m", error_type="overloaded"), E.OVERLOADED),
    ("500", CHAT, 500, error("m", "server_error"), E.SERVER_ERROR),
    ("500-empty", CHAT, 500, b"", E.SERVER_ERROR),
    ("502-html", CHAT, 502, HTML, E.SERVER_ERROR),
    ("504", CHAT, 504, {"detail": "gateway timeout"}, E.SERVER_ERROR),
    ("anthropic-api-error", CHAT, 500, {"type": "error", "error": {"type": "api_error", "message": "m"}}, E.SERVER_ERROR),
    ("408", CHAT, 408, error(), E.SERVER_ERROR),
    ("409", CHAT, 409, error(), E.SERVER_ERROR),
    ("401", CHAT, 401, error("Incorrect API key provided", code="invalid_api_key"), E.AUTH),
    ("403", CHAT, 403, error("no access to this model", code="model_not_found"), E.AUTH),
    ("404", CHAT, 404, error("m", "invalid_request_error", "model_not_found"), E.NOT_FOUND),
    ("404-vllm", CHAT, 404, error("m", "NotFoundError", 404), E.NOT_FOUND),
    ("context", CHAT, 400, error("m", "invalid_request_error", "context_length_exceeded"), E.CONTEXT_LENGTH),
    ("context-vllm", CHAT, 400, error("This model's maximum context length is 8192 tokens.", "BadRequestError", 400), E.CONTEXT_LENGTH),
    ("context-as-500", CHAT, 500, error("This model's maximum context length is 8192 tokens", "server_error"), E.CONTEXT_LENGTH),
    ("413", CHAT, 413, error(), E.TOO_LARGE),
    ("content-filter", CHAT, 400, error("m", None, "content_filter"), E.CONTENT_POLICY),
    ("content-azure", CHAT, 400, error("m", None, None, innererror={"code": "ResponsibleAIPolicyViolation"}), E.CONTENT_POLICY),
    ("content-violation", CHAT, 400, error("m", "invalid_request_error", "content_policy_violation"), E.CONTENT_POLICY),
    ("filtered-200", CHAT, 200, chat("content_filter", message={"content": None}), E.CONTENT_POLICY),
    ("length-200", CHAT, 200, chat("length"), None),
    ("tool-calls-200", CHAT, 200, chat("tool_calls", message={"content": None, "tool_calls": []}), None),
    ("abort-200", CHAT, 200, chat("abort"), E.INVALID_RESPONSE),
    ("choices-null", CHAT, 200, {"choices": None}, E.INVALID_RESPONSE),
    ("choices-empty", CHAT, 200, {"choices": []}, E.INVALID_RESPONSE),
    ("choice-null", CHAT, 200, {"choices": [None]}, E.INVALID_RESPONSE),
    ("error-200", CHAT, 200, {"choices": None, **error("quota")}, E.INVALID_RESPONSE),
    ("html-200", CHAT, 200, HTML, E.INVALID_RESPONSE),
    ("empty-200", CHAT, 200, b"", E.INVALID_RESPONSE),
    ("nan-200", CHAT, 200, b'{"choices":[{"message":{},"finish_reason":"stop","logprobs":NaN}]}', E.INVALID_RESPONSE),
    ("cut-200", CHAT, 200, chat(None), E.INVALID_RESPONSE),
    ("redirect", CHAT, 307, b"", E.INVALID_RESPONSE),
    ("responses-completed", RESPONSES, 200, {"object": "response", "status": "completed", "error": None}, None),
    ("responses-length", RESPONSES, 200, {"object": "response", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, None),
    ("responses-filtered", RESPONSES, 200, {"object": "response", "status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, E.CONTENT_POLICY),
    ("responses-failed", RESPONSES, 200, {"object": "response", "status": "failed", **error("m", code="rate_limit_exceeded")}, E.RATE_LIMITED),
    ("responses-failed-unknown", RESPONSES, 200, {"object": "response", "status": "failed", "error": None}, E.INVALID_RESPONSE),
    ("responses-queued", RESPONSES, 200, {"object": "response", "status": "queued"}, E.INVALID_RESPONSE),
    ("responses-in-progress", RESPONSES, 200, {"object": "response", "status": "in_progress"}, E.INVALID_RESPONSE),
    ("400", CHAT, 400, error("m", "invalid_request_error"), E.INVALID_REQUEST),
    ("400-vllm", CHAT, 400, error("m", "BadRequestError", 400), E.INVALID_REQUEST),
    ("422-detail", CHAT, 422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, E.INVALID_REQUEST),
]  # fmt: skip


class Wire:
    """Takes what a handler writes, in place of a socket."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    async def drain(self) -> None: ...

    def said(self) -> Said:
        """The reply in it, in the words of the fake."""
        head, found, body = self.written.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        status = lines[0].split(b" ")[1:2]
        fields = [line.partition(b": ") for line in lines[1:]]
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, _, value in fields}
        length = headers.get("content-length", "0")
        if self.closed and (not found or int(length) > len(body)):
            return Said(broken="cut")
        strange = not found or not head.startswith(b"HTTP/1.1 ") or not length.isdigit() or not all(colon for _, colon, _ in fields)
        chunked = "transfer-encoding" in headers
        if strange or len(head) > 20_000 or len(headers) < len(fields) or (not chunked and int(length) != len(body)):
            return Said(broken="no_http")
        if chunked:
            size = int(body.split(b"\r\n")[0], 16) if body[:4].isalnum() else -1
            if not 0 < size < 1 << 32:
                return Said(broken="no_http")
        return Said(int(status[0]), body, headers)


def fake_of(server: Server, *, pool: int, max_body_bytes: int) -> FakeModel:
    """A scripted model that says what the server's handler writes."""

    async def by(asked: Asked) -> Said:
        server.open += 1
        server.most_open = max(server.most_open, server.open)
        head = b"".join(f"{name}: {value}\r\n".encode() for name, value in asked.headers.items())
        server.heads.append(head)
        server.bodies.append(asked.raw)
        wire: Any = Wire()
        try:
            await server.handler(head, asked.raw, wire)
        finally:
            server.open -= 1
        said: Said = wire.said()
        return said

    return FakeModel(by=by, max_body_bytes=max_body_bytes)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    provider = Server()
    listener = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    yield provider
    listener.close()


@pytest.fixture(params=["direct", "sdk", "fake"])
async def transport(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Transport]:
    kind: Any = {"direct": DirectTransport, "sdk": SdkTransport.to, "fake": fake_of}[request.param]
    made: Transport = kind(server if request.param == "fake" else server.url, pool=50, max_body_bytes=100_000)
    yield made
    await made.close()


@pytest.fixture
def llm(server: Server, transport: Transport) -> Llm:
    provider = ProviderSettings(base_url=server.url, api_key="sk-secret-of-the-test", default_model="asked", name="p")
    return Llm([provider], pool=50, now_ms=lambda: 0, transport=transport)


def request(endpoint: Any = CHAT, **body: Any) -> Request:
    return Request(request_id="r-1", endpoint=endpoint, body={"messages": [], **body})


async def failure_of(llm: Llm, what: Request | None = None, timeout_s: float = 5.0) -> Failure:
    with pytest.raises(CallFailed) as caught:
        await llm.call(what or request(), attempt=1, timeout_s=timeout_s)
    return caught.value.failure


def call(timeout_s: float = 5.0, body: bytes = b"{}") -> Call:
    return Call(CHAT, body, {"Content-Type": "application/json"}, timeout_s, 2.0)


@pytest.mark.parametrize(("name", "endpoint", "status", "body", "expected"), ROWS, ids=[row[0] for row in ROWS])
async def test_each_signal_has_its_class(
    llm: Llm, server: Server, name: str, endpoint: str, status: int, body: Any, expected: ErrorClass | None
) -> None:
    """Every row of the table of signals gives its class, by exactly one HTTP call, and names provider and model."""
    server.handler = answer(status, body, location="/elsewhere", retry_after="7")
    if expected is None:
        response = await llm.call(request(endpoint), attempt=1, timeout_s=5)
        assert response.body == orjson.dumps(body)
    else:
        failure = await failure_of(llm, request(endpoint))
        assert (failure.error_class, failure.called, failure.provider, failure.model) == (expected, True, "p", "asked")
        assert failure.retry_after_ms == (None if status < 300 else 7000)
    assert len(server.heads) == 1


async def test_a_success_brings_body_usage_and_ids(llm: Llm, server: Server) -> None:
    """The body's bytes are untouched; served model, provider's id, finish reason and usage are read from the reply."""
    body = b'{ "model":"served",  "choices":[{"message":{},"finish_reason":"length"}], "usage":{"total_tokens":3} }'
    server.handler = answer(200, body, x_request_id="req-9", set_cookie="a=b")
    response = await llm.call(request(), attempt=3, timeout_s=5)
    assert response == Response(body, 200, "p", "served", "req-9", "length", {"total_tokens": 3})
    await llm.call(request(), attempt=3, timeout_s=5)
    sent = server.heads[1].lower()
    assert b"idempotency-key: r-1\r\n" in sent
    assert b"x-headrace-attempt: 3\r\n" in sent
    assert b"authorization: bearer sk-secret-of-the-test\r\n" in sent
    assert b"cookie" not in sent
    assert orjson.loads(server.bodies[1]) == {"messages": [], "model": "asked"}


async def test_a_failure_never_shows_the_key_or_the_prompt(llm: Llm, server: Server) -> None:
    """What a provider echoes is masked in the failure's message."""
    server.handler = answer(400, error('Bad key sk-secret-of-the-test in "my private prompt"'))
    failure = await failure_of(llm)
    assert "sk-secret" not in failure.message
    assert "private" not in failure.message


async def test_a_silent_server_is_left_at_the_time_out(llm: Llm, server: Server) -> None:
    """A server that never answers ends as `timeout`, on time."""
    forever = asyncio.Event()

    async def hang(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        await forever.wait()

    server.handler = hang
    start = monotonic()
    assert (await failure_of(llm, timeout_s=0.3)).error_class is ErrorClass.TIMEOUT
    assert 0.29 <= monotonic() - start < 1.0
    forever.set()


async def test_a_dripping_server_is_left_at_the_time_out(llm: Llm, server: Server) -> None:
    """Bytes that keep coming do not prolong a call: the time-out ends the whole of it."""
    release = asyncio.Event()

    async def drip(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\n")
        for _ in range(60):
            writer.write(b" ")
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(release.wait(), 0.05)

    server.handler = drip
    start = monotonic()
    assert (await failure_of(llm, timeout_s=0.4)).error_class is ErrorClass.TIMEOUT
    assert monotonic() - start < 1.2
    release.set()


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{}"], ids=["before", "within"])
async def test_a_cut_connection_is_one_call(llm: Llm, server: Server, sent: bytes) -> None:
    """A connection cut before or within the reply is `connection`, and is not sent again behind the policy's back."""

    async def cut(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        writer.close()

    await llm.call(request(), attempt=1, timeout_s=5)  # so that the connection cut is a reused one
    server.handler = cut
    assert (await failure_of(llm)).error_class is ErrorClass.CONNECTION
    assert len(server.heads) == 2


@pytest.mark.parametrize("kind", [DirectTransport, SdkTransport.to], ids=["direct", "sdk"])
async def test_no_cookie_is_kept(server: Server, kind: Any) -> None:
    """What one reply sets, no later call carries."""
    server.handler = answer(200, OK, set_cookie="session=1; Path=/")
    made: Transport = kind(server.url.replace("127.0.0.1", "localhost"), pool=2)
    for _ in range(2):
        await made.send(call())
    await made.close()
    assert b"cookie" not in server.heads[1].lower()


async def test_connections_closed_without_a_word_cost_no_attempt(server: Server) -> None:
    """A server that closes after each reply unannounced: a connection found closed is not a call, and none is sent twice."""

    async def close_after(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(raw(200, orjson.dumps(OK)))
        writer.close()

    server.handler = close_after
    direct = DirectTransport(server.url, pool=4)
    ended: list[int | ErrorClass] = []
    for _ in range(60):
        try:
            ended.append((await direct.send(call())).status)
        except CallFailed as failed:
            ended.append(failed.failure.error_class)
    await direct.close()
    # What is left is the race that cannot be told from a request lost after it was read.
    assert set(ended) <= {200, ErrorClass.CONNECTION}
    assert ended.count(200) >= 55
    assert len(server.heads) <= 60


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "http://no-such-host.invalid/v1"], ids=["refused", "dns"])
@pytest.mark.parametrize("kind", [DirectTransport, SdkTransport.to], ids=["direct", "sdk"])
async def test_nobody_there_is_connection(kind: Any, url: str) -> None:
    """A refused connection and an unknown host are `connection`."""
    made: Transport = kind(url, pool=2)
    with pytest.raises(CallFailed) as caught:
        await made.send(call())
    await made.close()
    assert caught.value.failure.error_class is ErrorClass.CONNECTION


NOT_HTTP = {
    "ssh": b"SSH-2.0-OpenSSH\r\n\r\n",
    "nul": b"\0" * 1000,
    "header": b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
    "long-header": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
    "many-headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000,
    "negative-length": b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n{}",
    "two-lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}x",
    "chunk-size": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "chunk-of-2**68": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    "second-reply": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]",
}


@pytest.mark.parametrize("reply", NOT_HTTP.values(), ids=NOT_HTTP)
async def test_what_is_not_http_is_an_invalid_response(llm: Llm, server: Server, reply: bytes) -> None:
    """A reply that is not HTTP is `invalid_response`, not the 400 a library makes of it."""

    async def talk(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)

    server.handler = talk
    assert (await failure_of(llm)).error_class is ErrorClass.INVALID_RESPONSE


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_oversized_reply_is_an_invalid_response(transport: Transport, server: Server, chunked: bool) -> None:
    """A body beyond the bound is refused, whether or not its length was announced."""

    async def flood(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        piece = b"x" * 60_000
        if chunked:
            part = b"%x\r\n%s\r\n" % (len(piece), piece)
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + part + part + b"0\r\n\r\n")
        else:
            writer.write(raw(200, piece + piece))

    server.handler = flood
    with pytest.raises(CallFailed) as caught:
        await transport.send(call())
    assert caught.value.failure.error_class is ErrorClass.INVALID_RESPONSE


async def test_what_follows_a_packed_body_is_bounded_too(transport: Transport, server: Server) -> None:
    """It unpacks to nothing, and would be kept in memory as long as the call may take."""
    piece = b"\0" * 60_000
    part = b"%x\r\n%s\r\n" % (len(piece), piece)

    async def flood(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        packed = gzip.compress(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%s\r\n" % (len(packed), packed) + part * 5 + b"0\r\n\r\n")

    server.handler = flood
    with pytest.raises(CallFailed) as caught:
        await transport.send(call())
    assert caught.value.failure.error_class is ErrorClass.INVALID_RESPONSE


async def test_a_body_in_many_pieces_is_read_whole(transport: Transport, server: Server) -> None:
    """A large reply and a large request (2 MiB) arrive unchanged."""
    body = bytes(range(32, 127)) * 1000
    server.handler = answer(200, body)
    reply: Reply = await transport.send(call(body=b'"' + b"y" * (2 << 20) + b'"'))
    assert (reply.body, len(server.bodies[0])) == (body, (2 << 20) + 2)
    assert reply.headers["Content-Length"] == reply.headers["content-length"]


async def test_an_undecodable_encoding_is_an_invalid_response(llm: Llm, server: Server) -> None:
    """A body that is not what its Content-Encoding says is no connection error."""
    server.handler = answer(200, b"this is not gzip", content_encoding="gzip")
    assert (await failure_of(llm)).error_class is ErrorClass.INVALID_RESPONSE


async def test_no_prompt_and_no_key_in_the_log(llm: Llm, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """With every logger at DEBUG, neither the prompt nor the key is written."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "openai")
    await llm.call(request(note="my-private-prompt"), attempt=1, timeout_s=5)
    written = caplog.text + "".join(f"{record.msg} {record.args}" for record in caplog.records)
    assert "my-private-prompt" not in written
    assert "sk-secret" not in written


async def test_cancellation_passes_through(transport: Transport, server: Server) -> None:
    """A cancelled call raises CancelledError, not a failure: shutdown spends no attempt."""
    reached, forever = asyncio.Event(), asyncio.Event()

    async def hang(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await forever.wait()

    server.handler = hang
    task = asyncio.create_task(transport.send(call()))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    forever.set()


async def test_500_calls_over_50_connections_queue(llm: Llm, server: Server) -> None:
    """Pool exhaustion is a queue: 500 at once with a time-out that 10 rounds exceed all succeed over 50 connections."""

    async def slowly(head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.15)
        await answer(200, OK)(head, body, writer)

    server.handler = slowly
    answers = await asyncio.gather(*(llm.call(request(), attempt=1, timeout_s=1.4) for _ in range(500)))
    assert len(answers) == len(server.heads) == 500
    assert server.most_open <= 50


@pytest.mark.parametrize(
    "body",
    [{"x": "\ud800"}, {"x": object()}, {"stream": True}, {"background": True}, {"model": 5}],
    ids=["surrogate", "no-json", "stream", "background", "model"],
)
async def test_what_cannot_be_sent_is_refused_at_once(llm: Llm, server: Server, body: dict[str, Any]) -> None:
    """A body that can never be sent is `invalid_request` without a call, never a connection error."""
    failure = await failure_of(llm, request(**body))
    assert (failure.error_class, failure.called, server.heads) == (ErrorClass.INVALID_REQUEST, False, [])


async def test_no_time_left_is_no_call(transport: Transport, server: Server) -> None:
    """A time-out of zero does not mean none: nothing is sent."""
    with pytest.raises(CallFailed) as caught:
        await transport.send(call(timeout_s=0.0))
    assert (caught.value.failure.called, server.heads) == (False, [])


@pytest.fixture
async def users_own(server: Server) -> AsyncIterator[Llm]:
    mine = openai.AsyncOpenAI(base_url=server.url, api_key="sk-of-the-user", max_retries=2)
    provider = ProviderSettings(base_url=server.url, api_key="sk-secret-of-the-test", default_model="asked")
    llm = Llm([provider], pool=5, now_ms=lambda: 0, transport=SdkTransport(mine))
    yield llm
    await llm.close()


@pytest.mark.parametrize("status", [500, 429, 409, 408, 307])
async def test_a_users_client_does_not_retry_behind_us(users_own: Llm, server: Server, status: int) -> None:
    """A client built with retries on makes one HTTP call an attempt all the same, and follows no redirect."""
    server.handler = answer(status, error(), location="/elsewhere")
    await failure_of(users_own)
    assert len(server.heads) == 1


async def test_a_users_client_keeps_its_credentials(users_own: Llm, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """The client's own key is sent, not the configured one; the body arrives whole; nothing of it is logged."""
    caplog.set_level(logging.DEBUG, "openai")
    logging.getLogger("openai._base_client").debug("Request options: %s", "my-private-prompt")  # as earlier 3.x do
    await users_own.call(request(note="my-private-prompt"), attempt=2, timeout_s=5)
    sent = server.heads[0].lower()
    assert b"authorization: bearer sk-of-the-user\r\n" in sent
    assert b"x-headrace-attempt: 2\r\n" in sent
    assert orjson.loads(server.bodies[0]) == {"messages": [], "note": "my-private-prompt", "model": "asked"}
    assert not [record for record in caplog.records if "my-private-prompt" in record.getMessage()]

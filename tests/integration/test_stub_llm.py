"""Claims about the stub LLM over real sockets: what clients get, what breaks how, and what an auditor reads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from headrace.local.stub import Action, CapacitySpec, Latency, Match, Rule, StubLLM, fault_for, scenario

KEY = "sk-very-secret-key"
PROMPT = "a very secret prompt"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": PROMPT}]}).encode()


def _rule(action: Action, **match: Any) -> Rule:
    return Rule(name="fault", match=Match(**match), action=action)


def _post(request_id: str = "r", body: bytes = BODY, extra: str = "") -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nIdempotency-Key: {request_id}\r\n{extra}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class _Wire:
    """A client that sees bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def reply(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        return int(head[0].split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))


@contextlib.asynccontextmanager
async def _wire(stub: StubLLM) -> AsyncIterator[_Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", stub.port)
    try:
        yield _Wire(reader, writer)
    finally:
        writer.close()


async def _ask(stub: StubLLM, data: bytes) -> tuple[int, Any]:
    async with _wire(stub) as wire:
        wire.writer.write(data)
        status, _, body = await wire.reply()
        return status, json.loads(body)


async def _admin(stub: StubLLM, method: str, path: str, document: object = None) -> tuple[int, Any]:
    body = b"" if document is None else json.dumps(document).encode()
    head = f"{method} /_stub/{path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    async with _wire(stub) as wire:
        wire.writer.write(head.encode() + body)
        status, headers, text = await wire.reply()
    if headers["content-type"] == "application/x-ndjson":
        return status, [json.loads(line) for line in text.splitlines()]
    return status, json.loads(text)


async def test_the_openai_client_reads_every_endpoint() -> None:
    """The official SDK parses chat, completions, embeddings (base64), responses and models into its own types."""
    async with StubLLM() as stub, openai.AsyncOpenAI(base_url=stub.base_url, api_key=KEY, max_retries=0) as client:
        chat = await client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": PROMPT}])
        assert chat.model == "gpt"
        assert chat.choices[0].finish_reason == "stop"
        assert chat.usage is not None
        assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens
        assert chat._request_id is not None
        text = await client.completions.create(model="gpt", prompt=PROMPT)
        assert text.choices[0].text == chat.choices[0].message.content
        vectors = await client.embeddings.create(model="e", input=["a", "b"], dimensions=32)
        assert [len(item.embedding) for item in vectors.data] == [32, 32]
        response = await client.responses.create(model="gpt", input=PROMPT)
        assert response.output_text == chat.choices[0].message.content
        assert [model.id async for model in await client.models.list()] == ["stub-model"]
        assert stub.total_calls == 4


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("rate_limited", openai.RateLimitError),
        ("server_error", openai.InternalServerError),
        ("invalid_api_key", openai.AuthenticationError),
        ("model_not_found", openai.NotFoundError),
        ("context_length_exceeded", openai.BadRequestError),
        ("conflict", openai.ConflictError),
        ("unprocessable", openai.UnprocessableEntityError),
    ],
)
async def test_the_openai_client_reads_the_errors(name: str, error: type[openai.APIStatusError]) -> None:
    """A signal reaches the SDK as the exception a real provider would cause."""
    async with (
        StubLLM([_rule(Action(signal=name))]) as stub,
        openai.AsyncOpenAI(base_url=stub.base_url, api_key=KEY, max_retries=0) as client,
    ):
        with pytest.raises(error):
            await client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": PROMPT}])


async def test_the_prefix_may_be_left_out() -> None:
    """`/chat/completions` is the same place as `/v1/chat/completions`."""
    async with StubLLM() as stub:
        status, body = await _ask(stub, _post().replace(b"/v1/chat", b"/chat"))
        assert (status, body["object"]) == (200, "chat.completion")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /v1/chat/completions HTTP/1.1\r\n\r\n", 405),
        (b"GET /nowhere HTTP/1.1\r\n\r\n", 404),
        (b"POST /_stub/nowhere HTTP/1.1\r\n\r\n", 404),
        (_post(body=b"{"), 400),
        (_post(body=b'{"model": NaN}'), 400),
        (_post(request_id="x" * 513), 400),
        (_post(extra="X-Large: " + "x" * 70_000 + "\r\n"), 431),
        (b"nonsense\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
    ],
)
async def test_a_bad_request_gets_a_json_error(data: bytes, status: int) -> None:
    """Whatever is wrong with a request, the answer is a status and an error that names it."""
    async with StubLLM() as stub:
        found, body = await _ask(stub, data)
        assert (found, list(body)) == (status, ["error"])
        assert PROMPT not in json.dumps(body)


async def test_a_fault_follows_the_pure_function() -> None:
    """What `fault_for` foretells for each id is what the server does, on the first call and on the second."""
    rules = [rule for rule in scenario("trade") if rule.action.delivery != "hang"]
    async with StubLLM(rules, seed=11) as stub, _wire(stub) as wire:
        for call in (1, 2):
            for request_id in (f"id-{n}" for n in range(150)):
                expected = fault_for(11, request_id, rules, call=call)
                wire.writer.write(_post(request_id))
                status, _, _ = await wire.reply()
                assert status == {"busy": 429, "flaky": 500}.get(expected.name if expected else "", 200)
        assert stub.stats()["by_status"] == {"200": 300 - _faulty(stub), "429": _by(stub, "busy"), "500": _by(stub, "flaky")}
        assert _by(stub, "busy") > 0
        assert _by(stub, "flaky") > 0


def _by(stub: StubLLM, name: str) -> int:
    rules: Any = stub.stats()["by_rule"]
    return int(rules.get(name, 0))


def _faulty(stub: StubLLM) -> int:
    return _by(stub, "busy") + _by(stub, "flaky")


async def test_a_hang_lasts_until_the_client_leaves() -> None:
    """A hung call is in flight, answers nothing, survives a heal, and is counted as abandoned once its client goes."""
    async with StubLLM([_rule(Action(delivery="hang"))]) as stub:
        async with _wire(stub) as wire:
            wire.writer.write(_post())
            await stub.wait_in_flight(1)
            stub.heal()
            assert (await _ask(stub, _post()))[0] == 200
            assert stub.stats()["in_flight"] == 1
            assert stub.stats()["peak_in_flight"] == 2
        await stub.wait_in_flight(0)
        assert stub.stats()["abandoned"] == 1
        assert stub.calls == {"r": 2}


async def test_a_reset_is_a_reset() -> None:
    """The client sees RST, not an orderly end."""
    async with StubLLM([_rule(Action(delivery="reset"))]) as stub, _wire(stub) as wire:
        wire.writer.write(_post())
        with pytest.raises(ConnectionResetError):
            await wire.reader.read()


async def test_a_close_says_nothing() -> None:
    """The connection ends in order before any byte."""
    async with StubLLM([_rule(Action(delivery="close"))]) as stub, _wire(stub) as wire:
        wire.writer.write(_post())
        assert await wire.reader.read() == b""
        assert stub.stats()["by_status"] == {"none": 1}


@pytest.mark.parametrize("delivery", ["reset", "close", "cut"])
async def test_a_scripted_end_is_not_the_clients(delivery: Any) -> None:
    """A connection the script ends is no abandoned call, and nothing of it stays in flight."""
    async with StubLLM([_rule(Action(delivery=delivery))]) as stub, _wire(stub) as wire:
        wire.writer.write(_post())
        with contextlib.suppress(ConnectionResetError):
            await wire.reader.read()
        await stub.wait_in_flight(0)
        assert stub.stats()["abandoned"] == 0
        assert stub.total_calls == 1


async def test_a_cut_body_is_shorter_than_announced() -> None:
    """The head promises the whole body, and half of it comes."""
    async with StubLLM([_rule(Action(delivery="cut", cut_at=0.5))]) as stub, _wire(stub) as wire:
        wire.writer.write(_post())
        with pytest.raises(asyncio.IncompleteReadError) as caught:
            await wire.reply()
        assert caught.value.expected is not None
        assert len(caught.value.partial) == caught.value.expected // 2


async def test_dripped_bytes_come_one_by_one_and_whole() -> None:
    """The body arrives in many pieces, and is the body."""
    action = Action(signal="error_text", delivery="drip", drip_ms=1)
    async with StubLLM([_rule(action)]) as stub, _wire(stub) as wire:
        wire.writer.write(_post())
        head = await wire.reader.readuntil(b"\r\n\r\n")
        assert await wire.reader.readexactly(1) == b"{"
        assert stub.stats()["in_flight"] == 1
        rest = await wire.reader.readuntil(b"}")
        assert json.loads(b"{" + rest) == {"error": "the request is invalid"}
        assert head.startswith(b"HTTP/1.1 400")
        await stub.wait_in_flight(0)


async def test_an_idle_connection_is_closed_unannounced() -> None:
    """A whole answer that promises to keep the connection, and then its end."""
    async with StubLLM([_rule(Action(delivery="close_idle"))]) as stub, _wire(stub) as wire:
        wire.writer.write(_post())
        status, headers, _ = await wire.reply()
        assert status == 200
        assert "connection" not in headers
        assert await wire.reader.read() == b""


async def test_pipelined_requests_are_answered_in_order() -> None:
    """The first is slow and the others are not; the answers keep the order of the requests, an admin call included."""
    slow = Action(signal="error_text", latency=Latency(fixed_ms=50))
    async with StubLLM([_rule(slow, request_ids=["a"])]) as stub, _wire(stub) as wire:
        wire.writer.write(_post("a") + _post("b") + b"GET /_stub/calls HTTP/1.1\r\n\r\n" + _post("c") * 50)
        assert (await wire.reply())[0] == 400
        assert (await wire.reply())[0] == 200
        assert json.loads((await wire.reply())[2]) == {"a": 1, "b": 1}
        assert [(await wire.reply())[0] for _ in range(50)] == [200] * 50


async def test_a_flood_behind_a_slow_call_is_served_whole() -> None:
    """Three thousand requests pipelined behind a slow one, more than any buffer takes, are each answered."""
    slow = Action(latency=Latency(fixed_ms=20))
    async with StubLLM([_rule(slow, request_ids=["a"])]) as stub, _wire(stub) as wire:
        wire.writer.write(_post("a") + _post("b") * 3000)
        assert {(await wire.reply())[0] for _ in range(3001)} == {200}
        assert stub.calls == {"a": 1, "b": 3000}


async def test_a_chunked_body_awaits_its_continue() -> None:
    """The interim answer comes before the body is sent, and the call is counted only with it."""
    async with StubLLM() as stub, _wire(stub) as wire:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
        wire.writer.write(head)
        assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert stub.total_calls == 0
        wire.writer.write(b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n")
        assert (await wire.reply())[0] == 200


async def test_a_body_of_sixteen_mebibytes_is_taken() -> None:
    """The largest prompt is read, answered, and leaves the connection usable."""
    text = "x" * (16 * 1024 * 1024 - 1000)
    large = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    async with StubLLM() as stub, _wire(stub) as wire:
        wire.writer.write(_post(body=large))
        status, _, body = await wire.reply()
        assert status == 200
        assert json.loads(body)["usage"]["prompt_tokens"] == len(text) // 4 + 1
        wire.writer.write(_post())
        assert (await wire.reply())[0] == 200


async def test_the_log_tells_everything_but_secrets(tmp_path: Path) -> None:
    """Each call is a line with id, attempt, action and status, over HTTP and in the file; no prompt, no key."""
    path = tmp_path / "calls.ndjson"
    async with StubLLM([_rule(Action(signal="slow_down"), first=1)], log_path=path) as stub:
        for attempt in (1, 2):
            await _ask(stub, _post(extra=f"Authorization: Bearer {KEY}\r\nX-Headrace-Attempt: {attempt}\r\n"))
        await _ask(stub, _post("bad", body=b"{", extra="X-Headrace-Attempt: none of that\r\n"))
        _, log = await _admin(stub, "GET", "log?since=0")
        told = [(e["seq"], e["request_id"], e["attempt"], e["call"], e["rule"], e["action"], e["status"]) for e in log]
        assert told == [
            (1, "r", 1, 1, "fault", "slow_down", 429),
            (2, "r", 2, 2, None, "answer", 200),
            (3, "bad", None, 1, None, "bad_call", 400),
        ]
        assert [json.loads(line) for line in path.read_text().splitlines()] == log
        assert (await _admin(stub, "GET", "log?since=2"))[1] == log[2:]
        assert (await _admin(stub, "GET", "log?since=0&limit=1"))[1] == log[:1]
        assert (await _admin(stub, "GET", "log?since=x"))[0] == 422
        assert (await _admin(stub, "GET", "calls"))[1] == {"r": 2, "bad": 1}
        everything = path.read_text() + json.dumps((await _admin(stub, "GET", "stats"))[1])
        assert KEY not in everything
        assert PROMPT not in everything


async def test_rules_change_while_it_runs() -> None:
    """Rules are replaced whole by a PUT; a refused one names its field and changes nothing; heal removes all."""
    async with StubLLM() as stub:
        rules = [{"name": "a", "match": {"first": 1}, "action": {"signal": "conflict"}}]
        assert await _admin(stub, "PUT", "rules", rules) == (200, {"seed": 0, "rules": rules})
        assert (await _ask(stub, _post()))[0] == 409
        status, body = await _admin(stub, "PUT", "rules", [{"name": "b", "action": "conflic"}])
        assert status == 422
        assert body["error"]["message"].startswith("rules.0.action.signal: ")
        assert (await _admin(stub, "PUT", "rules", "{"))[0] == 422
        assert (await _admin(stub, "GET", "rules"))[1]["rules"] == rules
        assert len((await _admin(stub, "PUT", "rules", {"scenario": "trade"}))[1]["rules"]) == 4
        assert (await _admin(stub, "POST", "heal"))[1]["rules"] == []


async def test_a_reset_forgets_counts_but_not_the_sequence() -> None:
    """After a reset the ids are new, so `first` rules meet them again; an auditor's `since` stays good."""
    async with StubLLM([_rule(Action(signal="conflict"), first=1)]) as stub:
        assert [(await _ask(stub, _post()))[0] for _ in range(2)] == [409, 200]
        assert (await _admin(stub, "POST", "reset"))[1]["calls"] == 0
        assert (await _ask(stub, _post()))[0] == 409
        assert [entry.seq for entry in stub.log] == [3]


async def test_an_abandoned_call_goes_on_consuming() -> None:
    """The client of the only slot leaves; the slot stays taken, and with no queue the next call is turned away."""
    async with StubLLM(capacity=CapacitySpec(slots=1, queue=0), latency=Latency(fixed_ms=60_000)) as stub:
        async with _wire(stub) as wire:
            wire.writer.write(_post("first"))
            await stub.wait_in_flight(1)
        await stub.wait_in_flight(0)
        status, body = await _ask(stub, _post("second"))
        assert (status, body["error"]["code"]) == (503, "server_is_overloaded")
        capacity: Any = stub.stats()["capacity"]
        assert capacity["active"] == 1
        assert stub.stats()["by_rule"] == {"capacity": 1}


async def test_a_scripted_fault_takes_no_capacity() -> None:
    """With a single slot and no queue, hung calls and errors leave the slot to the call that is answered."""
    rules = [
        Rule(name="hang", match=Match(request_ids=frozenset({"h"})), action=Action(delivery="hang")),
        Rule(name="error", match=Match(request_ids=frozenset({"e"})), action=Action(signal="conflict")),
    ]
    async with StubLLM(rules, capacity=CapacitySpec(slots=1, queue=0)) as stub, _wire(stub) as wire:
        wire.writer.write(_post("h"))
        await stub.wait_in_flight(1)
        assert [(await _ask(stub, _post(request_id)))[0] for request_id in "er"] == [409, 200]


async def test_capacity_changes_while_it_runs() -> None:
    """Calls queue while there is no slot, and are answered once a PUT gives some."""
    async with StubLLM(capacity=CapacitySpec(slots=0)) as stub:
        asked = [asyncio.create_task(_ask(stub, _post(str(n)))) for n in range(5)]
        await stub.wait_in_flight(5)
        assert (await _admin(stub, "PUT", "capacity", {"slots": "many"}))[0] == 422
        assert (await _admin(stub, "PUT", "capacity", {"slots": 2, "token_rate": 10_000}))[1]["slots"] == 2
        assert {status for status, _ in await asyncio.gather(*asked)} == {200}


async def test_a_change_of_capacity_is_lifted_by_itself() -> None:
    """With `for_s`, what held before comes back without another word."""
    async with StubLLM() as stub:
        await _admin(stub, "PUT", "capacity", {"slots": 0, "for_s": 0.05})
        assert (await _ask(stub, _post()))[0] == 200


async def test_waits_return_on_the_signal() -> None:
    """`wait_calls` returns at the n-th call, not before."""
    async with StubLLM() as stub:
        wait = asyncio.create_task(stub.wait_calls(2))
        await _ask(stub, _post())
        assert not wait.done()
        await _ask(stub, _post())
        await wait


async def test_aiohttp_keeps_its_connection_through_many_calls() -> None:
    """A pooled client makes a thousand calls on sixteen connections, and each id is counted once."""
    async with StubLLM() as stub, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=16)) as session:

        async def call(n: int) -> int:
            headers = {"Idempotency-Key": str(n), "Content-Type": "application/json"}
            async with session.post(f"{stub.base_url}/chat/completions", data=BODY, headers=headers) as response:
                await response.read()
                return response.status

        assert set(await asyncio.gather(*(call(n) for n in range(1000)))) == {200}
        assert stub.calls == {str(n): 1 for n in range(1000)}
        assert stub.stats()["connections"] == 16


@contextlib.asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "headrace.local.stub_llm",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _base_url(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert line.startswith("listening on http://127.0.0.1:")
    assert line.endswith("/v1\n")
    return line.removeprefix("listening on ").strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_process_says_where_it_is_and_ends_when_told(number: signal.Signals) -> None:
    """One line when ready; a signal ends it with 0, a hung call notwithstanding, and nothing more is printed."""
    async with _process("--scenario", "healthy", "--slots", "0") as process, aiohttp.ClientSession() as session:
        url = await _base_url(process)
        hung = asyncio.create_task(session.post(f"{url}/chat/completions", data=BODY))
        while True:
            async with session.get(f"{url.removesuffix('/v1')}/_stub/stats") as response:
                if (await response.json())["in_flight"] == 1:
                    break
        process.send_signal(number)
        out, err = await asyncio.wait_for(process.communicate(), 5)
        assert (process.returncode, out, err) == (0, b"", b"")
        with pytest.raises(aiohttp.ClientError):
            await hung


async def test_the_log_survives_a_kill(tmp_path: Path) -> None:
    """Every call that was answered is in the file after SIGKILL, and a new process appends."""
    path = tmp_path / "calls.ndjson"
    for run in (1, 2):
        async with _process("--log", str(path)) as process, aiohttp.ClientSession() as session:
            url = await _base_url(process)
            async with session.post(f"{url}/chat/completions", data=BODY) as response:
                assert response.status == 200
            process.kill()
            await process.wait()
        assert len(path.read_text().splitlines()) == run
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "loopback"),
        (["--scenario", "absent"], "there are healthy"),
        (["--rules", "absent.yaml"], "cannot be read"),
        (["--latency-ms", "-1"], "--latency-ms"),
        (["--token-rate", "0"], "--token-rate"),
    ],
)
async def test_the_process_refuses_what_cannot_work(arguments: list[str], says: str) -> None:
    """Exit code 2, the fault on stderr, nothing on stdout."""
    async with _process(*arguments) as process:
        out, err = await process.communicate()
        assert (process.returncode, out) == (2, b"")
        assert says in err.decode()
        assert b"Traceback" not in err


async def test_a_taken_port_is_named() -> None:
    """Exit code 1 and the address that cannot be had."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with _process("--port", str(port)) as process:
            _, err = await process.communicate()
            assert process.returncode == 1
            assert f"127.0.0.1:{port}" in err.decode()

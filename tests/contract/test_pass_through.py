"""What a request says reaches the model as it was written, over both transports, from the record's bytes to the socket's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Literal

import pytest

from headrace.config import LinkSettings, ProviderSettings
from headrace.decode import decode_main
from headrace.envelope import Record, Request
from headrace.errors import CallFailed, ErrorClass
from headrace.llm import Llm

OK = b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}'
CARRIERS = pytest.mark.parametrize("by", ["direct", "sdk"])
# As orjson spells what it has read: then the bytes are the same, and any change would show.
PLAIN = (
    '{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"é \\" \\\\ \\n 漢"},'
    '{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]}],"temperature":1.0,"top_p":1,"n":1,'
    '"seed":9223372036854775807,"big":18446744073709551615,"huge":123456789012345678901234567890,"negative":-0.0,"small":0.001,"third":0.1,'
    '"logprobs":true,"top_logprobs":5,"logit_bias":{"50256":-100},"stop":null,"unknown":{"deep":[[],{},[null,false,0,0.0,""]]},'
    '"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"x":{"type":"number","minimum":1.0}},'
    '"required":["x"],"additionalProperties":false},"strict":true}}],"tool_choice":"auto",'
    '"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"integer","maximum":10}}},"z":1,"a":2}'
)
RESPELLED = '{ "model" : "m", "n" : 1E2, "x": 1.10, "s" : "\\u00e9\\/", "i": -0, "prompt": "p" }'


class Keeper:
    """A server that answers, and keeps each head and body."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next((int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
                self.bodies.append(await reader.readexactly(length))
                self.heads.append(head)
                self.paths.append(head.split(" ")[1])
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(OK) + OK)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()


@pytest.fixture
async def keeper() -> AsyncIterator[Keeper]:
    """On any free port of loopback."""
    one = Keeper()
    async with await asyncio.start_server(one.serve, "127.0.0.1", 0) as server:
        one.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield one


def request_of(body: str, endpoint: str = "/v1/chat/completions") -> Request:
    """Through the decoder, as a record's value."""
    value = f'{{"request_id":"r","endpoint":"{endpoint}","body":{body}}}'.encode()
    job = decode_main(Record("t", 0, 0, 1, None, value, [], 0))
    assert job.request is not None, job.fault
    return job.request


async def sent(keeper: Keeper, by: Literal["direct", "sdk"], request: Request, *, model: str | None = None, **fields: object) -> bytes:
    """The body at the server's socket."""
    provider = ProviderSettings.model_validate(
        {"name": "p", "base_url": f"{keeper.url}/v1", "api_key": "sk-key-one", "transport": by} | fields
    )
    llm = Llm([provider], pool=2, now_ms=lambda: 0, models={"*": (LinkSettings(provider="p", model=model),)})
    try:
        await llm.call(request, attempt=1, timeout_s=20)
    finally:
        await llm.close()
    return keeper.bodies[-1]


@CARRIERS
async def test_every_byte_is_kept(keeper: Keeper, by: Literal["direct", "sdk"]) -> None:
    """Formats, tools, seeds, images, unknown fields, 1.0 beside 1, integers of any length: in their order, and as they were written."""
    assert (await sent(keeper, by, request_of(PLAIN))).decode() == PLAIN


@CARRIERS
async def test_another_spelling_is_the_same_value(keeper: Keeper, by: Literal["direct", "sdk"]) -> None:
    """Spaces, escapes and exponents are respelled; a float stays one, and an integer too."""
    got = json.loads(await sent(keeper, by, request_of(RESPELLED)), parse_float=lambda text: ("float", float(text)))
    assert got == json.loads(RESPELLED, parse_float=lambda text: ("float", float(text)))


@CARRIERS
async def test_a_chain_rewrites_the_model_alone(keeper: Keeper, by: Literal["direct", "sdk"]) -> None:
    """For another model, and for none."""
    assert (await sent(keeper, by, request_of(PLAIN), model="other")).decode() == PLAIN.replace('"model":"m"', '"model":"other"')


@pytest.mark.parametrize("field", ["stream", "background"])
def test_a_stream_is_refused_with_a_reason(field: str) -> None:
    """Before anything is sent."""
    fault = decode_main(Record("t", 0, 0, 1, None, f'{{"request_id":"r","body":{{"{field}":true}}}}'.encode(), [], 0)).fault
    assert fault is not None
    assert fault.error_class is ErrorClass.INVALID_REQUEST
    assert "leave it out" in fault.message


@CARRIERS
@pytest.mark.parametrize(
    ("version", "path"),
    [
        (None, "/openai/v1/chat/completions"),
        ("preview", "/openai/v1/chat/completions?api-version=preview"),
        ("2024-10-21", "/openai/deployments/m/chat/completions?api-version=2024-10-21"),
    ],
)
async def test_azure_is_asked_where_it_listens(keeper: Keeper, by: Literal["direct", "sdk"], version: str | None, path: str) -> None:
    """The deployment in the path, the version in the query, the key in its own header, and no bearer beside it."""
    body = await sent(keeper, by, request_of(PLAIN), kind="azure", base_url=f"{keeper.url}/openai/v1/", api_version=version)
    assert body.decode() == PLAIN
    assert keeper.paths == [path]
    head = keeper.heads[0].lower()
    assert "api-key: sk-key-one\r\n" in head
    assert "authorization" not in head


@CARRIERS
async def test_a_query_in_an_address_stays_at_its_end(keeper: Keeper, by: Literal["direct", "sdk"]) -> None:
    """Gateways want keys and versions there."""
    await sent(keeper, by, request_of(PLAIN), base_url=f"{keeper.url}/v1?tenant=a&x=1")
    assert keeper.paths == ["/v1/chat/completions?tenant=a&x=1"]


async def test_other_endpoints_go_where_they_belong(keeper: Keeper) -> None:
    """Responses and embeddings too, and what a server of another form answers is classified as ever."""
    for endpoint in ("/v1/completions", "/v1/embeddings", "/v1/responses"):
        with pytest.raises(CallFailed) as failed:
            await sent(keeper, "direct", request_of('{"model":"m"}', endpoint))
        assert failed.value.failure.error_class is ErrorClass.INVALID_RESPONSE
    assert keeper.paths == ["/v1/completions", "/v1/embeddings", "/v1/responses"]

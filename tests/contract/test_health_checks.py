"""Active health checks against a real server: who is taken out, who is brought back, and that nobody need call to find out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.config import ProviderSettings
from headrace.llm import Llm


class Patient:
    """A server that says how it is."""

    def __init__(self) -> None:
        self.status = 200
        self.asked: list[str] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
                writer.write(f"HTTP/1.1 {self.status} X\r\ncontent-length: 2\r\n\r\nok".encode())
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()


@pytest.fixture
async def patient() -> AsyncIterator[Patient]:
    """On any free port of loopback."""
    one = Patient()
    async with await asyncio.start_server(one.serve, "127.0.0.1", 0) as server:
        one.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield one


async def test_a_check_takes_out_and_brings_back(patient: Patient) -> None:
    """By a GET of the server's own path, with the key; the other endpoint, where nobody listens, is out from its second check."""
    told: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue()
    provider = ProviderSettings.model_validate(
        {
            "name": "p",
            "api_key": "sk-key-one",
            "endpoints": [{"base_url": patient.url}, {"base_url": "http://127.0.0.1:9/v1"}],
            "health": {"path": "/health?deep=1", "every_s": 0.1, "timeout_s": 5},
        }
    )
    llm = Llm(
        [provider], pool=2, now_ms=lambda: 0, tell=lambda name, fields: told.put_nowait((name, fields["endpoint"], fields.get("error", "")))
    )
    assert llm.watches
    watching = asyncio.create_task(llm.run())
    try:
        async with asyncio.timeout(20):
            assert await told.get() == ("endpoint_ejected", "http://127.0.0.1:9/v1", "connection")
            assert [(one.endpoint, one.why) for one in llm.endpoints()] == [(patient.url, None), ("http://127.0.0.1:9/v1", "health")]
            patient.status = 503
            assert await told.get() == ("endpoint_ejected", patient.url, "HTTP 503")
            patient.status = 200
            assert await told.get() == ("endpoint_returned", patient.url, "")
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await llm.close()
    assert {head.split("\r\n")[0] for head in patient.asked} == {"GET /health?deep=1 HTTP/1.1"}
    assert "Authorization: Bearer sk-key-one" in patient.asked[0]

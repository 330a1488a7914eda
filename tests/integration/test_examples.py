"""The examples as a worker runs them: on Kafka and Redis, with the stub LLM as their model."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.local.stub import Rule
from headrace.testing import tool_calls
from tests.support.bench import Bench
from tests.support.stub import PatientStub
from tests.support.worker import Worker, accounts

pytest_plugins = ["tests.support.fixtures"]


def rule(name: str, action: Any, **match: Any) -> Rule:
    return Rule.model_validate({"name": name, "match": match, "action": action})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def completed(bench: Bench, request_id: str) -> dict[str, Any]:
    """The one result of a request, once it is there."""
    try:
        counts = await bench.finished([request_id], timeout_s=60)
    except AssertionError as late:
        raise AssertionError(f"{late}; {accounts()}") from None
    assert counts == {(request_id, "completed"): 1}
    return next(one for one in await bench.results(1) if one["request_id"] == request_id)


async def test_rag_killed_between_its_steps_bills_once(
    bench: Bench, stub: PatientStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kill -9` after the bill, while the answer is awaited; another worker answers: one bill, one search, one completed result."""
    monkeypatch.setenv("RAG_LEDGER", str(tmp_path / "ledger.jsonl"))
    stub.set_rules([rule("slow", "hang", endpoint="chat")])
    settings = bench.settings(stub.base_url, handler="examples.rag:handle", timeout_s=60)
    bench.ask("r", body={"messages": [{"role": "user", "content": "What does the tailrace do?"}]}, prompt=None, agent_id="miller")
    with Worker(settings) as first:
        await stub.wait_calls(2)
        assert len(lines(tmp_path / "ledger.jsonl")) == 1
        first.kill()
    stub.set_rules([])
    with Worker(settings) as second:
        result = await completed(bench, "r")
        second.signal(signal.SIGTERM)
        assert await second.exit_code() == 0
    assert result["response"]["body"]["choices"][0]["message"]["content"]
    assert lines(tmp_path / "ledger.jsonl") == [{"request_id": "r", "agent_id": "miller", "units": 1}]
    assert stub.total_calls == 3  # one search, one answer that was cut off, one that came


async def test_an_agent_uses_its_tools_on_a_real_worker(
    bench: Bench, stub: PatientStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two turns, a refund between them; a model that fails once is asked again, and the refund is made once."""
    monkeypatch.setenv("AGENT_REFUNDS", str(tmp_path / "refunds.jsonl"))
    asks = tool_calls(("look_up", {"order": "A-1"}), ("refund", {"order": "A-1"})).body.decode()
    stub.set_rules(
        [
            rule("overloaded", {"signal": "unavailable", "retry_after": "none"}, prompt_contains="refunded", first=1),
            rule("ends", "answer", prompt_contains="refunded"),
            rule("asks", {"body": asks}),
        ]
    )
    bench.ask("a", body={"messages": [{"role": "user", "content": "Pay A-1 back."}]}, prompt=None)
    with Worker(bench.settings(stub.base_url, handler="examples.agent:handle")) as worker:
        result = await completed(bench, "a")
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
    assert result["finish_reason"] == "stop"
    assert [each["class"] for each in result["attempts"]["each"]] == ["overloaded", None]
    assert lines(tmp_path / "refunds.jsonl") == [{"refunded": "A-1", "cents": 12_900, "for": "a"}]
    assert stub.total_calls == 3


async def test_an_embeddings_job_on_a_real_worker(bench: Bench, stub: PatientStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred texts in two batches, in the store once the result is there."""
    monkeypatch.setenv("EMBEDDINGS_DB", str(tmp_path / "v.sqlite"))
    texts = [f"text {number}" for number in range(100)]
    bench.ask("e", endpoint="/v1/embeddings", body={"input": texts}, prompt=None)
    with Worker(bench.settings(stub.base_url, handler="examples.embeddings:handle")) as worker:
        result = await completed(bench, "e")
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
    assert result["response"]["body"] == {"stored": 100, "new": 100, "in": str(tmp_path / "v.sqlite")}
    with closing(sqlite3.connect(tmp_path / "v.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM vectors").fetchone() == (100,)
    assert stub.total_calls == 2

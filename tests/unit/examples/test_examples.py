"""The examples, over the pipeline in memory: what each promises of crashes, costs and side effects."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from examples import agent, embeddings, rag
from headrace.testing import Asked, FakeModel, FakePipeline, Said, answer, failure, tool_calls, vectors


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAG_LEDGER", str(tmp_path / "ledger.jsonl"))
    return tmp_path / "ledger.jsonl"


def by(asked: Asked) -> Said:
    """Embeds a text as whether it speaks of a tailrace, and answers with the system message it was given."""
    if asked.endpoint == "/v1/embeddings":
        return vectors(*([float("tailrace" in text), 0.1] for text in asked.body["input"]))
    return answer(asked.body["messages"][0]["content"])


def a_question(pipeline: FakePipeline) -> str:
    return pipeline.send(body={"messages": [{"role": "user", "content": "What does the tailrace do?"}]}, agent_id="miller")


@pytest.mark.parametrize(
    ("crash", "searches"),
    [
        ({"after": "retrieve"}, 1),
        ({"within": "retrieve"}, 2),
        ({"within": "bill"}, 1),
        ({"after": "bill"}, 1),
        ({"call": 2}, 1),
        ({"settle": "r1"}, 1),
    ],
)
def test_rag_bills_once_whatever_crashes(ledger: Path, crash: dict[str, Any], searches: int) -> None:
    """One line in the ledger and one answer; a search is repeated only where it is in doubt."""
    pipeline = FakePipeline(rag.handle, FakeModel(by=by))
    a_question(pipeline)
    pipeline.crash(**crash)
    said = pipeline.run().answer("r1")["choices"][0]["message"]["content"]
    assert "[tailrace] The tailrace carries" in said
    assert lines(ledger) == [{"request_id": "r1", "agent_id": "miller", "units": 1}]
    assert [asked.endpoint for asked in pipeline.model.asked].count("/v1/embeddings") == searches


def test_rag_retries_only_the_step_that_failed(ledger: Path) -> None:
    """The model is overloaded twice after the search: the search is not paid for again."""
    pipeline = FakePipeline(rag.handle, FakeModel(vectors(*[[1.0, 0.0]] * 5), failure(503), failure(503), by=by))
    a_question(pipeline)
    pipeline.run()
    assert pipeline.story("r1") == ["Retry", "Retry", "Completed"]
    assert len(pipeline.model.asked) == 4
    assert len(lines(ledger)) == 1


def test_rag_refuses_what_is_no_question(ledger: Path) -> None:
    """Dead at once with a code of its own, nothing searched, nothing billed."""
    pipeline = FakePipeline(rag.handle)
    pipeline.send(body={"messages": []})
    assert [letter.code for letter in pipeline.run().dead_letters] == ["no_question"]
    assert (pipeline.model.asked, lines(ledger)) == ([], [])


@pytest.fixture
def refunds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENT_REFUNDS", str(tmp_path / "refunds.jsonl"))
    return tmp_path / "refunds.jsonl"


def an_agent(*script: Said, by: Any = None) -> FakePipeline:
    pipeline = FakePipeline(agent.handle, FakeModel(*script, by=by))
    pipeline.send(body={"messages": [{"role": "user", "content": "Refund A-1."}]})
    return pipeline


REFUND = tool_calls(("look_up", {"order": "A-1"}), ("refund", {"order": "A-1"}))


@pytest.mark.parametrize("crash", [{"after": "turn-0"}, {"after": "turn-0/call-1"}, {"call": 2}, {"after": "turn-1"}, {"settle": "r1"}])
def test_an_agent_refunds_once_whatever_crashes(refunds: Path, crash: dict[str, Any]) -> None:
    """A model that would say something else the second time is not asked a second time."""
    pipeline = an_agent(REFUND, by=lambda asked: answer("Done.") if "refunded" in asked.prompt else REFUND)
    pipeline.crash(**crash)
    assert pipeline.run().answer("r1")["choices"][0]["message"]["content"] == "Done."
    assert lines(refunds) == [{"refunded": "A-1", "cents": 12_900, "for": "r1"}]


def test_a_refund_in_doubt_is_a_dead_letter(refunds: Path) -> None:
    """It names the step, and no second refund is made."""
    pipeline = an_agent(REFUND)
    pipeline.crash(within="turn-0/call-1")
    (letter,) = pipeline.run().dead_letters
    assert letter.code == "once_unknown"
    assert "ctx.once(turn-0/call-1) was begun" in (letter.message or "")
    assert len(lines(refunds)) == 1


def test_an_agent_tells_the_model_what_it_got_wrong(refunds: Path) -> None:
    """An order or a tool there is not, arguments that are no JSON: the model hears of it and goes on."""
    broken = Said(body=tool_calls(("refund", {})).body.replace(b'"{}"', b'"{"'))
    wrong = [tool_calls(("refund", {"order": "B-9"})), tool_calls(("hack", {"order": "A-1"})), broken]
    pipeline = an_agent(*wrong, answer("I cannot."))
    pipeline.run()
    assert [asked.body["messages"][-1]["content"] for asked in pipeline.model.asked[1:]] == [
        '{"error": "no such order; there are A-1, A-2"}',
        '{"error": "no tool is called hack"}',
        '{"error": "no such order; there are A-1, A-2"}',
    ]
    assert lines(refunds) == []


def test_an_agent_that_does_not_end_is_ended(refunds: Path) -> None:
    """Bounded in turns, and so in cost."""
    pipeline = an_agent(by=lambda asked: tool_calls(("look_up", {"order": "A-2"})))
    assert [letter.code for letter in pipeline.run().dead_letters] == ["too_many_turns"]
    assert len(pipeline.model.asked) == agent.TURNS


@pytest.fixture
def vectors_db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMBEDDINGS_DB", str(tmp_path / "v.sqlite"))
    return tmp_path / "v.sqlite"


def test_an_embeddings_job_goes_on_where_it_was(vectors_db: Path) -> None:
    """Of 130 texts in three batches one fails, then the worker crashes: what was stored is not embedded again."""
    texts = [f"text {number}" for number in range(130)]
    one = [1.0, 2.0]
    pipeline = FakePipeline(embeddings.handle, FakeModel(vectors(*[one] * 64), failure(500), vectors(*[one] * 2), vectors(*[one] * 64)))
    pipeline.send(endpoint="/v1/embeddings", body={"input": [*texts, "text 0"]})
    pipeline.crash(settle="r1")
    assert pipeline.run().answer("r1")["stored"] == 130
    sent = [text for asked in pipeline.model.asked for text in asked.body["input"]]
    assert set(sent) == set(texts)
    assert len(sent) == 130 + 64
    with sqlite3.connect(vectors_db) as db:
        assert db.execute("SELECT count(*) FROM vectors").fetchone() == (130,)
    db.close()


def test_a_failed_batch_has_the_class_of_its_failure(vectors_db: Path) -> None:
    """One of two: the other's vectors are stored all the same."""
    pipeline = FakePipeline(embeddings.handle, FakeModel(failure(503), vectors(*[[1.0]] * 36), vectors(*[[1.0]] * 64)))
    pipeline.send(endpoint="/v1/embeddings", body={"input": [f"text {number}" for number in range(100)]})
    result = pipeline.run().result("r1")
    assert [each["class"] for each in result["attempts"]["each"]] == ["overloaded", None]


def test_an_embeddings_job_without_texts_is_refused(vectors_db: Path) -> None:
    """With a code of its own."""
    pipeline = FakePipeline(embeddings.handle)
    pipeline.send(endpoint="/v1/embeddings", body={"input": [1, 2]})
    assert [letter.code for letter in pipeline.run().dead_letters] == ["no_texts"]

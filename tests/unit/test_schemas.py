"""The published schemas against what the code really takes and writes."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

import jsonschema
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import TopicNames
from headrace.decode import decode_retry
from headrace.envelope import Attempt, Job, Position, Record, Request, Response, Trail
from headrace.errors import ErrorClass, Failure
from headrace.outcome import Completed, Dead, Degraded, Dropped, Duplicate, DuplicateOf, Outcome, Retry, Settlement
from headrace.outputs import Outputs

DOCS = Path(__file__).parents[2] / "docs"
TOPICS = TopicNames()
NOW_MS = 1_800_000_000_123
BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
REQUEST = Request(request_id="r-1", body=BODY, metadata={"batch": "7"})
FAILURE = Failure(ErrorClass.TIMEOUT, "no answer within 60 s", code="slow", provider="openai", model="m", called=True)
ATTEMPTS = (Attempt("timeout", 60_000, "openai"),)
ANSWER = Response(b'{"id":"x","choices":[]}', provider="openai", model="m", finish_reason="stop", usage={"total_tokens": 3})


@cache
def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((DOCS / "schemas" / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def accepted(value: dict[str, Any]) -> bool:
    """Whether the decoder takes the value as a request."""
    record = Record("llm_requests_retry", 0, 5, 1, None, orjson.dumps(value), (), NOW_MS)
    return decode_retry(record).fault is None


def job(request: Request | None = REQUEST, request_id: str | None = "r-1") -> Job:
    record = Record("llm_requests_main", 3, 42, 1, b"key", b"{}", [("tenant", b"a")], NOW_MS - 5_000)
    trail = Trail(Position("llm_requests_main", 3, 42), retry_count=1, attempts=(Attempt("rate_limited", 12, "openai"),))
    return Job(record, trail, request_id, "f" * 24 if request_id else None, request)


def results(outcome: Outcome, of: Job | None = None) -> list[dict[str, Any]]:
    """The values `outputs` puts into the results topic."""
    made = Outputs(TOPICS, {}).of(Settlement(of or job(), outcome))
    return [orjson.loads(output.value or b"") for output in made if output.topic == TOPICS.results]


# --- requests --------------------------------------------------------------------------------------------------------

GOOD: list[dict[str, Any]] = [
    {"request_id": "r-1", "body": BODY},
    {"request_id": "r-1", "prompt": "hello"},
    {"request_id": "r-1", "prompt": "", "body": None},
    {"request_id": "A.b_c:9-" * 16, "body": {}},
    {"request_id": "r-1", "body": {"stream": False}, "unknown": 1},
    {"request_id": "r-1", "body": {"input": "x"}, "endpoint": "/v1/embeddings"},
    {"request_id": "r-1", "body": BODY, "priority": "low", "agent_id": "a", "channel": "c", "metadata": {"k": "v"}},
    {"request_id": "r-1", "body": BODY, "created_at": "2027-01-31T12:00:00Z", "deadline_at": "2027-01-31T12:00:00.5+01:00"},
    {"request_id": "r-1", "body": BODY, "retry_count": 2, "next_retry_at": "2027-01-31T12:00:00Z"},
    {"request_id": "r-1", "body": BODY, "next_retry_at": 1_800_000_000},
    {"request_id": "r-1", "body": BODY, "next_retry_at": 1_800_000_000_000.0},
    {"custom_id": "c-1", "method": "POST", "url": "/v1/chat/completions", "body": BODY},
    {"custom_id": "c-1", "url": "/v1/responses", "body": BODY},
]

BAD: list[dict[str, Any]] = [
    {},
    {"request_id": "r-1"},
    {"body": BODY},
    {"request_id": "", "body": BODY},
    {"request_id": "a b", "body": BODY},
    {"request_id": "a\n", "body": BODY},
    {"request_id": "é", "body": BODY},
    {"request_id": "a" * 129, "body": BODY},
    {"request_id": 7, "body": BODY},
    {"request_id": "r-1", "body": BODY, "prompt": "both"},
    {"request_id": "r-1", "prompt": 7},
    {"request_id": "r-1", "body": []},
    {"request_id": "r-1", "body": {"stream": True}},
    {"request_id": "r-1", "body": {"background": True}},
    {"request_id": "r-1", "body": {"model": 7}},
    {"request_id": "r-1", "body": BODY, "endpoint": "/v1/images"},
    {"request_id": "r-1", "body": BODY, "endpoint": None},
    {"request_id": "r-1", "body": BODY, "priority": "urgent"},
    {"request_id": "r-1", "body": BODY, "agent_id": ""},
    {"request_id": "r-1", "body": BODY, "channel": "c" * 257},
    {"request_id": "r-1", "body": BODY, "metadata": {"k": 1}},
    {"request_id": "r-1", "body": BODY, "metadata": {str(i): "" for i in range(17)}},
    {"request_id": "r-1", "body": BODY, "deadline_at": "2027-01-31T12:00:00"},
    {"request_id": "r-1", "body": BODY, "deadline_at": "tomorrow"},
    {"request_id": "r-1", "body": BODY, "retry_count": -1},
    {"request_id": "r-1", "body": BODY, "retry_count": True},
    {"request_id": "r-1", "body": BODY, "next_retry_at": -1},
    {"request_id": "r-1", "body": BODY, "next_retry_at": "soon"},
    {"custom_id": "c-1", "method": "GET", "url": "/v1/chat/completions", "body": BODY},
    {"custom_id": "c-1", "url": "/v1/files", "body": BODY},
    {"custom_id": "c-1", "body": BODY},
    {"custom_id": "c 1", "url": "/v1/chat/completions", "body": BODY},
]


@pytest.mark.parametrize("value", GOOD)
def test_schema_and_decoder_take_the_same_requests(value: dict[str, Any]) -> None:
    """What the schema shows as right is taken."""
    validator("request").validate(value)
    assert accepted(value)


@pytest.mark.parametrize("value", BAD)
def test_schema_and_decoder_refuse_the_same_requests(value: dict[str, Any]) -> None:
    """What the decoder refuses, the schema refuses, and the other way round."""
    assert not validator("request").is_valid(value)
    assert not accepted(value)


def _mixed(*values: object) -> st.SearchStrategy[object]:
    return st.sampled_from(values)


@settings(max_examples=400, deadline=None)
@given(
    value=st.fixed_dictionaries(
        {},
        optional={
            "request_id": _mixed("r-1", "", "a b", None, 7, "a" * 128, "a" * 129),
            "custom_id": _mixed("c-1", "", None),
            "method": _mixed("POST", "GET"),
            "url": _mixed("/v1/completions", "/nowhere"),
            "endpoint": _mixed("/v1/completions", "/nowhere"),
            "body": _mixed(BODY, {}, {"stream": True}, {"stream": None}, {"model": []}, [], None),
            "prompt": _mixed("hello", "", None, 7),
            "agent_id": _mixed("a", "", None),
            "priority": _mixed("high", "normal", "low", "", None),
            "created_at": _mixed("2027-01-31T12:00:00Z", "2027-01-31T12:00:00.123456-08:00", "2027-01-31T12:00:00", "never", None),
            "metadata": _mixed({}, {"a": "b"}, {"a": None}, [], None),
            "retry_count": _mixed(0, 9, -1, 1.5, "1"),
            "next_retry_at": _mixed(0, 1.5, "2027-01-31T12:00:00Z", "never", [], None),
        },
    )
)
def test_schema_and_decoder_agree_on_any_mixture(value: dict[str, Any]) -> None:
    """Right and wrong fields in any mixture: both judge alike."""
    assert validator("request").is_valid(value) == accepted(value)


def test_every_field_of_a_request_is_in_the_schema() -> None:
    """A field added to the model cannot be forgotten in its schema."""
    text = json.dumps(validator("request").schema)
    assert [name for name in Request.model_fields if f'"{name}"' not in text] == []


# --- results ---------------------------------------------------------------------------------------------------------

OUTCOMES: list[Outcome] = [
    Completed(ANSWER, ATTEMPTS, NOW_MS, 1_200),
    Completed(Response({"made": "by a handler"}), (), NOW_MS, 0),
    Degraded(ANSWER, FAILURE, ATTEMPTS, NOW_MS, 1_200),
    Dead(FAILURE, NOW_MS, ATTEMPTS, 61_000),
    Dead(Failure(ErrorClass.ID_CONFLICT, "another content under this id"), NOW_MS, claimed=False),
    Dropped(Failure(ErrorClass.RATE_RULE, "over the rule"), NOW_MS),
    *(Duplicate(of, since, NOW_MS) for of in get_args(DuplicateOf) for since in (None, NOW_MS - 1)),
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_every_result_written_is_what_the_schema_says(outcome: Outcome) -> None:
    """One result for each outcome that has one, valid, and without a field the schema does not name."""
    (value,) = results(outcome)
    validator("result").validate(value)
    assert set(value) <= set(validator("result").schema["properties"])


def test_result_of_an_undecodable_record_names_its_origin() -> None:
    """A record that could not be read still leaves a valid notice that says where it stands."""
    (value,) = results(Dead(Failure(ErrorClass.UNDECODABLE, "not JSON"), NOW_MS, claimed=False), job(None, None))
    validator("result").validate(value)
    assert (value["request_id"], value["origin"]) == (None, "llm_requests_main/3/42")


@pytest.mark.parametrize("error_class", list(ErrorClass))
def test_every_error_class_is_in_the_result_schema(error_class: ErrorClass) -> None:
    """The closed set is the same in the code and in the schema."""
    (value,) = results(Dead(Failure(error_class, "x"), NOW_MS))
    validator("result").validate(value)
    assert len(validator("result").schema["$defs"]["error_class"]["enum"]) == len(ErrorClass)


def _without(name: str) -> dict[str, Any]:
    (value,) = results(OUTCOMES[0])
    return {key: item for key, item in value.items() if key != name}


@pytest.mark.parametrize(
    "value",
    [
        _without("status") | {"status": "done"},
        _without("response"),
        _without("response") | {"response": None},
        _without("error") | {"error": {"class": "timeout", "code": None, "message": ""}},
        _without("completed_at") | {"completed_at": "yesterday"},
        _without("") | {"of": "completed"},
        _without("status") | {"status": "duplicate"},
        _without("attempts") | {"attempts": {"count": -1, "each": []}},
        _without("latency_ms"),
    ],
)
def test_result_schema_refuses_what_we_never_write(value: dict[str, Any]) -> None:
    """The schema has teeth: a completed result without its answer, or with an error, is invalid."""
    assert not validator("result").is_valid(value)


# --- headers ---------------------------------------------------------------------------------------------------------


def test_every_header_written_is_documented() -> None:
    """Each header of every output is a row of the tables in docs/records.md."""
    documented = set(re.findall(r"^\| `([a-z_]+)`", (DOCS / "records.md").read_text(), re.MULTILINE))
    trail = Trail(Position("t", 0, 1), 1, 1, 1, 1, 1, 1, ATTEMPTS, "replay", 1, FAILURE, "00-trace")
    whole = Job(job().record, trail, "r-1", "f" * 24, REQUEST)
    outputs = Outputs(TOPICS, {TOPICS.dlq: 0})
    outcomes = [*OUTCOMES, Retry(FAILURE, ATTEMPTS, NOW_MS, 1, NOW_MS)]
    written = {
        name for outcome in outcomes for output in outputs.of(Settlement(whole, outcome, cut=True)) for name, _ in output.headers
    } - {"tenant"}
    assert written - documented == set()
    assert {"headrace_origin", "headrace_dead_at", "headrace_cut", "headrace_status"} <= written

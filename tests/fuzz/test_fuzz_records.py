"""Mutations of valid records, headers and dead letters: the decoder and the desk give a job or a letter for all of them."""

from __future__ import annotations

import re

import orjson

from headrace.config import TopicNames
from headrace.decode import decode_any, decode_main, decode_retry
from headrace.dlq.alert import alert_of
from headrace.dlq.display import as_json, page
from headrace.dlq.letter import read_letter
from headrace.envelope import Header, Job, Position, Record, Trail
from headrace.errors import ErrorClass, Failure
from headrace.outcome import Dead, Retry, Settlement
from headrace.outputs import Outputs
from headrace.redact import MESSAGE_BYTES
from headrace.trail import trail_fields, write_trail
from tests.support.fuzzing import fuzz

NOW = 1_800_000_000_000
OUTPUTS = Outputs(TopicNames(), {})
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
VALUES = [
    orjson.dumps(value)
    for value in (
        {"request_id": "r-1", "prompt": "hello"},
        {"request_id": "r-1", "body": {"model": "m", "messages": [{"role": "user", "content": "hello"}], "temperature": 0.5, "seed": 7}},
        {"custom_id": "c-1", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": ["a", "b"]}},
        {
            "request_id": "r-2", "endpoint": "/v1/responses", "body": {"input": "x"}, "agent_id": "a", "channel": "c", "priority": "low",
            "created_at": "2027-01-31T12:00:00Z", "deadline_at": "2027-01-31T12:00:00.123+05:30", "metadata": {"k": "v", "ü": "\u202e"},
            "retry_count": 2, "next_retry_at": 1_800_000_000.5,
        },
        {"request_id": "r-3", "prompt": "", "next_retry_at": "2027-10-31T02:30:00+02:00", "retry_count": 0, "unknown": [[[{}]]]},
    )
]  # fmt: skip
TRAIL = Trail(
    Position("llm_requests_main", 3, 77), 2, 1, NOW + 1, NOW + 9, NOW - 5, 99, replay_id="20270131T120000Z-00ff", replay_count=1,
    failure=Failure(ErrorClass.TIMEOUT, "no answer", code="slow", provider="openai", model="m"), traceparent="00-1-2-01",
)  # fmt: skip
ATTEMPTS = b'[{"class":"timeout","latency_ms":60000,"provider":"openai"},{"class":null,"latency_ms":1,"provider":"b"}]'
HEADERS: list[Header] = [
    *write_trail([("tenant", b"a"), ("null", None)], trail_fields(TRAIL)),
    ("headrace_attempts", ATTEMPTS),
    ("traceparent", b"00-1-2-01"),
]


def record(value: bytes | None, headers: list[Header] = []) -> Record:  # noqa: B006  read only
    return Record("llm_requests_retry", 2, 5, 1, b"k", value, headers, NOW)


def judge(job: Job) -> str:
    """What must hold of any job, and what it can be written as; its kind, for the count."""
    assert (job.request is None) == (job.fault is not None)
    assert (job.request_id is None) == (job.fingerprint is None)
    failure = job.fault or Failure(ErrorClass.SERVER_ERROR, "no", called=True)
    if job.request is not None:
        orjson.dumps(job.request.body)
        OUTPUTS.of(Settlement(job, Retry(failure, (), NOW, 0, NOW)))
    for output in OUTPUTS.of(Settlement(job, Dead(failure, NOW))):
        assert all(len(value or b"") <= 2_048 for name, value in output.headers if name.startswith("headrace_"))
    assert len(failure.message.encode()) <= MESSAGE_BYTES
    return failure.message[:40] if job.fault else "request"


def test_fuzz_decoder() -> None:
    """Whatever the bytes: a request that can be sent and written, or a fault that can be written; in every lane, in bounded time."""

    def target(data: bytes) -> str:
        assert decode_any(record(data)).fault is None
        judge(decode_retry(record(data)))
        return judge(decode_main(record(data)))

    found = fuzz(target, VALUES)
    assert found.outcomes["request"] > 0
    assert len(found.outcomes) > 5, "mutations reach the faults"


def test_fuzz_headers() -> None:
    """Whatever stands in our headers, split anywhere into names and values: the lane reads it, bounded, and writes it again."""
    corpus = [b"\n".join(name.encode() + b"=" + (value or b"") for name, value in HEADERS)]
    corpus += [name.encode() + b"=" + (value or b"") for name, value in HEADERS]

    def target(data: bytes) -> str:
        lines = [line.partition(b"=") for line in data.split(b"\n")]
        headers: list[Header] = [(name.decode("utf-8", "surrogateescape"), value if split else None) for name, split, value in lines]
        job = decode_retry(record(VALUES[0], headers))
        judge(decode_main(record(VALUES[0], headers)))
        return judge(job) + "".join(str(part is not None)[0] for part in job.trail)

    assert len(fuzz(target, corpus).outcomes) > 5


def test_fuzz_dead_letter_desk() -> None:
    """Any bytes with any headers are a letter, an alert and a page without a control character."""
    corpus = [value + b"\x00" + b"\n".join(name.encode() + b"=" + (held or b"") for name, held in HEADERS) for value in VALUES]

    def target(data: bytes) -> str:
        value, _, rest = data.partition(b"\x00")
        lines = [line.partition(b"=") for line in rest.split(b"\n")]
        headers: list[Header] = [(name.decode("utf-8", "surrogateescape"), held) for name, _, held in lines]
        letter = read_letter(record(value, headers))
        alert = alert_of(letter, "headrace")
        orjson.dumps(as_json(letter))
        for fact in (alert.code, alert.provider, alert.model, alert.request_id, alert.origin, *page(letter)):
            assert not CONTROL.search(fact or ""), fact
        return letter.error_class

    fuzz(target, corpus)

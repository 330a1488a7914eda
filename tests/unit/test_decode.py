"""Bytes to a Job: any bytes, any lane, and never an exception."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.decode import READABLE_BYTES, decode_any, decode_main, decode_retry, parse_time_ms
from headrace.envelope import ENDPOINTS, Header, Job, Position, Record
from headrace.errors import ErrorClass
from headrace.redact import MESSAGE_BYTES
from headrace.trail import COUNT_MAX, TIME_MAX_MS

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
GOOD = {"request_id": "r-1", "body": BODY}
AT_MS = 1_800_000_000_000
AT = "2027-01-15T08:00:00Z"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
fields = st.sampled_from(
    ["request_id", "custom_id", "method", "url", "body", "prompt", "endpoint", "agent_id", "channel", "priority", "created_at", "deadline_at",
     "metadata", "retry_count", "next_retry_at", "unknown"]
)  # fmt: skip
likely = st.sampled_from(
    ["r-1", "POST", *ENDPOINTS, "high", AT, "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", 1e308, 10**308, BODY, "\ud800"]
)


def record(value: bytes | None, headers: list[Header] | None = None) -> Record:
    return Record("llm_requests_main", 2, 5, 1, b"k", value, headers or [], AT_MS)


def decoded(value: dict[str, Any], headers: dict[str, str] | None = None) -> Job:
    return decode_main(record(json.dumps(value).encode(), [(f"headrace_{n}", v.encode()) for n, v in (headers or {}).items()]))


def fault_of(job: Job) -> tuple[ErrorClass, str]:
    assert job.fault is not None
    return job.fault.error_class, job.fault.message


def check(job: Job) -> None:
    assert (job.request is None) == (job.fault is not None)
    if job.fault is not None:
        assert len(job.fault.message.encode()) <= MESSAGE_BYTES
        assert job.fault.error_class in (ErrorClass.UNDECODABLE, ErrorClass.INVALID_REQUEST)
        assert not job.fault.called
    if job.request is not None:
        orjson.dumps(job.request.body)
    assert (job.request_id is None) == (job.fingerprint is None)


@given(st.binary(max_size=200))
@example(b"")
@example(b"\xff\xfe")
@example(b"[" * 400_000)
@example(b'{"a":' * 50_000)
@example(b'{"request_id":"r","body":' + b'{"a":' * 250 + b"1" + b"}" * 251)
def test_any_bytes_give_a_job(value: bytes) -> None:
    """A request or a fault, in every lane; never an exception, however deep or broken."""
    for decoder in (decode_main, decode_retry):
        check(decoder(record(value)))
    assert decode_any(record(value)).fault is None


@given(st.dictionaries(fields, likely | json_values, max_size=8))
def test_any_json_gives_a_job(value: dict[str, Any]) -> None:
    """Whatever stands in whatever field; what is called a request can be sent as JSON."""
    check(decode_main(record(json.dumps(value).encode())))
    check(decode_main(record(json.dumps(GOOD | value).encode())))


@pytest.mark.parametrize(
    "value",
    [None, b"", b"\xff\xfe", b"null", b"[]", b'"text"', b'{"a":1,"a":2}', b'{"a":1e999}', b'{"a":NaN}', b'{"a":"\\ud800"}', b"{} {}"],
)
def test_what_is_no_object_is_undecodable(value: bytes | None) -> None:
    """A tombstone, other JSON, a key twice, numbers no double holds, half a surrogate pair: each a fault with the record intact."""
    job = decode_main(record(value))
    assert fault_of(job)[0] is ErrorClass.UNDECODABLE
    assert job.record.value == value
    assert job.request_id is None


def test_a_fault_quotes_no_prompt() -> None:
    """A duplicate key, or a value of the wrong kind, is named without what stands in it."""
    bait = "the-secret-prompt"
    for value in (b'{"%s":1,"%s":2}' % (bait.encode(), bait.encode()), json.dumps({"request_id": "r", "prompt": [bait]}).encode()):
        assert bait not in fault_of(decode_main(record(value)))[1]
    assert bait not in fault_of(decoded({**GOOD, "priority": bait}))[1]


@pytest.mark.parametrize("request_id", [None, 7, "", "a" * 129, "a b", "ä", "a\n", "a/b"])
def test_a_request_id_of_another_form_is_refused(request_id: Any) -> None:
    """Without an id nothing is claimed."""
    job = decoded({"request_id": request_id, "prompt": "x"})
    assert fault_of(job)[0] is ErrorClass.INVALID_REQUEST
    assert job.request_id is None


def test_a_number_of_any_length_is_kept() -> None:
    """Seeds and the like are the model's to judge; two that differ are different requests."""
    one, two = (decoded({"request_id": "r", "body": {"seed": 2**70 + more}}) for more in (0, 1))
    assert one.request is not None
    assert one.request.body["seed"] == 2**70
    assert one.fingerprint != two.fingerprint


@pytest.mark.parametrize(
    "more",
    [
        {"prompt": "x"}, {"body": None}, {"body": []}, {"body": {"stream": True}}, {"body": {"background": True}}, {"body": {"model": 7}},
        {"endpoint": "/v1/files"}, {"priority": "urgent"}, {"metadata": {"a": 1}}, {"metadata": {str(n): "" for n in range(17)}},
        {"created_at": "yesterday"}, {"created_at": "2027-01-15T08:00:00"}, {"deadline_at": "2027-01-15T08:00:00"}, {"retry_count": -1},
        {"retry_count": True}, {"retry_count": "1"}, {"next_retry_at": "2027-01-15T08:00:00"}, {"next_retry_at": -1}, {"next_retry_at": True},
        {"next_retry_at": []}, {"agent_id": ""},
    ],
)  # fmt: skip
def test_a_faulty_request_keeps_its_id_and_a_fingerprint(more: dict[str, Any]) -> None:
    """It is claimed like any other before its fault ends it, so a copy of it is a duplicate."""
    job = decoded(GOOD | more)
    assert fault_of(job)[0] is ErrorClass.INVALID_REQUEST
    assert job.request_id == "r-1"
    assert job.fingerprint


def test_a_prompt_is_one_user_message() -> None:
    """The shorthand becomes the chat body; its fingerprint is of the prompt."""
    job = decoded({"request_id": "r", "prompt": "hi"})
    assert job.request is not None
    assert job.request.body == {"messages": [{"role": "user", "content": "hi"}]}
    assert job.fingerprint != decoded({"request_id": "r", "prompt": "ho"}).fingerprint


def test_a_batch_line_is_a_request() -> None:
    """`custom_id`, `method`, `url` and `body` are understood; the address is the endpoint."""
    job = decoded({"custom_id": "c", "method": "POST", "url": "/v1/embeddings", "body": {"input": "x"}})
    assert job.request is not None
    assert (job.request.request_id, job.request.endpoint) == ("c", "/v1/embeddings")


@pytest.mark.parametrize("more", [{"method": "GET"}, {"url": "/v1/files"}, {"url": None}, {"body": None}, {"body": None, "prompt": "x"}])
def test_another_batch_line_is_refused(more: dict[str, Any]) -> None:
    """A method or address we do not serve, or no body."""
    job = decoded({"custom_id": "c", "method": "POST", "url": ENDPOINTS[0], "body": BODY} | more)
    assert fault_of(job)[0] is ErrorClass.INVALID_REQUEST
    assert job.request_id == "c"


@given(st.permutations(["model", "temperature", "n", "messages"]))
def test_the_fingerprint_is_of_the_content_alone(order: list[str]) -> None:
    """Order of keys and everything outside endpoint and body change nothing; either of them does."""
    body = {"model": "m", "temperature": 0.5, "n": 1, "messages": []}
    same = decoded({"request_id": "x", "priority": "low", "agent_id": "b", "body": {k: body[k] for k in order}}).fingerprint
    assert same == decoded({"request_id": "y", "body": body}).fingerprint
    assert same != decoded({"request_id": "x", "body": body | {"n": 2}}).fingerprint
    assert same != decoded({"request_id": "x", "body": body, "endpoint": "/v1/responses"}).fingerprint


def test_what_the_json_says_of_retries_is_honoured() -> None:
    """A hand-written producer may count and date its retries in the JSON."""
    trail = decoded(GOOD | {"retry_count": 3, "next_retry_at": AT, "deadline_at": AT}).trail
    assert (trail.retry_count, trail.next_retry_at_ms, trail.deadline_at_ms) == (3, AT_MS, AT_MS)
    assert decoded(GOOD | {"retry_count": 10**30}).trail.retry_count == COUNT_MAX


def test_headers_beat_json() -> None:
    """A replay's count of 0 does too; a header that cannot be read leaves the time to the JSON."""
    value = GOOD | {"retry_count": 3, "next_retry_at": AT, "deadline_at": AT}
    trail = decoded(value, {"retry_count": "0", "next_retry_at": "5", "deadline_at": "6"}).trail
    assert (trail.retry_count, trail.next_retry_at_ms, trail.deadline_at_ms) == (0, 5, 6)
    assert decoded(value, {"next_retry_at": "soon"}).trail.next_retry_at_ms == AT_MS


def test_lanes_differ_in_whom_they_trust() -> None:
    """An origin in main counts for nothing; in retry and dlq it is ours."""
    given_origin: list[Header] = [("headrace_origin", b"llm_requests_main/0/1")]
    value = json.dumps(GOOD).encode()
    assert decode_main(record(value, given_origin)).trail.origin == Position("llm_requests_main", 2, 5)
    for decoder in (decode_retry, decode_any):
        assert decoder(record(value, given_origin)).trail.origin == Position("llm_requests_main", 0, 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (AT, AT_MS), ("2027-01-15T13:30:00+05:30", AT_MS), ("2027-01-15T08:00:00.25Z", AT_MS + 250), (AT_MS, AT_MS), (AT_MS // 1000, AT_MS),
        (AT_MS / 1000 + 0.5, AT_MS + 500), (0, 0), (None, None), (10**300, TIME_MAX_MS), ("1960-01-01T00:00:00Z", 0),
        ("2027-10-31T02:30:00+02:00", 1_824_942_600_000), ("2027-10-31T02:30:00+01:00", 1_824_946_200_000),
    ],
)  # fmt: skip
def test_times_are_understood_in_each_form(value: object, expected: int | None) -> None:
    """RFC 3339 with any offset (both sides of a clock's fold), epoch seconds, epoch milliseconds: UTC, and bounded."""
    assert parse_time_ms(value, "t") == expected


@given(st.datetimes(min_value=datetime(1973, 3, 4), max_value=datetime(9999, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001  hypothesis wants them so
def test_a_time_is_the_same_in_every_form(moment: datetime) -> None:
    """Text and both numbers say the same moment."""
    moment = moment.replace(microsecond=0)
    seconds = int(moment.timestamp())
    assert parse_time_ms(moment.isoformat(), "t") == parse_time_ms(seconds * 1000, "t") == seconds * 1000
    if seconds < 100_000_000_000:
        assert parse_time_ms(seconds, "t") == seconds * 1000


@given(st.integers(0, 999_999))
def test_a_time_is_never_taken_for_an_earlier_one(micros: int) -> None:
    """To the millisecond exactly, and the rest of one rounded up: a retry is not called early by a float's rounding."""
    found = parse_time_ms(f"2027-01-15T08:00:00.{micros:06d}Z", "t")
    assert found == AT_MS + -(-micros // 1000)
    seconds = AT_MS / 1000 + micros / 1_000_000
    assert (parse_time_ms(seconds, "t") or 0) >= seconds * 1000


def test_a_value_larger_than_is_read_is_not_parsed() -> None:
    """Of one byte too many nothing is read, not even the id: what is small when compressed could take gigabytes when parsed."""
    frame = b'{"request_id":"r-1","prompt":"%s"}'
    fits = frame % (b"x" * (READABLE_BYTES - len(frame) + 2))
    assert decode_main(record(fits)).request is not None
    job = decode_main(record(fits + b" "))
    assert fault_of(job) == (ErrorClass.TOO_LARGE, f"the value has {READABLE_BYTES + 1} bytes; at most {READABLE_BYTES} are read")
    assert job.request_id is None


def test_a_fault_names_fields_only() -> None:
    """The names of metadata are the producer's: a fault in one of them does not repeat it."""
    _, message = fault_of(decoded(GOOD | {"metadata": {"my secret diary": 1}}))
    assert message == "metadata: Input should be a valid string"

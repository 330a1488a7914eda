"""What each outcome writes, row by row of the outcome table, and within which bounds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import TopicNames
from headrace.envelope import Attempt, Header, Job, Position, Record, Request, Response, Trail
from headrace.errors import ErrorClass, Failure
from headrace.outcome import Completed, Dead, Deferred, Degraded, Dropped, Duplicate, Moved, Noted, Outcome, Output, Retry, Settlement
from headrace.outputs import Outputs, rfc3339, size_of
from headrace.redact import MESSAGE_BYTES
from headrace.trail import ATTEMPTS_BYTES, COUNT_MAX, TIME_MAX_MS, read_trail

TOPICS = TopicNames()
NOW = 1_800_000_000_123
REQUEST = Request(request_id="r-1", body={"model": "m"}, agent_id="a", channel="c", metadata={"batch": "7"})
ORIGIN = Position(TOPICS.main, 9, 99)
EARLIER = Attempt("rate_limited", 12, "openai")
CALL = Attempt(None, 40, "openai")
FAILED = Attempt("timeout", 60_000, "openai")
FAILURE = Failure(ErrorClass.TIMEOUT, "no answer", code="slow", provider="openai", model="m", called=True)
ANSWER = Response(
    b'{"id": 1,\n "x": 1.50}', provider="openai", model="m", provider_request_id="q", finish_reason="stop", usage={"total_tokens": 3}
)
THEIRS: list[Header] = [("tenant", b"a"), ("empty", None), ("tenant", b"\xff"), ("traceparent", b"00-1-2-01")]
OURS: list[Header] = [("headrace_hop", b"2"), ("headrace_hop", b"3"), ("headrace_retry_count", b"1"), ("headrace_made_up", b"x")]

COMPLETED = Completed(ANSWER, (CALL,), NOW, 40)
DEGRADED = Degraded(ANSWER, FAILURE, (FAILED,), NOW, 40)
RETRY = Retry(FAILURE, (FAILED,), NOW + 5_000, 70_000, NOW)
DEAD = Dead(FAILURE, NOW, (FAILED,), 70_000)
CONFLICT = Dead(Failure(ErrorClass.ID_CONFLICT, "another content"), NOW, claimed=False)
DROPPED = Dropped(Failure(ErrorClass.RATE_RULE, "low priority"), NOW)


def a_job(
    *,
    headers: list[Header] | None = None,
    value: bytes | None = b'{"v":1}',
    request: Request | None = REQUEST,
    timestamp_ms: int = NOW - 5_000,
    **trail: Any,
) -> Job:
    record = Record(TOPICS.retry, 3, 42, 1, b"\x00key", value, THEIRS + OURS if headers is None else headers, timestamp_ms)
    known = Trail(ORIGIN, **{"hop": 3, "retry_count": 1, "attempts": (EARLIER,), "elapsed_ms": 12, **trail})
    return Job(record, known, "r-1" if request else None, "f" * 24 if request else None, request)


def written(outcome: Outcome, job: Job | None = None, *, cut: bool = False, limit: int = 1 << 20, notices: bool = True) -> list[Output]:
    limits = {TOPICS.dlq: limit, TOPICS.retry: limit, TOPICS.results: limit}
    return Outputs(TOPICS, limits, notices).of(Settlement(job or a_job(), outcome, "token", cut=cut))


def trail_of(output: Output) -> Trail:
    """What the next reader of the record makes of its headers."""
    return read_trail(Record(output.topic, 0, 0, 1, output.key, output.value, output.headers, 0), trusted=True)


def value_of(output: Output) -> dict[str, Any]:
    return dict(orjson.loads(output.value or b""))


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (COMPLETED, [("results", "completed")]),
        (DEGRADED, [("results", "degraded"), ("dlq", None)]),
        (RETRY, [("retry", None)]),
        (Deferred(NOW, "limit"), [("retry", None)]),
        (Deferred(NOW, "a copy", copy=True), [("retry", None)]),
        (DEAD, [("dlq", None), ("results", "failed")]),
        (CONFLICT, [("dlq", None), ("results", "duplicate")]),
        (DROPPED, [("results", "failed")]),
        (Duplicate("completed", NOW, NOW), [("results", "duplicate")]),
        (Moved(4), [("later", None)]),
        (Noted(), []),
    ],
)
def test_each_outcome_writes_what_its_row_says(outcome: Outcome, expected: list[tuple[str, str | None]]) -> None:
    """Topics and statuses, in order; nothing else."""
    found = [(o.topic, value_of(o)["status"] if o.topic == TOPICS.results else None) for o in written(outcome)]
    assert found == [(getattr(TOPICS, name), status) for name, status in expected]


def test_duplicate_notices_can_be_off() -> None:
    """Those of duplicates; a conflict's dead letter keeps its own."""
    assert written(Duplicate("dead", None, NOW), notices=False) == []
    assert len(written(CONFLICT, notices=False)) == 2


@pytest.mark.parametrize("outcome", [RETRY, Deferred(NOW, "limit"), DEAD, DEGRADED])
def test_the_record_goes_on_as_it_was(outcome: Outcome) -> None:
    """Key and value bytes, and the producer's headers in order; ours are replaced, never appended."""
    output = next(o for o in written(outcome) if o.topic != TOPICS.results)
    assert (output.key, output.value) == (b"\x00key", b'{"v":1}')
    assert list(output.headers[: len(THEIRS)]) == THEIRS
    names = [name for name, _ in output.headers[len(THEIRS) :]]
    assert len(names) == len(set(names))
    assert all(name.startswith("headrace_") for name in names)
    assert "headrace_made_up" not in names


@pytest.mark.parametrize("value", [None, b"", b"\xff\xfe"])
def test_a_dead_letter_of_anything_is_byte_for_byte(value: bytes | None) -> None:
    """A tombstone stays one; an id that could not be read leaves the origin as the notice's key."""
    letter, notice = written(Dead(Failure(ErrorClass.UNDECODABLE, "no JSON"), NOW), a_job(value=value, request=None))
    assert letter.value == value
    assert notice.key == b"llm_requests_main/9/99"
    assert value_of(notice)["request_id"] is None
    assert value_of(notice)["origin"] == str(ORIGIN)


def test_a_retry_spends_an_attempt_and_adds_a_hop() -> None:
    """Count, hop, due time, sums and the list of attempts, as the next hop reads them."""
    trail = trail_of(written(RETRY)[0])
    assert (trail.origin, trail.hop, trail.retry_count, trail.next_retry_at_ms, trail.elapsed_ms) == (ORIGIN, 4, 2, NOW + 5_000, 70_000)
    assert trail.attempts == (EARLIER, FAILED)
    assert trail.first_failed_at_ms == NOW
    assert trail.failure is not None
    assert trail.failure.error_class is ErrorClass.TIMEOUT
    assert trail_of(written(RETRY, a_job(first_failed_at_ms=5))[0]).first_failed_at_ms == 5


def test_a_deferral_spends_nothing() -> None:
    """The hop grows by the claim's holder, a copy keeps it; count, sums and attempts stay."""
    for copy, hop in ((False, 4), (True, 3)):
        trail = trail_of(written(Deferred(NOW + 9, "limit", copy=copy))[0])
        assert (trail.hop, trail.retry_count, trail.next_retry_at_ms, trail.elapsed_ms) == (hop, 1, NOW + 9, 12)
        assert trail.attempts == (EARLIER,)


def test_a_dead_letter_says_when_and_why() -> None:
    """No due time is left, the calls are counted, the class is there."""
    trail = trail_of(written(DEAD, a_job(next_retry_at_ms=NOW - 1))[0])
    assert (trail.next_retry_at_ms, trail.retry_count, trail.attempts, trail.elapsed_ms) == (None, 2, (EARLIER, FAILED), 70_000)
    assert ("headrace_dead_at", str(NOW).encode()) in written(DEAD)[0].headers


def test_a_never_called_dead_letter_spent_nothing() -> None:
    """Expired: the count is what it was."""
    assert trail_of(written(Dead(Failure(ErrorClass.EXPIRED, "late"), NOW))[0]).retry_count == 1


def test_a_result_says_what_clients_need() -> None:
    """Every field of the contract; the provider's JSON byte for byte; status, origin and fingerprint as headers."""
    (output,) = written(COMPLETED)
    value = value_of(output)
    assert ANSWER.body in (output.value or b"")
    assert value["response"] == {"status_code": 200, "request_id": "q", "body": {"id": 1, "x": 1.5}}
    assert value["attempts"]["count"] == 2
    assert [row["class"] for row in value["attempts"]["each"]] == ["rate_limited", None]
    assert (value["queued_ms"], value["latency_ms"], value["error"]) == (5_000 - 40, 40, None)
    assert (value["created_at"], value["completed_at"]) == (rfc3339(NOW - 5_000), rfc3339(NOW))
    assert (value["agent_id"], value["channel"], value["metadata"]) == ("a", "c", {"batch": "7"})
    assert output.key == b"r-1"
    assert dict(output.headers) == {
        "headrace_status": b"completed",
        "headrace_origin": str(ORIGIN).encode(),
        "headrace_fingerprint": b"f" * 24,
    }


def test_notices_say_of_what_and_since_when() -> None:
    """A client can seek the answer by time."""
    value = value_of(written(Duplicate("completed", NOW, NOW + 1))[0])
    assert (value["of"], value["since"], value["error"]) == ("completed", rfc3339(NOW), None)
    assert value_of(written(Duplicate("waiting", None, NOW))[0])["since"] is None
    conflict = value_of(written(CONFLICT)[1])
    assert (conflict["of"], conflict["error"]["class"]) == ("conflict", "id_conflict")
    assert "of" not in value_of(written(DEAD)[1])


@pytest.mark.parametrize("timestamp_ms", [-1, 0, -(2**63), 2**63 - 1, TIME_MAX_MS + 1])
@pytest.mark.parametrize(
    "created_at",
    [
        None,
        datetime(1, 1, 1, tzinfo=UTC),
        datetime.fromisoformat("0001-01-01T00:00:00+23:59"),
        datetime.fromisoformat("9999-12-31T23:59:59-23:59"),
    ],
)
def test_a_time_nobody_could_mean_spoils_no_result(timestamp_ms: int, created_at: datetime | None) -> None:
    """Producers choose timestamps: the answer that was paid for is written whatever they say, with a time that reads as one."""
    job = a_job(timestamp_ms=timestamp_ms, request=REQUEST.model_copy(update={"created_at": created_at}))
    (output,) = written(COMPLETED, job)
    assert datetime.fromisoformat(value_of(output)["created_at"]).tzinfo is UTC
    assert value_of(written(Dead(FAILURE, timestamp_ms), job)[1])["status"] == "failed"


@given(st.integers(-62_135_596_800_000, TIME_MAX_MS))
def test_times_are_rfc_3339(ms: int) -> None:
    """To the millisecond, in four digits of year."""
    text = rfc3339(ms)
    assert len(text) == 24
    assert text.endswith("Z")
    moment = datetime.fromisoformat(text)
    assert (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000 == pytest.approx(ms, abs=0.1)


def test_a_move_keeps_the_record_and_names_its_due_time() -> None:
    """Headers as they are, origin and due time last, once, wherever they stood before; the wheel is the partition."""
    headers: list[Header] = [*THEIRS, ("headrace_next_retry_at", b"1"), ("headrace_hop", b"3"), ("headrace_origin", b"nonsense")]
    job = a_job(headers=headers, next_retry_at_ms=NOW + 9_000)
    (output,) = written(Moved(4), job)
    assert (output.topic, output.partition, output.key, output.value) == (TOPICS.later, 2, b"\x00key", b'{"v":1}')
    ours = [("headrace_hop", b"3"), ("headrace_origin", str(ORIGIN).encode()), ("headrace_next_retry_at", str(NOW + 9_000).encode())]
    assert list(output.headers) == [*THEIRS, *ours]


@given(
    message=st.text(max_size=4_000), code=st.none() | st.text(st.characters(codec="utf-8"), max_size=600), model=st.none() | st.text(max_size=600),
    attempts=st.lists(st.builds(Attempt, st.none() | st.just("timeout"), st.integers(0, TIME_MAX_MS), st.text(st.characters(codec="utf-8"), max_size=900)), max_size=20),
)  # fmt: skip
def test_our_headers_are_bounded(message: str, code: str | None, model: str | None, attempts: list[Attempt]) -> None:
    """Whatever failure and attempts come: a message of 1 KiB, attempts of 2 KiB at most, all of it UTF-8."""
    failure = Failure(ErrorClass.INVALID_RESPONSE, message, code=code, provider="p", model=model, called=True)
    job = a_job(attempts=tuple(attempts), retry_count=COUNT_MAX)
    for outcome in (Retry(failure, (FAILED,), NOW, 1, NOW), Dead(failure, NOW, (FAILED,))):
        ours = {name: value or b"" for name, value in written(outcome, job)[0].headers if name.startswith("headrace_")}
        assert len(ours["headrace_error_message"]) <= MESSAGE_BYTES
        assert len(ours["headrace_attempts"]) <= ATTEMPTS_BYTES
        assert all(len(value) <= 512 for name, value in ours.items() if name not in ("headrace_error_message", "headrace_attempts"))
        for value in ours.values():
            value.decode()


@given(
    key=st.none() | st.binary(max_size=3_000), value=st.binary(max_size=60_000),
    theirs=st.lists(st.tuples(st.text(max_size=30), st.none() | st.binary(max_size=9_000)), max_size=6), limit=st.integers(16_384, 40_000),
)  # fmt: skip
def test_a_cut_dead_letter_fits_its_topic(key: bytes | None, value: bytes, theirs: list[Header], limit: int) -> None:
    """What the broker refused by itself is cut to the limit, flagged with what it was, its origin and class kept; what fits is not cut."""
    job = a_job(headers=theirs)
    job = job._replace(record=job.record._replace(key=key, value=value * 2))
    whole, cut = (written(DEAD, job, cut=flag, limit=limit)[0] for flag in (False, True))
    if size_of(whole) <= limit:
        assert cut == whole
        return
    assert size_of(cut) <= limit
    assert (job.record.value or b"").startswith(cut.value or b"")
    assert trail_of(cut).origin == ORIGIN
    assert trail_of(cut).failure is not None
    foreign = [h for h in theirs if not h[0].startswith("headrace_")]
    assert dict(cut.headers)["headrace_cut"] == f"value {len(job.record.value or b'')} bytes, headers {len(foreign)}".encode()


def test_an_uncut_dead_letter_is_never_shortened() -> None:
    """Only a refusal by the broker itself cuts: compression may make it fit."""
    job = a_job(value=b"x" * 100_000)
    (letter, _) = written(DEAD, job, limit=16_384)
    assert letter.value == job.record.value


def test_too_large_is_measured_before_compression() -> None:
    """At the topic's limit exactly it passes; a byte more must be tried alone. A topic of unknown limit has Kafka's 1 MiB."""
    outputs = Outputs(TOPICS, {TOPICS.results: 1_000})
    fits = Output(TOPICS.results, b"k" * 100, b"v" * (1_000 - 228))
    assert size_of(fits) == 1_000
    assert not outputs.too_large(fits)
    assert outputs.too_large(fits._replace(headers=[("a", b"")]))
    assert not outputs.too_large(fits._replace(topic="other"))
    assert outputs.too_large(Output("other", None, b"v" * (1 << 20)))


@pytest.mark.parametrize("outcome", [DEAD, CONFLICT, DROPPED, Duplicate("completed", NOW, NOW)])
def test_a_notice_is_never_too_large(outcome: Outcome) -> None:
    """Metadata that would take it over the results' limit is left out of it; there is nothing to settle instead of a notice."""
    long = REQUEST.model_copy(update={"metadata": {"k": "x" * 30_000}, "agent_id": "\x01" * 256, "channel": "ü" * 256})
    notice = written(outcome, a_job(request=long), limit=20_000)[-1]
    told = orjson.loads(notice.value or b"")
    assert (told["metadata"], told["agent_id"]) == (None, "\x01" * 256)
    assert size_of(notice) <= 20_000
    whole = orjson.loads(written(outcome, a_job(request=long), limit=40_000)[-1].value or b"")
    assert whole["metadata"] == {"k": "x" * 30_000}

"""The pipeline's own headers: what is written is read back, and what others write there harms nobody."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.envelope import Attempt, Header, Position, Record, Trail
from headrace.errors import ErrorClass, Failure
from headrace.redact import MESSAGE_BYTES
from headrace.trail import (
    ATTEMPTS_BYTES,
    COUNT_MAX,
    LAST_ATTEMPTS,
    TIME_MAX_MS,
    UNREADABLE_HEADERS,
    dump_attempts,
    foreign_headers,
    headers_of,
    own_headers,
    read_trail,
    trail_fields,
    write_trail,
)

HERE = Position("t", 3, 7)
NAMES = (*trail_fields(Trail(HERE)), "error_class", "error_code", "error_message", "provider", "model")

text = st.text(st.characters(codec="utf-8"), max_size=40)
times = st.integers(0, TIME_MAX_MS)
counts = st.integers(0, COUNT_MAX)
positions = st.builds(Position, st.text("ab.-_/", min_size=1, max_size=249), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
attempts = st.builds(Attempt, st.none() | st.sampled_from([c.value for c in ErrorClass]), times, text)
failures = st.builds(
    Failure, st.sampled_from(ErrorClass), text,
    code=st.none() | text.filter(bool), provider=st.none() | text.filter(bool), model=st.none() | text.filter(bool),
)  # fmt: skip
trails = st.builds(
    Trail, origin=positions, hop=counts, retry_count=counts, next_retry_at_ms=st.none() | times, deadline_at_ms=st.none() | times,
    first_failed_at_ms=st.none() | times, elapsed_ms=times, attempts=st.lists(attempts, max_size=4).map(tuple),
    replay_id=st.none() | st.text("abc-01", min_size=1, max_size=64), replay_count=counts, failure=st.none() | failures,
    traceparent=st.none(),
)  # fmt: skip
headers = st.lists(
    st.tuples(st.sampled_from([f"headrace_{name}" for name in NAMES]) | st.just("traceparent") | st.text(max_size=20),
              st.none() | st.binary(max_size=64) | st.integers(-(2**70), 2**70).map(lambda n: str(n).encode()) | st.binary(max_size=3000)),
    max_size=12,
)  # fmt: skip


def record(of: list[Any] | tuple[Any, ...] = ()) -> Record:
    return Record(*HERE, 1, b"k", b"v", of, 0)


def encoded(fields: dict[str, Any]) -> list[Header]:
    return [(f"headrace_{name}", str(value).encode()) for name, value in fields.items()]


@given(trails, headers)
def test_what_is_written_is_read_back(trail: Trail, before: list[Header]) -> None:
    """Any trail survives the way through headers, whatever stood in them before."""
    written = write_trail([h for h in before if h[0] != "traceparent"], trail_fields(trail))
    assert read_trail(record(written), trusted=True) == trail


@given(headers, st.booleans())
@example([("headrace_attempts", b'[{"provider":' + b"[" * 1016 + b"]" * 1016 + b"}]")], True)
@example([("headrace_attempts", b'[{"latency_ms":"1e9"}]')], True)
@example([("headrace_attempts", b'{"a":1}')], True)
@example([("headrace_origin", "t/٣/٤".encode())], True)
@example([("headrace_hop", "٣".encode())], True)
@example([("headrace_next_retry_at", b"9" * 18)], True)
def test_hostile_headers_never_raise_and_are_bounded(hostile: list[Header], trusted: bool) -> None:
    """Whatever bytes stand under our names: a trail comes out, every part of it within its bound, and it can be written again."""
    trail = read_trail(record(hostile), trusted=trusted)
    assert all(0 <= n <= COUNT_MAX for n in (trail.hop, trail.retry_count, trail.replay_count))
    for at_ms in (trail.next_retry_at_ms, trail.deadline_at_ms, trail.first_failed_at_ms, trail.elapsed_ms):
        assert at_ms is None or 0 <= at_ms <= TIME_MAX_MS
    assert len(trail.attempts) <= LAST_ATTEMPTS
    assert all(len(a.provider) <= 64 and 0 <= a.latency_ms <= TIME_MAX_MS for a in trail.attempts)
    assert len(trail.replay_id or "") <= 64
    assert len(trail.traceparent or "") <= 64
    if trail.failure is not None:
        assert len(trail.failure.message) <= MESSAGE_BYTES
        assert len(trail.failure.code or "") <= 128
    again = write_trail(hostile, trail_fields(trail))
    assert all(len(value or b"") <= ATTEMPTS_BYTES for name, value in again if name.startswith("headrace_"))


@given(headers, trails)
def test_producers_headers_stay_and_ours_are_replaced(before: list[Header], trail: Trail) -> None:
    """The producer's headers come out first, untouched and in order; of each of ours exactly one stands behind them."""
    written = write_trail(before, trail_fields(trail))
    theirs = [h for h in before if not h[0].startswith("headrace_")]
    assert written[: len(theirs)] == theirs
    ours = [name for name, _ in written[len(theirs) :]]
    assert len(ours) == len(set(ours))
    assert all(name.startswith("headrace_") for name in ours)


@given(headers)
def test_origin_and_hop_are_believed_only_where_trusted(hostile: list[Header]) -> None:
    """In main a producer cannot name another record's origin, nor raise the hop, without a replay id."""
    forged = [h for h in hostile if h[0] != "headrace_replay_id"] + encoded({"origin": "other/0/1", "hop": 9})
    trail = read_trail(record(forged), trusted=False)
    assert (trail.origin, trail.hop) == (HERE, 0)
    assert read_trail(record(forged), trusted=True)[:2] == (Position("other", 0, 1), 9)
    assert read_trail(record([*forged, ("headrace_replay_id", b"r")]), trusted=False)[:2] == (Position("other", 0, 1), 9)


@pytest.mark.parametrize(
    "origin", ["", "t", "t/1", "/1/2", "t/-1/2", "t/1/x", "t/1/²", "t/1/" + "1" * 20, "t/" + "1" * 11 + "/1", "t" * 299 + "/1/2"]
)
def test_an_origin_that_is_none_leaves_the_record_its_own(origin: str) -> None:
    """Without a readable origin the hop counts for nothing either."""
    trail = read_trail(record(encoded({"origin": origin, "hop": 5})), trusted=True)
    assert (trail.origin, trail.hop) == (HERE, 0)


@given(
    st.lists(st.builds(Attempt, st.none() | st.just("timeout"), times, st.text(st.characters(codec="utf-8"), max_size=3000)), max_size=40)
)
def test_attempts_take_two_kib_at_most_and_keep_the_latest(many: list[Attempt]) -> None:
    """The last 16, fewer where they are long; what stays is the end of the list, in order."""
    dumped = dump_attempts(many)
    if not many:
        assert dumped is None
        return
    assert dumped is not None
    assert len(dumped.encode()) <= ATTEMPTS_BYTES
    kept = [(row["class"], row["latency_ms"], row["provider"]) for row in orjson.loads(dumped)]
    assert len(kept) <= LAST_ATTEMPTS
    assert kept == [(a.error_class, a.latency_ms, a.provider) for a in many][len(many) - len(kept) :]


def test_of_attempts_too_long_the_oldest_go() -> None:
    """What happened last tells most."""
    many = [Attempt("timeout", n, "p" * 500) for n in range(8)]
    assert [row["latency_ms"] for row in orjson.loads(dump_attempts(many) or "")] == [5, 6, 7]


def test_attempts_of_usual_length_are_all_kept() -> None:
    """Sixteen attempts at a provider of usual name fit."""
    many = [Attempt("invalid_response", 60_000, "openai-eu-west-1") for _ in range(20)]
    assert len(orjson.loads(dump_attempts(many) or "")) == LAST_ATTEMPTS


def test_of_repeated_headers_the_last_counts() -> None:
    """And one that is no UTF-8, has no value or is too long counts as absent."""
    found = own_headers(
        [("headrace_hop", b"1"), ("headrace_hop", b"2"), ("headrace_hop", b"\xff"), ("headrace_hop", None), ("headrace_hop", b"3" * 2049)]
    )
    assert found == {"hop": "2"}


def test_no_headers_are_a_fresh_trail() -> None:
    """A producer's first record begins at itself."""
    assert read_trail(record(), trusted=True) == Trail(HERE)
    assert read_trail(record([("tenant", b"a")]), trusted=True) == Trail(HERE)


def test_a_long_message_is_cut_to_a_kib() -> None:
    """In bytes of UTF-8, not in characters."""
    fields = trail_fields(Trail(HERE, failure=Failure(ErrorClass.TIMEOUT, "ä" * 5000, code="c" * 500, model="m" * 500)))
    assert len(str(fields["error_message"]).encode()) <= MESSAGE_BYTES
    assert len(str(fields["error_code"]).encode()) <= 128
    assert len(str(fields["model"]).encode()) <= 128


def _raise(error: BaseException) -> Any:
    raise error


def test_headers_the_client_cannot_read_are_one_flag() -> None:
    """A name that is no UTF-8 makes the client fail, in either of its two ways; one header stands for all, and stays."""
    unreadable = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    broken = SystemError("returned a result with an exception set")
    broken.__cause__ = unreadable
    for error in (unreadable, broken):
        found = headers_of(SimpleNamespace(headers=lambda error=error: _raise(error)))
        assert found == UNREADABLE_HEADERS
        assert foreign_headers(found) == list(UNREADABLE_HEADERS)
    assert headers_of(SimpleNamespace(headers=lambda: None)) == ()


def test_another_system_error_is_not_hidden() -> None:
    """What is no matter of names is raised."""
    with pytest.raises(SystemError):
        headers_of(SimpleNamespace(headers=lambda: _raise(SystemError("other"))))

"""A dead letter can hold anything; reading it gives bounded facts and never an exception."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.dlq.letter import UNKNOWN, read_letter
from headrace.envelope import Position, Record

from .letters import API_KEY, CANARY, DLQ, letter, record


def test_reads_what_the_engine_wrote() -> None:
    """Every fact the engine puts into a dead letter is read back."""
    read = letter(offset=7, agent_id="a-1", channel="mail", headers={"replay_count": "2"})
    assert (read.request_id, read.agent_id, read.channel) == ("r-1", "a-1", "mail")
    assert (read.error_class, read.code, read.provider, read.model) == ("timeout", "read_timeout", "openai", "gpt-4o-mini")
    assert read.origin == Position("llm_requests_main", 0, 7)
    assert read.position == Position(DLQ, 0, 7)
    assert (read.dead_at_ms, read.first_failed_at_ms, read.replay_count) == (1_790_000_100_007, 1_790_000_000_000, 2)
    assert len(read.trail.attempts) == 3


def test_message_is_masked_again() -> None:
    """Headers are untrusted: a prompt quoted or a key in the message is masked on reading."""
    read = letter(headers={"error_message": f"bad key {API_KEY} in '{CANARY}'"})
    assert read.message is not None
    assert "CANARY" not in read.message


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"\xa2", b"\xff\xfe"), (None, None), (b"", b""), (b"k", b"[" * 400_000), (b"k", b'"text"'), (b"k", b"{" + b"\x00" * 900_000)],
    ids=["binary", "tombstone", "empty", "deep", "no-object", "large"],
)
def test_hostile_values_are_letters_too(key: bytes | None, value: bytes | None) -> None:
    """Field cases 13 and 14: undecodable bytes and tombstones give a letter with the bytes intact and nothing made up."""
    odd = Record(DLQ, 1, 9, 1, key, value, [("user\udcff", b"\xff\x00"), ("x", None), ("headrace_hop", b"\xff")], 5)
    read = read_letter(odd)
    assert read.record.key == key
    assert read.record.value == value
    assert (read.request_id, read.agent_id, read.error_class) == (None, None, UNKNOWN)
    assert (read.dead_at_ms, read.origin) == (5, Position(DLQ, 1, 9))


def test_request_id_must_look_like_one() -> None:
    """A request id with control characters is no request id: it would reach logs and terminals."""
    assert letter(request_id="\x1b[31mred").request_id is None


def test_origin_must_name_a_topic() -> None:
    """An origin whose topic is free text falls back to the letter's own position."""
    assert letter(offset=3, headers={"origin": f"{CANARY} said/0/1"}).origin == Position(DLQ, 0, 3)


@given(
    value=st.none() | st.binary(max_size=200),
    key=st.none() | st.binary(max_size=20),
    headers=st.lists(
        st.tuples(
            st.sampled_from(
                ["headrace_" + n for n in ("origin", "hop", "attempts", "dead_at", "error_class", "model", "cut", "replay_count")]
            )
            | st.text(max_size=20),
            st.none() | st.binary(max_size=60) | st.integers().map(lambda n: str(n).encode()),
        ),
        max_size=8,
    ),
)
def test_never_raises(value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
    """No key, value or header makes reading fail, and what is read is bounded."""
    read = read_letter(Record(DLQ, 0, 0, 1, key, value, headers, 1))
    assert len(read.model or "") <= 128
    assert len(read.message or "") <= 1024


@given(text=st.text(max_size=3000))
def test_texts_are_bounded(text: str) -> None:
    """Any header text, however long, gives bounded facts without control characters."""
    read = read_letter(
        record(headers=dict.fromkeys(("error_message", "error_code", "provider", "model"), text.encode("utf-8", "replace").decode()))
    )
    assert len((read.message or "").encode()) <= 1024
    assert len((read.code or "").encode()) <= 64
    assert "\x1b" not in (read.message or "") + (read.code or "")

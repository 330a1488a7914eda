"""Filters are joined by and, and times mean one moment, whatever machine they are typed on."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.dlq.filters import Filters, parse_moment
from headrace.envelope import Position

from .letters import CANARY, letter

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    "conditions",
    [
        {"classes": frozenset({"timeout", "auth"})},
        {"since_ms": 1_790_000_100_005},
        {"until_ms": 1_790_000_100_006},
        {"request_id": "r-1"},
        {"agent_id": "a-1"},
        {"channel": "mail"},
        {"provider": "openai"},
        {"model": "gpt-4o-mini"},
        {"text": CANARY.upper()},
        {"position": Position("llm_requests_dlq", 0, 5)},
        {"after": (Position("llm_requests_dlq", 0, 4), Position("llm_requests_dlq", 1, 99))},
    ],
)
def test_each_condition_matches_alone(conditions: dict[str, Any]) -> None:
    """Each condition by itself matches the letter it describes."""
    assert Filters(**conditions).match(letter(offset=5, agent_id="a-1", channel="mail"))


@pytest.mark.parametrize(
    "conditions",
    [
        {"classes": frozenset({"auth"})},
        {"since_ms": 1_790_000_100_006},
        {"until_ms": 1_790_000_100_005},
        {"request_id": "r-2"},
        {"agent_id": "a-2"},
        {"channel": "chat"},
        {"provider": "azure"},
        {"model": "gpt-4"},
        {"text": "not in it"},
        {"position": Position("llm_requests_dlq", 1, 5)},
        {"after": (Position("llm_requests_dlq", 0, 5),)},
    ],
)
def test_one_condition_that_fails_is_enough(conditions: dict[str, Any]) -> None:
    """A letter that meets all conditions but one does not match."""
    given: dict[str, Any] = {"classes": frozenset({"timeout"}), "agent_id": "a-1", "channel": "mail"} | conditions
    assert not Filters(**given).match(letter(offset=5, agent_id="a-1", channel="mail"))


def test_undecodable_letter_is_found_by_key() -> None:
    """A letter whose value cannot be read is still found by its key."""
    assert Filters(request_id="r-9").match(letter(key=b"r-9", value=b"\xff\xfe"))


def test_text_is_found_in_escapes_too() -> None:
    """Text is found whether the JSON spells it as UTF-8 or as escapes."""
    assert Filters(text="grüße").match(letter(value=b'{"p":"gr\\u00fc\\u00dfe"}'))
    assert Filters(text="grüße").match(letter(value='{"p":"grüße"}'.encode()))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2h", NOW - 7_200_000),
        ("90s", NOW - 90_000),
        ("250ms", NOW - 250),
        ("7d", NOW - 604_800_000),
        ("2027-01-15T08:00:00Z", 1_800_000_000_000),
        ("2027-01-15T13:30:00+05:30", 1_800_000_000_000),
        ("2027-01-15T08:00:00.250Z", 1_800_000_000_250),
    ],
)
def test_moments(text: str, moment: int) -> None:
    """Spans go back from now; RFC 3339 is taken with its zone (field case 25)."""
    assert parse_moment(text, NOW) == moment


def test_a_deadline_lies_ahead() -> None:
    """The same span means the future where it is a deadline."""
    assert parse_moment("2h", NOW, ahead=True) == NOW + 7_200_000


@pytest.mark.parametrize("text", ["2027-01-15T08:00:00", "yesterday", "", "-2h", "2 h", "1e9", "99999999999d"])
def test_ambiguous_times_are_refused(text: str) -> None:
    """A time without zone, or no time at all, is refused with the remedy."""
    with pytest.raises(ValueError, match="write 2027"):
        parse_moment(text, NOW)

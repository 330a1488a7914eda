"""Retry-After in all its forms, and the other hints in a reply's headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.llm import hints

NOW_MS = 784111777_000  # Sun, 06 Nov 1994 08:49:37 GMT
LATER = "Sun, 06 Nov 1994 08:51:38 GMT"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "59"}, 59_000),
        ({"retry-after": "60"}, 60_000),
        ({"retry-after": "61"}, 61_000),
        ({"retry-after": "121"}, 121_000),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "-1"}, 0),
        ({"retry-after": "0.0001"}, 1),
        ({"retry-after": " 7 "}, 7_000),
        ({"retry-after": "garbage"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "1_000"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": "9" * 500}, None),
        ({"retry-after": LATER}, 121_000),
        ({"retry-after": "Sunday, 06-Nov-94 08:51:38 GMT"}, 121_000),
        ({"retry-after": "Sun Nov  6 08:51:38 1994"}, 121_000),
        ({"retry-after": "Sun, 06 Nov 1994 08:51:38 +0100"}, 0),
        ({"retry-after": LATER, "date": "Sun, 06 Nov 1994 08:51:00 GMT"}, 38_000),
        ({"retry-after": LATER, "date": "garbage"}, 121_000),
        ({"retry-after": "Sun, 06 Nov 9999999 08:51:38 GMT"}, None),
        ({"retry-after-ms": "1500"}, 1_500),
        ({"retry-after-ms": "1500.2", "retry-after": "9"}, 1_501),
        ({"retry-after-ms": "garbage", "retry-after": "9"}, 9_000),
        ({"retry-after-ms": "-5", "retry-after": "9"}, 9_000),
    ],
)
def test_retry_after_in_all_its_forms(headers: dict[str, str], expected: int | None) -> None:
    """Seconds, both dates, the -ms variant, negative, zero and garbage: never less than what was asked."""
    assert hints.retry_after_ms(headers, NOW_MS) == expected


@given(st.text(max_size=80), st.text(max_size=80), st.text(max_size=40))
def test_no_header_breaks_the_parser(after: str, exact: str, date: str) -> None:
    """Whatever the headers hold, the wish is None or a non-negative number."""
    asked = hints.retry_after_ms({"retry-after": after, "retry-after-ms": exact, "date": date}, NOW_MS)
    assert asked is None or asked >= 0


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("False", False), ("yes", None), ("", None)])
def test_should_retry(text: str, expected: bool | None) -> None:
    """Only true and false are an opinion."""
    assert hints.should_retry({"x-should-retry": text}) is expected


def test_the_request_id_is_clean_and_bounded() -> None:
    """A hostile id cannot grow, nor carry bytes that are no UTF-8."""
    assert hints.request_id({"request-id": "req_1"}) == "req_1"
    hostile = hints.request_id({"x-request-id": "\udcff" + "x" * 1000})
    assert hostile is not None
    assert len(hostile.encode("utf-8")) <= 200

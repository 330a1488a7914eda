"""What a user's handler returns is checked before it can reach a result."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Response
from headrace.attempt import checked


@pytest.mark.parametrize("answer", [None, "text", {"choices": []}, b"{}", 7])
def test_what_is_no_response_is_refused_by_name(answer: object) -> None:
    """A forgotten return, or a bare body, names what came instead."""
    with pytest.raises(TypeError, match=f"returned {type(answer).__name__}, not Response"):
        checked(answer)


@pytest.mark.parametrize("body", [b"not json", b'{"n": NaN}', b"", {"when": object()}, {"n": 2**70}])
def test_a_body_that_is_no_json_is_refused(body: Any) -> None:
    """It would end the thread that writes results, or leave a result nobody can read."""
    with pytest.raises((TypeError, ValueError)):
        checked(Response(body))


def test_usage_that_cannot_be_written_is_refused() -> None:
    """Every field goes into the result, not the body alone."""
    with pytest.raises(TypeError):
        checked(Response({}, usage={"tokens": {1, 2}}))


def test_a_good_body_is_written_once() -> None:
    """An object becomes bytes here, so that the settle thread does not write it again; bytes stay as they are."""
    assert checked(Response({"a": 1})).body == b'{"a":1}'
    raw = b'{"a": 1, "b": [ ]}'
    assert checked(Response(raw)).body is raw

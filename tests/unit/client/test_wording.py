"""A caller's request as bytes, judged as the lane judges it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from headrace.client.wording import ready
from headrace.envelope import Request
from headrace.errors import RequestRefused


def test_every_form_is_the_same_request() -> None:
    """A mapping, JSON, and a Request give one id and one fingerprint; defaults are not written out."""
    fields = {"request_id": "a", "body": {"messages": []}, "deadline_at": "2027-01-31T12:00:00Z"}
    forms = [ready(form, "t", 1_000) for form in (fields, orjson.dumps(fields), Request.model_validate(fields))]
    assert {(form.request_id, form.fingerprint) for form in forms} == {("a", forms[0].fingerprint)}
    assert set(orjson.loads(forms[2].value)) == set(fields)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"request_id": "a", "prompt": object()}, "JSON"),
        ({"request_id": "a", "promt": "secret", "body": {}}, "did you mean"),
        ({"prompt": "secret"}, "request_id"),
        ({"request_id": "a", "body": {"stream": True}}, "stream"),
        ({"request_id": "a", "prompt": "secret" * 1_000}, "shorten"),
        (b"secret", "JSON"),
        ("secret", "JSON"),
        ([1], "JSON"),
    ],
)
def test_what_no_lane_would_take_is_refused_without_its_content(bad: Any, said: str) -> None:
    """The field and the remedy; never the prompt."""
    with pytest.raises(RequestRefused, match=said) as refused:
        ready(bad, "t", 1_000)
    assert "secret" not in str(refused.value)

"""What a record of llm_results means to whoever waits for its id."""

from __future__ import annotations

import orjson
import pytest

from headrace.errors import ResultConflict, ResultFailed, ResultGone
from headrace.results import Asked, Result, Told, meaning
from headrace.results.told import line_of, told

MINE, OTHER = b"a" * 24, b"b" * 24
DEEP = b'{"request_id": ' + b"[" * 1_000 + b"]" * 1_000 + b"}"
UNLIKE = b'{"request_id": "r", "status": "failed"}'


def record(status: str, *, fingerprint: bytes = MINE, **fields: object) -> Told:
    value = orjson.dumps({"request_id": "r", "status": status, **fields})
    return Told(b"r", status, fingerprint, value, 3, 1000)


@pytest.mark.parametrize("status", ["completed", "degraded", "failed"])
def test_an_end_is_an_end(status: str) -> None:
    """Answered or failed, of the same content or of one whose content nobody knows."""
    for fingerprint in (MINE, b""):
        end = record(status, fingerprint=fingerprint)
        assert meaning(end, MINE) is end
    assert meaning(record(status), b"") is not None


@pytest.mark.parametrize("status", ["completed", "failed", "duplicate"])
def test_another_content_says_nothing(status: str) -> None:
    """Of the same id, with another fingerprint: somebody else's."""
    assert meaning(record(status, fingerprint=OTHER, of="completed", since="2027-01-01T00:00:00.000Z"), MINE) is None


def test_a_notice_says_since_when() -> None:
    """What it repeats, and the time to seek from; without a time everything is sought through; a conflict is the end itself."""
    notice = record("duplicate", of="completed", since="2027-01-31T12:00:00.500Z")
    assert meaning(notice, MINE) == Asked("completed", 1_801_396_800_500, 3, MINE)
    for since in (None, "yesterday", 5, "2027-01-31T12:00:00"):
        assert meaning(record("duplicate", of="dead", since=since), MINE) == Asked("dead", 0, 3, MINE)
    conflict = record("duplicate", of="conflict", since=None)
    assert meaning(conflict, MINE) is conflict
    for of in ("something", None, 5, ["completed"], {"of": "dead"}):
        assert meaning(record("duplicate", of=of, since=None), MINE) is None


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"request_id": "other"}', b"null", b"\xff", DEEP, b'{"request_id": "r"}', UNLIKE])
def test_hostile_records_say_nothing(value: bytes) -> None:
    """No JSON, no object, one that speaks of another id, or of another status than its header does; a depth that breaks `str` breaks nothing."""
    for status in ("completed", "duplicate"):
        assert meaning(Told(b"r", status, MINE, value, 0, 0), MINE) is None


def test_the_id_is_text_in_the_json_too() -> None:
    """A number that reads as the id would be taken here, and refused where the run is taken up."""
    assert meaning(Told(b"5", "completed", MINE, b'{"request_id": 5, "status": "completed"}', 0, 0), MINE) is None


@pytest.mark.parametrize("error", ["text", 5, ["x"], {"class": ["x"], "message": {"a": 1}, "code": 7}, {}])
def test_an_error_of_another_form_is_told_without_words(error: object) -> None:
    """What is no text in it is left out; what is raised is what is raised for every failure."""
    with pytest.raises(ResultFailed) as failed:
        Result.of(record("failed", error=error)).check()
    assert (failed.value.code, failed.value.message) == (None, "")
    with pytest.raises(ResultConflict):
        Result.of(record("duplicate", error=error)).check()


def test_what_carries_no_status_is_not_ours() -> None:
    """A record somebody else wrote there; of repeated headers the last counts, unreadable ones harm nothing."""
    assert told(b"r", [], b"{}", 0, 0) is None
    assert told(b"r", [("headrace_status", None)], b"{}", 0, 0) is None
    assert told(b"r", [("headrace_status", b"completed")], None, 0, 0) is None
    found = told(b"r", [("headrace_status", b"\xff"), ("headrace_status", b"failed"), ("x", b"\xff")], b"{}", 0, 0)
    assert found is not None
    assert found.status == "failed"


def test_a_result_is_one_line() -> None:
    """A provider's answer keeps its line breaks in the topic, and loses them in JSONL, without a change of meaning."""
    value = b'{"request_id": "r",\r\n "status": "completed", "response": {"body": {\n"text": "a\\nb"}}}'
    line = line_of(Told(b"r", "completed", MINE, value, 0, 0))
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert orjson.loads(line) == orjson.loads(value)


def test_a_result_is_read_or_raised() -> None:
    """An answer gives its text in each endpoint's form; anything else raises its own error, which names the id."""
    chat = {"choices": [{"message": {"content": "hi"}}]}
    completion = {"choices": [{"text": "hi"}]}
    responses = {"output": [{"type": "reasoning"}, {"content": [{"type": "output_text", "text": "hi"}]}]}
    for body in (chat, completion, responses):
        assert Result.of(record("completed", response={"body": body})).text() == "hi"
    for body in ({"data": [{"embedding": []}]}, {"choices": []}, [], {"output": ["no object"]}, {"output": [{"content": ["none"]}]}):
        assert Result.of(record("degraded", response={"body": body})).text() == ""
    error = {"class": "timeout", "code": "c", "message": "too late"}
    with pytest.raises(ResultFailed, match="r: timeout: too late") as failed:
        Result.of(record("failed", error=error)).check()
    assert (failed.value.error_class, failed.value.code, failed.value.request_id) == ("timeout", "c", "r")
    with pytest.raises(ResultConflict):
        Result.of(record("duplicate", of="conflict", error=error)).body()
    with pytest.raises(ResultGone):
        Result("r", "gone").text()

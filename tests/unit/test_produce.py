"""Judging lines of JSONL: what is sent, and why a line is not."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import build
from headrace.produce import Survey, lines, survey

LIMIT = 1_000


def surveyed(text: bytes) -> Survey:
    return survey(io.BytesIO(text), "t", LIMIT)


@pytest.mark.parametrize(
    "line",
    [
        b'{"request_id":"a","prompt":"x"}',
        b'{"request_id":"a","body":{"messages":[]},"priority":"low","metadata":{"k":"v"}}',
        b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"input":"x"}}',
        b'{"request_id":"a","prompt":"x","next_retry_at":1900000000,"retry_count":1}',
    ],
)
def test_what_the_lane_accepts_is_good(line: bytes) -> None:
    """Our form and OpenAI's batch form pass, with a byte order mark, CRLF and blank lines around them."""
    found = surveyed(b"\xef\xbb\xbf" + line + b"\r\n\r\n  \n")
    assert (found.lines, found.good, found.bad) == (1, 1, [])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "JSON"),
        (b'[{"request_id":"a"}]', "one JSON object a line"),
        (b'{"prompt":"x"}', "request_id"),
        (b'{"request_id":"a b","prompt":"x"}', "request_id"),
        (b'{"request_id":"a","promt":"x","body":{}}', "did you mean 'prompt'"),
        (b'{"request_id":"a","prompt":"x","custom_id":"b"}', "unknown field"),
        (b'{"request_id":"a","prompt":"x","body":{}}', "exactly one"),
        (b'{"request_id":"a","body":{"stream":true}}', "stream"),
        (b'{"request_id":"a","prompt":"\xff"}', "JSON"),
        (b'{"request_id":"a","prompt":"' + b"x" * 2_000 + b'"}', "1000"),
    ],
)
def test_a_bad_line_is_named_with_its_reason(line: bytes, reason: str) -> None:
    """Each fault gives the line's number and what is wrong, and the neighbours stay good."""
    good = b'{"request_id":"g%d","prompt":"x"}\n'
    found = surveyed(good % 1 + line + b"\n" + good % 3)
    reason = reason.replace("1000", "872")
    assert (found.good, [bad.number for bad in found.bad]) == (2, [2])
    assert reason in found.bad[0].reason


def test_repeated_ids_are_told_apart_from_conflicts() -> None:
    """The same request twice is reported and sent; the same id with other content is bad."""
    line = b'{"request_id":"a","prompt":"x"}\n'
    found = surveyed(line + line + line.replace(b'"x"', b'"y"'))
    assert [item.number for item in found.repeated] == [2]
    assert [item.number for item in found.bad] == [3]


def test_a_huge_line_is_not_held() -> None:
    """Of a line beyond the limit only as much is kept as shows that it is too long, and the next one is found."""
    found = list(lines(io.BytesIO(b"x" * 1_000_000 + b"\nnext\n"), LIMIT))
    assert [(line.number, line.length, len(line.value) <= LIMIT + 3) for line in found] == [(1, 1_000_000, True), (2, 4, True)]


def test_an_interruption_while_judging_says_that_nothing_was_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C before the first record leaves no doubt: nothing was sent, and the code is 130."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.produce.survey", interrupted)
    (tmp_path / "in.jsonl").write_text('{"request_id": "a", "prompt": "p"}\n')
    done = CliRunner().invoke(build("produce"), ["produce", "--check", str(tmp_path / "in.jsonl")])
    assert (done.exit_code, "nothing was sent" in done.stderr) == (130, True)

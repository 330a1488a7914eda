"""Whatever a dead letter holds, a terminal gets only text, and a prompt is shown only where it was asked for."""

from __future__ import annotations

import re

import orjson
from hypothesis import given
from hypothesis import strategies as st

from headrace.dlq.display import NARROW, SHOWN_BYTES, WIDE, as_json, cells, page, safe, safe_bytes, table
from headrace.dlq.letter import read_letter
from headrace.envelope import Record

from .letters import API_KEY, CANARY, letter

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ATTACK = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202etxt\x00"


@given(st.text())
def test_safe_is_one_printable_line(text: str) -> None:
    """No control character, line break, direction mark or lone surrogate is left."""
    shown = safe(text)
    assert not CONTROL.search(shown)
    assert "\n" not in shown
    shown.encode()


@given(st.binary())
def test_safe_bytes_shows_any_bytes(data: bytes) -> None:
    """Broken UTF-8 is shown as escapes; only line breaks and tabs stay."""
    shown = safe_bytes(data).replace("\t", "")
    assert not CONTROL.search(shown)
    shown.encode()


def test_large_values_are_cut_and_say_so() -> None:
    """900 KB show their first 64 KiB and how much is left; in full only where asked for."""
    large = letter(value=b"x" * 900_000)
    shown = list(page(large, reveal=True))
    assert len(shown[-1]) < SHOWN_BYTES + 100
    assert "834,464 more bytes" in shown[-1]
    assert list(page(large, reveal=True, full=True))[-1] == "x" * 900_000


def test_attack_does_not_reach_the_terminal() -> None:
    """Escape sequences in key, value, header names and values, model and message come out as visible escapes."""
    said = dict.fromkeys(("model", "provider", "error_code", "error_message"), ATTACK)
    hostile = letter(key=ATTACK.encode(), value=ATTACK.encode(), user_headers=((ATTACK, ATTACK.encode()),), headers=said)
    text = "\n".join([*table(WIDE, [cells(hostile, wide=True)]), *page(hostile, reveal=True), *page(hostile), *table(("A",), [(ATTACK,)])])
    assert not CONTROL.search(text)
    assert "\\x1b]0;owned" in text


def test_nothing_is_revealed_unasked() -> None:
    """Without --reveal neither list, show nor JSON holds the prompt, the producer's headers or the key; with it they do."""
    secret = letter(key=CANARY.encode(), user_headers=(("authorization", API_KEY.encode()),))
    shown = "\n".join([*table(WIDE, [cells(secret, wide=True)]), *page(secret), orjson.dumps(as_json(secret)).decode()])
    assert "CANARY" not in shown
    revealed = "\n".join(page(secret, reveal=True))
    assert API_KEY in revealed
    assert revealed.count(CANARY) == 2


def test_revealed_json_holds_the_bytes() -> None:
    """Base64 keeps what JSON cannot: null, broken UTF-8 and lone surrogates in header names."""
    odd = read_letter(Record("t", 0, 0, 0, None, b"\xff\xfe", [("h\udcff", None)], 0))
    facts = orjson.loads(orjson.dumps(as_json(odd, reveal=True)))
    assert (facts["key_base64"], facts["value_base64"], facts["headers_base64"]) == (None, "//4=", [["h?", None]])


def test_a_list_fits_80_columns() -> None:
    """With the default topic's name, the longest error class and an id of 12 characters no line is longer, and nothing is cut."""
    one = letter(value=b'{"request_id": "invoice-4711", "prompt": "p"}', headers={"error_class": "quota_exhausted"})
    head, row = table(NARROW, [cells(one)])
    assert head.split() == ["DIED", "(UTC)", "POSITION", "CLASS", "CALLS", "REQUEST", "ID"]
    assert len(row) <= 80
    assert "quota_exhausted" in row
    assert row.endswith("invoice-4711")

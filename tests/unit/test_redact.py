"""Masking against bait: what providers echo, and what a hostile one would send."""

from __future__ import annotations

import re
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.redact import clip, mask, visible, without_echo

BAIT = "CANARYcanary42"
MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    "message",
    [
        f"Incorrect API key provided: sk-{BAIT}. You can find your API key in your account.",
        f"Incorrect API key provided: {BAIT}",
        f"Authorization: Bearer {BAIT}",
        f"authorization: {BAIT}",
        f"bearer:{BAIT}",
        f"Basic {BAIT}",
        f"x-api-key: {BAIT}",
        f"api_key = {BAIT}",
        f"OPENAI_API_KEY={BAIT}",
        f"client_secret={BAIT}&next=1",
        f"password: {BAIT}",
        f'{{"api_key": "{BAIT}"}}',
        f"gsk_{BAIT}",
        f"hf_{BAIT}",
        f"cannot reach redis://:{BAIT}@10.0.0.1:6379/0",
        f"cannot reach https://user:{BAIT}@proxy/",
        f"GET https://host/v1?token={BAIT} failed",
        "Access denied for 0123456789abcdef0123456789abcdef" + BAIT,
    ],
)
def test_no_credential_survives(message: str) -> None:
    """Keys, passwords and tokens are masked in every form in which providers and clients print them."""
    assert BAIT not in mask(message)


@pytest.mark.parametrize("key", ["0123456789abcdef0123456789abcdef", "AKIAIOSFODNN7EXAMPLE", "a1" * 40])
def test_bare_keys_of_known_lengths_do_not_survive(key: str) -> None:
    """A key that stands alone is known by its length: 32 hexadecimal digits, 20 capitals with digits, or longer."""
    assert key not in mask(f"Access denied for {key}")


@pytest.mark.parametrize(
    "message",
    [
        f'Invalid prompt: "{BAIT}"',
        f"Invalid prompt: 'tell me {BAIT}'",
        f"Invalid prompt: 'what's the secret of {BAIT}'",
        f"Invalid prompt: “{BAIT}”",
        f"Invalid prompt: ‘it’s {BAIT}’",
        f"Invalid prompt: «{BAIT}»",
        f"Invalid prompt: `{BAIT}`",
        f"Invalid prompt: ```{BAIT}```",
        f'Invalid prompt: "he said \\"{BAIT}\\" to me"',
        f'cut off: "and then {BAIT}',
        f'cut off: "and then {BAIT}\\',
        f'two lines: "first\n{BAIT}"',
        f'{{"messages": [{{"role": "user", "content": "{BAIT}"}}]}}',
        f"{{'role': 'user', 'content': \"it's {BAIT}\"}}",
    ],
)
def test_no_quoted_prompt_survives(message: str) -> None:
    """Whatever stands in quotation marks is masked, escapes, apostrophes and missing ends included."""
    assert BAIT not in mask(message)


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens. However, you requested 10000 tokens (9000 in the messages).",
        "Rate limit reached for gpt-4o-mini on tokens per min (TPM): Limit 60000, Used 59000. Please try again in 2s.",
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
        "Connection refused: 127.0.0.1:8000",
        "The model gpt-4o-mini-2024-07-18 does not exist",
    ],
)
def test_what_explains_the_failure_survives(message: str) -> None:
    """The sentences an operator needs come through unchanged."""
    assert mask(message) == message


@given(message=st.text(max_size=3_000) | st.text("\"'`“”‘’«»\\ asktoken:=-_/@\n\x1b\u202e", max_size=3_000), limit=st.integers(3, 2_000))
def test_output_is_bounded_clean_utf8(message: str, limit: int) -> None:
    """Any text at all, lone surrogates included, comes out as UTF-8 of at most `limit` bytes without control characters."""
    masked = mask(message, limit=limit)
    assert len(masked.encode()) <= limit
    assert not [char for char in masked if unicodedata.category(char) == "Cc" or char in "\u2028\u2029\u202e"]


@given(text=st.text(max_size=200), limit=st.integers(3, 400))
def test_clip_keeps_the_longest_start(text: str, limit: int) -> None:
    """What fits comes through as it is; what does not ends in an ellipsis, never within a character."""
    clipped = clip(text, limit)
    assert len(clipped.encode()) <= limit
    if len(text.encode("utf-8", "replace")) <= limit:
        assert clipped == text.encode("utf-8", "replace").decode()
    else:
        assert clipped.endswith("…")
        assert text.encode("utf-8", "replace").decode().startswith(clipped[:-1])
        assert len(clipped.encode()) > limit - 4


@pytest.mark.parametrize("limit", [1_024, MEGABYTE])
@pytest.mark.parametrize(
    "piece",
    [
        '"',
        '"\\',
        "'a ",
        "`\\",
        "'\\",
        "“",
        "bearer ",
        "bearer" + " " * 50,
        "basic:",
        "sk-",
        "api_key=",
        "key",
        "token ",
        "://",
        "://a@",
        "://a",
        "a",
        "a1_",
        "\x00",
        "😀",
    ],
)
def test_hostile_megabyte_takes_linear_time(piece: str, limit: int) -> None:
    """No input makes a pattern start over: a megabyte is masked within two seconds of this thread, whatever it holds."""
    hostile = (piece * (MEGABYTE // len(piece) + 1))[:MEGABYTE]
    start = time.thread_time()
    mask(hostile, limit=limit)
    assert time.thread_time() - start < 2.0


SENT = {
    "messages": [
        {"role": "system", "content": "You are a clerk of the bank. Be brief."},
        {"role": "user", "content": "My account 12345678 is\n overdrawn, what can\tI do? Żółć! CANARY-of-mine-42"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "pay", "arguments": '{"iban": "DE00 1234 5678"}'}}]},
    ],
    "temperature": 0.5,
}


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ("Input: My account 12345678 is  overdrawn, what can I do? Denied.", "Input: …? Denied."),
        ("cannot parse 12345678 here", "cannot parse … here"),
        ("no such tool argument: DE00 1234 5678.", "no such tool argument: …."),
        ("invalid: CANARY-of-mine-42", "invalid: …"),
        ("given up, after 3 calls: My account 12345678 is  overd…", "given up, after 3 calls: ……"),
        ("You are out of quota for the model of the bank", "You are out of quota for the model of the bank"),
        ("HTTP 400: maximum context length is 8192 tokens", "HTTP 400: maximum context length is 8192 tokens"),
        ("", ""),
        ("…", "…"),
    ],
)
def test_what_was_sent_is_not_repeated(message: str, left: str) -> None:
    """A prompt or tool argument that a provider repeats without quotation marks is masked, also one cut at its end; other words stay."""
    assert without_echo(message, SENT) == left


@given(st.text(max_size=60), st.text(st.characters(codec="utf-8"), min_size=12, max_size=200), st.text(max_size=60))
def test_no_verbatim_prompt_survives(before: str, prompt: str, after: str) -> None:
    """Of a prompt repeated between other words no run of words of 12 characters is left, and nothing of it makes the message longer."""
    message = mask(f"{before} {prompt} {after}")
    left = without_echo(message, [{"content": prompt}])
    shown = mask(prompt, limit=8_000)
    assert len(left) <= len(message) + 1
    for run in re.findall(r"\w{12,}", shown):
        assert run not in left or run in before + after


@pytest.mark.parametrize("unit", ["a", "ab ", "the quick brown fox ", "x1 ", "aaaaaaaa "])
def test_looking_for_echoes_is_bounded(unit: str) -> None:
    """A prompt of a megabyte, also one made to make searching slow, costs well under a second of processor time."""
    prompt = unit * (MEGABYTE // len(unit))
    message = mask("b " + (unit + "b ") * 300)
    began = time.thread_time()
    without_echo(message, {"prompt": prompt})
    assert time.thread_time() - began < 2.0


def test_a_terminal_is_given_characters_only() -> None:
    """Names of fields, models and variables are anybody's: what moves a cursor, or is half a character, is not shown."""
    assert visible("a\x1b[2J\u202eb\udcff\r\t\n") == "a?[2J?b??\t\n"

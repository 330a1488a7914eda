"""An alert tells facts, never a prompt, and groups by cause, never by request."""

from __future__ import annotations

import pytest

from headrace.dlq.alert import alert_of
from headrace.redact import NONE, OTHER, plain

from .letters import API_KEY, CANARY, letter


def test_fingerprint_ignores_the_request() -> None:
    """Two requests that died of the same cause have one fingerprint."""
    first, second = (alert_of(letter(request_id=f"r-{n}", offset=n), "headrace") for n in (1, 2))
    assert first.fingerprint == second.fingerprint == ("headrace", "timeout", "openai", "gpt-4o-mini")


def test_plus_counts_and_keeps_the_latest() -> None:
    """Adding alerts in either order sums the count and keeps the latest as the example."""
    first, second = (alert_of(letter(request_id=f"r-{n}", offset=n), "headrace") for n in (1, 2))
    assert first.plus(second) == second.plus(first)
    both = first.plus(second)
    assert (both.count, both.request_id) == (2, "r-2")
    assert (both.first_at_ms, both.last_at_ms) == (first.first_at_ms, second.last_at_ms)


@pytest.mark.parametrize(
    "name", ["gpt-4o-mini", "meta-llama/Llama-3.3-70B-Instruct-Turbo", "accounts/fireworks/models/llama-v3p1-70b", "a:b@c+1"]
)
def test_real_model_names_are_shown(name: str) -> None:
    """Names in use, long ones too, pass as labels."""
    assert plain(name) == name


@pytest.mark.parametrize("name", [API_KEY, "tell me a story", "a\x1b[0m", "x" * 97, "token=abc", "my/sk-abc", "modèle"])
def test_odd_names_are_other(name: str) -> None:
    """What looks like a secret, a sentence or an attack is `other`."""
    assert plain(name) == OTHER


def test_missing_name_is_none() -> None:
    """Without a provider the label says so."""
    assert plain(None) == plain("") == NONE


def test_nothing_of_the_prompt_is_in_it() -> None:
    """Neither prompt nor key can be found in an alert, wherever a hostile producer put them."""
    hostile = letter(headers=dict.fromkeys(("model", "provider", "error_code", "error_message"), f"{CANARY} {API_KEY}"), agent_id=CANARY)
    assert "CANARY" not in repr(alert_of(hostile, "headrace"))

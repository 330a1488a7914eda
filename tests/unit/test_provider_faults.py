"""What can be wrong with providers, chains and policies: every fault by field, with its remedy, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.loading import load, missing_keys

TWO = "providers: [{name: a, base_url: 'http://a'}, {name: b, base_url: 'http://b'}]\n"


def faults(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "headrace.yaml"
    path.write_text(text)
    try:
        load({}, path)
    except ConfigError as error:
        return error.faults
    return []


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("providers: [{name: a, base_url: 'http://a', endpoints: [{base_url: 'http://b'}]}]", "providers.0.base_url: endpoints are listed too; keep one"),
        ("providers: [{name: a, endpoints: []}]", "providers.0.endpoints: is empty; list one"),
        ("providers: [{name: a, endpoints: [{base_url: 'http://b', weight: 0}]}]", "providers.0.endpoints.0.weight"),
        ("providers: [{name: a, endpoints: [{base_url: 'http://b', weight: -1}]}]", "providers.0.endpoints.0.weight"),
        ("providers: [{name: a, endpoints: [{base_url: 'http://b'}, {base_url: 'http://b/'}]}]", "providers.0.endpoints.1: is listed twice"),
        ("providers: [{name: a, endpoints: [{base_url: 'ftp://b'}]}]", "providers.0.endpoints.0.base_url: must be an http"),
        ("providers: [{name: a, endpoints: [{weight: 1}]}]", "providers.0.endpoints.0.base_url"),
        (
            "providers: [{name: a, endpoints: [{base_url: 'http://b', timeout_s: 1, connect_timeout_s: 2}]}]",
            "providers.0.endpoints.0: connect_timeout_s is above timeout_s; lower it",
        ),
        ("providers: [{name: a, base_url: 'http://a', api_version: '2024-10-21'}]", "providers.0.api_version: is Azure's; add kind: azure"),
        ("providers: [{name: a, kind: azure}]", "providers.0.base_url: is missing; for kind: azure"),
        ("providers: [{name: a, kind: azure, base_url: 'http://a', api_version: '2024'}]", "providers.0.api_version: must be a date"),
        ("providers: [{name: a, kind: other, base_url: 'http://a'}]", "providers.0.kind"),
        ("providers: [{name: a, base_url: 'http://a', balance: random}]", "providers.0.balance"),
        ("providers: [{name: a, base_url: 'http://a', ejection: {for_s: 400}}]", "providers.0.ejection: for_s is above cap_s"),
        ("providers: [{name: a, base_url: 'http://a', ejection: {most_share: 1.5}}]", "providers.0.ejection.most_share"),
        ("providers: [{name: a, base_url: 'http://a', health: {path: health}}]", "providers.0.health.path"),
        ("providers: [{name: a, base_url: 'http://a', health: {path: /health, every_s: 1}}]", "providers.0.health: timeout_s is above every_s"),
        (TWO + "models: {m: [c]}", "models.m.0: no provider is called c"),
        (TWO + "models: {m: []}", "models.m"),
        (TWO + "models: {m: [{provider: a, modl: x}]}", "models.m.0.modl: unknown field"),
        (TWO + "models: {m: [a, b, a]}", "models.m.2: the same provider and model stand in it before"),
        ("providers: [" + ", ".join(f"{{name: p{n}, base_url: 'http://a'}}" for n in range(9)) + "]", "providers: there are more than 8"),
        ("policy: {timeout: {fallback: sometimes}}", "policy.timeout.fallback"),
        ("policy: {expired: {fallback: at_once}}", "policy.expired.fallback: such a request is not called for"),
        ("policy: {auth: {fallback: exhausted}}", "policy.auth.fallback: no call is ever spent on it; use at_once"),
        ("policy: {rate_limited: {fallback: exhausted}}", "policy.rate_limited.fallback: its calls are bounded by time alone"),
    ],
)  # fmt: skip
def test_a_fault_names_its_field(tmp_path: Path, text: str, field: str) -> None:
    """And what to do about it."""
    found = faults(tmp_path, text)
    assert any(field in fault for fault in found), found


@pytest.mark.parametrize(
    "text",
    [
        TWO + "models: {m: [{provider: b, model: n}, a], '*': [a, b]}",
        "providers: [{name: a, endpoints: [{base_url: 'http://b', weight: 2}, {base_url: 'http://c', api_key: k}], balance: least_in_flight}]",
        "providers: [{name: a, kind: azure, base_url: 'https://r.openai.azure.com', api_version: 2025-04-01-preview, auth: bearer}]",
        "providers: [{name: a, base_url: 'http://a', health: {path: /health}}]\npolicy: {rate_limited: {fallback: at_once}, timeout: {fallback: exhausted}}",
    ],
)
def test_what_fits_is_no_fault(tmp_path: Path, text: str) -> None:
    """Examples of each."""
    assert faults(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('api_key: "se\\ncret"', "providers.0: its key is not one line"),
        ('api_key: "se\\u00e9cret"', "providers.0: its key is not one line"),
        ('headers: {x: "a\\r\\nsecret: b"}', "providers.0.headers.x: must be one line"),
        ('headers: {"x y": secret}', "providers.0.headers: a name in it"),
        ('headers: {"": secret}', "providers.0.headers: a name in it"),
        ('endpoints: [{base_url: "http://b", api_key: "secret\\0"}]', "providers.0.endpoints.0: its key"),
        ('base_url: "http://a/\\ud800"', "providers.0.base_url: should be a valid string"),
        ('default_model: "\\udcff"', "providers.0.default_model: should be a valid string"),
    ],
)
def test_what_cannot_be_sent_is_told_before_anything_starts(tmp_path: Path, text: str, field: str) -> None:
    """A key or a header no request can carry, or text that is none: every request would end as a dead letter. Its value is not told."""
    (fault,) = faults(tmp_path, f"providers: [{{name: a, {text}}}]")
    assert field in fault
    assert "secret" not in fault


def test_a_key_where_its_name_or_its_file_belongs_is_not_told(tmp_path: Path) -> None:
    """The mistake is named by its field, and what may be the key itself is left out."""
    for text in (
        "api_key_env: sk-hunter2hunter2",
        "api_key_env: hunter2",
        "api_key_file: sk-hunter2/hunter2",
        'api_key_file: "hunter2\\0"',
    ):
        (fault,) = faults(tmp_path, f"providers: [{{name: a, base_url: 'http://a', {text}}}]")
        assert "providers.0" in fault or "line 1" in fault
        assert "hunter2" not in fault
    (fault,) = faults(tmp_path, "providers: [{name: a, base_url: 'http://a', api_key_env: A_KEY}]")
    assert "the variable A_KEY is not set" in fault


def test_keys_keep_their_source(tmp_path: Path) -> None:
    """So that they can be read again: a provider's, an endpoint's, and that of OPENAI_API_KEY_FILE."""
    for name in ("one", "two", "three"):
        (tmp_path / name).write_text(f"sk-{name}\n")
    path = tmp_path / "headrace.yaml"
    path.write_text(
        f"providers: [{{name: a, api_key_file: '{tmp_path}/one', endpoints: [{{base_url: 'http://b', api_key_file: '{tmp_path}/two'}}, "
        "{base_url: 'http://c'}]}, {name: openai}]"
    )
    first, openai = load({"OPENAI_API_KEY_FILE": str(tmp_path / "three")}, path).providers
    found = [(s.api_key and s.api_key.get_secret_value(), s.api_key_file) for s in (*first.servers(), *openai.servers())]
    assert found == [("sk-two", tmp_path / "two"), ("sk-one", tmp_path / "one"), ("sk-three", tmp_path / "three")]


def test_an_endpoint_at_openai_needs_a_key(tmp_path: Path) -> None:
    """Whether it stands alone or in a list."""
    path = tmp_path / "headrace.yaml"
    path.write_text("providers: [{name: a, endpoints: [{base_url: 'https://api.openai.com/v1'}, {base_url: 'http://local'}]}]")
    (fault,) = missing_keys(load({}, path))
    assert "https://api.openai.com/v1" in fault

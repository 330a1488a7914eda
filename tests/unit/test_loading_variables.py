"""Every setting by a variable: the regular names, JSON, secrets in files; and nothing of the process's where it was not asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import Settings
from headrace.errors import ConfigError, ErrorClass
from headrace.loading import load, load_all


def faults(env: dict[str, str], text: str, tmp_path: Path) -> list[str]:
    path = tmp_path / "headrace.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(env, path)
    return caught.value.faults


def test_settings_built_directly_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither our variables nor any that is called as a field changes what a program builds."""
    for name in ("HEADRACE_NAMESPACE", "NAMESPACE", "namespace", "grace_s", "HEADRACE_LIMITS__CONCURRENCY", "limits", "kafka"):
        monkeypatch.setenv(name, "7")
    assert Settings(instance="one") == Settings.model_validate({"instance": "one"})
    assert (Settings().namespace, Settings().grace_s, Settings().limits.concurrency) == ("headrace", 25.0, 64)
    assert type(load({})) is Settings


def test_every_field_has_a_regular_variable(tmp_path: Path) -> None:
    """HEADRACE_, the path in capitals, `__` between; a variable beats the file, field by field."""
    path = tmp_path / "headrace.yaml"
    path.write_text("limits: {concurrency: 3, window: 300}\npolicy: {timeout: {calls: 2, base_s: 3}}\n")
    env = {
        "HEADRACE_LIMITS__CONCURRENCY": "200",
        "HEADRACE_POLICY__TIMEOUT__CALLS": "7",
        "HEADRACE_DUPLICATE_NOTICES": "false",
        "HEADRACE_REDIS__ON_OUTAGE": "continue",
        "HEADRACE_HTTP__METRICS_PORT": "9000",
    }
    settings = load(env, path)
    assert (settings.limits.concurrency, settings.limits.window, settings.duplicate_notices) == (200, 300, False)
    assert (settings.policy[ErrorClass.TIMEOUT].calls, settings.policy[ErrorClass.TIMEOUT].base_s) == (7, 3.0)
    assert (settings.redis.on_outage, settings.http.metrics_port) == ("continue", 9000)


def test_lists_and_mappings_are_json(tmp_path: Path) -> None:
    """A list replaces the file's, a mapping is merged by name; what is no JSON of that shape is a fault of the variable."""
    path = tmp_path / "headrace.yaml"
    path.write_text("providers: [{name: a}]\npolicy: {timeout: {calls: 2}}\n")
    env = {
        "HEADRACE_PROVIDERS": '[{"name": "b", "base_url": "http://h/v1", "api_key": "k"}]',
        "HEADRACE_POLICY": '{"internal": {"calls": 1}}',
    }
    settings = load(env, path)
    assert [provider.name for provider in settings.providers] == ["b"]
    assert {name.value: policy.calls for name, policy in settings.policy.items()} == {"timeout": 2, "internal": 1}
    (fault,) = faults({"HEADRACE_PROVIDERS": '{"name": "geheim"}'}, "", tmp_path)
    assert fault.startswith("HEADRACE_PROVIDERS: is JSON, but not a list")
    (fault,) = faults({"HEADRACE_PROVIDERS": '[{"name": "a", "timeout_s": "geheim"}]'}, "", tmp_path)
    assert fault.startswith("HEADRACE_PROVIDERS: providers.0.timeout_s")
    assert "geheim" not in fault


def test_one_field_has_one_variable(tmp_path: Path) -> None:
    """Short and regular name together are a fault, whatever they hold; so are two faults of one place named apart."""
    (fault,) = faults({"HEADRACE_KAFKA_BOOTSTRAP": "a:1", "HEADRACE_KAFKA__BOOTSTRAP": "a:1"}, "", tmp_path)
    assert fault == "HEADRACE_KAFKA__BOOTSTRAP: HEADRACE_KAFKA_BOOTSTRAP is set too, and means the same; keep one of them"
    (fault,) = faults({"HEADRACE_LIMITS__CONCURENCY": "1"}, "", tmp_path)
    assert "did you mean 'HEADRACE_LIMITS__CONCURRENCY'" in fault
    (fault,) = faults({"HEADRACE_LIMITS__CONCURRENCY": "0"}, "", tmp_path)
    assert fault.startswith("HEADRACE_LIMITS__CONCURRENCY: limits.concurrency: ")


def test_properties_of_kafka_come_from_files(tmp_path: Path) -> None:
    """`kafka.secret_files`, relative to the file that names them; a property given twice, or a file that is not there, is a fault."""
    (tmp_path / "password").write_text("geheim\n")
    text = "kafka:\n  config: {security.protocol: sasl_ssl, sasl.mechanism: PLAIN, sasl.username: u}\n  secret_files:\n    sasl.password: password\n"
    path = tmp_path / "headrace.yaml"
    path.write_text(text)
    loaded = load_all({}, path)
    assert loaded.settings.kafka.config["sasl.password"] == "geheim"
    assert loaded.places.of(("kafka", "config", "sasl.password")) == "headrace.yaml line 4"
    (fault,) = faults({"HEADRACE_KAFKA_CONFIG": '{"sasl.password": "geheim"}'}, text, tmp_path)
    assert "kafka.config has sasl.password too" in fault
    found = faults({}, text.replace(": password", ": hunter2"), tmp_path)
    assert any("cannot be read (No such file" in fault for fault in found)
    assert not any("hunter2" in fault for fault in found)  # it may be the password itself


def test_paths_in_the_file_are_relative_to_it(tmp_path: Path) -> None:
    """A key's file, too, wherever the process was started."""
    (tmp_path / "key").write_text("k\n")
    (tmp_path / "headrace.yaml").write_text("providers: [{name: a, base_url: 'http://h/v1', api_key_file: key}]\n")
    (provider,) = load({}, tmp_path / "headrace.yaml").providers
    assert provider.api_key is not None
    assert (provider.api_key.get_secret_value(), provider.api_key_file) == ("k", tmp_path / "key")


@pytest.mark.parametrize(
    ("kafka", "named"),
    [
        ("{config: {sasl.mechanism: OAUTHBEARER, security.protocol: sasl_ssl}}", "has no source of tokens"),
        ("{oauth_token: 'json:dumps'}", "is for sasl.mechanism OAUTHBEARER"),
        ("{oauth_token: 'json:nothing', config: {sasl.mechanism: OAUTHBEARER}}", "json has no function nothing"),
        ("{oauth_token: 'no_such_module_x:f', config: {sasl.mechanism: OAUTHBEARER}}", "no_such_module_x cannot be imported"),
        ("{oauth_token: 'nonsense'}", "kafka.oauth_token"),
    ],
)
def test_tokens_have_a_source(kafka: str, named: str, tmp_path: Path) -> None:
    """OAUTHBEARER without one would wait for ever; a function that cannot be called is a fault before anything starts."""
    (fault,) = faults({}, f"kafka: {kafka}\n", tmp_path)
    assert named in fault

"""The configuration: precedence, and every fault at once, without a secret in any message."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.loading import keyless, load, load_all, missing_keys


def faults(env: dict[str, str], text: str, tmp_path: Path) -> list[str]:
    path = tmp_path / "headrace.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(env, path)
    return caught.value.faults


def test_environment_beats_file_beats_default(tmp_path: Path) -> None:
    """A variable wins over the file, the file over the default, and Kafka's extra configuration merges by name."""
    path = tmp_path / "headrace.yaml"
    path.write_text("namespace: file\ngrace_s: 7\nkafka: {bootstrap: 'f:1', config: {client.rack: a, log_level: 3}}\n")
    settings = load({"HEADRACE_NAMESPACE": "env", "HEADRACE_KAFKA_CONFIG": '{"client.rack": "b"}'}, path)
    assert (settings.namespace, settings.grace_s, settings.kafka.bootstrap, settings.replay_cap) == ("env", 7.0, "f:1", 5)
    assert settings.kafka.config == {"client.rack": "b", "log_level": 3}


def test_every_fault_is_named_at_once_with_its_place(tmp_path: Path) -> None:
    """Typos, bad values, contradictions and unknown variables come together, each with variable or line."""
    text = "kafka:\n  bootstrap: nowhere\n  confg: {}\npolicy:\n  timout: {calls: 1}\n  timeout: {base_s: 9, cap_s: 1}\n"
    found = faults({"HEADRACE_GRACE_S": "soon", "HEADRACE_KAFKA_BOOTSTRP": "x:1"}, text, tmp_path)
    for part in (
        "HEADRACE_GRACE_S: grace_s",
        "did you mean 'HEADRACE_KAFKA_BOOTSTRAP'",
        "headrace.yaml line 2: kafka.bootstrap",
        "headrace.yaml line 3: kafka.confg: unknown field; did you mean 'config'",
        "line 5: policy.timout: no such error class; did you mean 'timeout'",
        "line 6: policy.timeout: base_s",
    ):
        assert any(part in fault for fault in found), part
    assert len(found) == 6


@pytest.mark.parametrize(
    "text",
    [
        "grace_s: [",
        "- a",
        "a: 1\na: 2",
        "a: \x01",
        "a: &a [*a]",
        "a: *b",
        "a: 2026-13-45",
        "1: 2",
        "providers: 5",
        "providers: [5]",
        "providers: []",
        "kafka: 5",
        "policy: [1]",
        "topics: {main: x}",
        "topics_file: nowhere.yaml",
        "kafka: {config: {acks: 0}}",
    ],
)
def test_a_broken_file_is_a_config_error(text: str, tmp_path: Path) -> None:
    """Whatever the file holds, the answer is a ConfigError that says what to do, never another exception."""
    assert all(len(fault) > 10 for fault in faults({}, text, tmp_path))


def test_secrets_never_appear_in_faults(tmp_path: Path) -> None:
    """A key or password in a faulty place is not repeated in the message, nor in the settings' repr."""
    text = "redis: {url: 'http://:geheim@h'}\nproviders: [{api_key: geheim, base_url: 'https://u:geheim@h'}]\nsentry_dsn: [geheim]\nx: *geheim\n"
    env = {"HEADRACE_KAFKA_CONFIG": '{"sasl.password": geheim}'}
    assert "geheim" not in "".join(faults(env, text, tmp_path) + faults(env, text.replace("x: *geheim\n", ""), tmp_path))
    settings = load(
        {"HEADRACE_KAFKA_CONFIG": '{"sasl.password": "geheim"}', "HEADRACE_REDIS_URL": "redis://:geheim@h:1", "OPENAI_API_KEY": "geheim"}
    )
    assert "geheim" not in repr(settings)


def test_a_secret_comes_from_a_file_and_from_one_place_only(tmp_path: Path) -> None:
    """X_FILE is read without its line end; X beside X_FILE, a missing or an empty file are faults."""
    key, empty = tmp_path / "key", tmp_path / "empty"
    key.write_text("k-1\n")
    empty.write_text("\n")
    loaded = load({"OPENAI_API_KEY_FILE": str(key)}).providers[0].api_key
    assert loaded is not None
    assert loaded.get_secret_value() == "k-1"
    for env in (
        {"OPENAI_API_KEY_FILE": "/nowhere"},
        {"SENTRY_DSN_FILE": str(empty)},
        {"OPENAI_API_KEY": "a", "OPENAI_API_KEY_FILE": str(key)},
    ):
        assert len(faults(env, "", tmp_path)) == 1


def test_the_openai_key_goes_to_no_other_server(tmp_path: Path) -> None:
    """With several providers OPENAI_API_KEY is given to the one named openai, and to no other."""
    path = tmp_path / "headrace.yaml"
    path.write_text(
        "providers: [{name: local, base_url: 'http://h/v1'}, {name: openai}, {name: b, base_url: 'http://i', api_key_env: B}]\n"
    )
    settings = load({"OPENAI_API_KEY": "k", "B": "kb"}, path)
    keys = [p.api_key and p.api_key.get_secret_value() for p in settings.providers]
    assert keys == [None, "k", "kb"]
    assert missing_keys(settings) == []
    assert "OPENAI_API_KEY" in missing_keys(load({}))[0]


def test_a_server_elsewhere_that_is_called_without_a_key_is_told() -> None:
    """Not one on this machine, and not one that has a key; what stands beside the host in the address is not told."""
    said = keyless(load({"OPENAI_BASE_URL": "http://model.lan:8000/v1?token=secret"}))
    assert len(said) == 1
    assert "model.lan is called without a key" in said[0]
    assert "secret" not in said[0]
    for url in ("http://127.0.0.1:1/v1", "http://[::1]:1/v1", "http://localhost:1/v1"):
        assert keyless(load({"OPENAI_BASE_URL": url})) == []
    assert keyless(load({"OPENAI_BASE_URL": "http://model.lan/v1", "OPENAI_API_KEY": "k"})) == []


def test_service_links_of_kubernetes_are_not_taken_for_ours() -> None:
    """A service named headrace-x in the same namespace must not stop a worker."""
    load({"HEADRACE_X_SERVICE_HOST": "10.0.0.1", "HEADRACE_X_PORT": "tcp://10.0.0.1:80", "HEADRACE_X_PORT_80_TCP_ADDR": "10.0.0.1"})
    with pytest.raises(ConfigError):
        load({"HEADRACE_X_PORT": "80"})


def test_topic_names_come_from_the_topics_file(tmp_path: Path) -> None:
    """A topics.yaml beside headrace.yaml names the topics."""
    default = (Path(__file__).parents[2] / "topics.yaml").read_text()
    (tmp_path / "topics.yaml").write_text(default.replace("name: llm_results", "name: answers"))
    (tmp_path / "headrace.yaml").write_text("")
    assert load({}, tmp_path / "headrace.yaml").topics.results == "answers"


@pytest.mark.parametrize("listed", ["[{name: local, base_url: 'http://h:1/v1'}]", "[{name: a, base_url: 'http://h:1/v1'}, {name: b}]"])
def test_openai_variables_are_for_the_provider_named_openai_alone(listed: str, tmp_path: Path) -> None:
    """A provider of another name keeps the file's address and gets no key, though it be the only one; a note says what is not used."""
    path = tmp_path / "headrace.yaml"
    path.write_text(f"providers: {listed}\n")
    loaded = load_all({"OPENAI_BASE_URL": "https://api.openai.com/v1", "OPENAI_API_KEY": "sk-geheim"}, path)
    assert loaded.settings.providers[0].base_url == "http://h:1/v1"
    assert [provider.api_key for provider in loaded.settings.providers] == [None] * len(loaded.settings.providers)
    assert [note.split()[0] for note in loaded.notes if note.startswith("OPENAI")] == ["OPENAI_API_KEY", "OPENAI_BASE_URL"]
    assert len(loaded.notes) == 2
    assert "geheim" not in repr(loaded)


@pytest.mark.parametrize("listed", ["", "providers: [{name: openai, base_url: 'http://h:1/v1', api_key: other}]\n", "providers: [{}]\n"])
def test_for_openai_the_environment_beats_the_file(listed: str, tmp_path: Path) -> None:
    """The provider named openai, listed or not, has the environment's address and key, and both are said to come from there."""
    path = tmp_path / "headrace.yaml"
    path.write_text(listed)
    loaded = load_all({"OPENAI_BASE_URL": "http://env:2/v1", "OPENAI_API_KEY": "sk"}, path)
    (told,) = loaded.providers
    assert (told.name, told.base_url, told.base_url_from, told.key_from) == (
        "openai",
        "http://env:2/v1",
        "OPENAI_BASE_URL",
        "OPENAI_API_KEY",
    )
    assert loaded.notes == ()


def test_where_a_provider_comes_from_is_told(tmp_path: Path) -> None:
    """The file's line, the variable or the default is named for the address, and for the key also that there is none."""
    path = tmp_path / "headrace.yaml"
    path.write_text("providers:\n  - name: a\n    base_url: http://h/v1?api-version=1\n    api_key_env: A\n  - name: b\n")
    first, second = load_all({"A": "ka"}, path).providers
    assert first.fields() == {"provider": "a", "base_url": "http://h/v1", "base_url_from": "headrace.yaml line 3", "key": "A"}
    assert (second.base_url_from, second.key_from) == ("default", "none is set")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ('{"linger.mss": 5}', "kafka.config.linger.mss"),
        ('{"linger.ms": "geheim"}', "kafka.config.linger.ms"),
        ('{"security.protocol": "geheim"}', "kafka.config.security.protocol"),
        ('{"client.rack": ["a"]}', "kafka.config.client.rack"),
        ('{"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN"}', "sasl.username"),
        ('{"session.timeout.ms": 6000}', "session.timeout.ms"),
    ],
)
def test_what_kafkas_client_refuses_is_a_fault_of_the_variable(config: str, named: str, tmp_path: Path) -> None:
    """A property or value librdkafka does not take is one line before anything starts; it names variable and property, and no value."""
    (fault,) = faults({"HEADRACE_KAFKA_CONFIG": config}, "", tmp_path)
    assert fault.startswith("HEADRACE_KAFKA_CONFIG: ")
    assert named in fault
    assert "geheim" not in fault

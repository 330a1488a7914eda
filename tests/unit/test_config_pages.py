"""What is said of the configuration: the reference, the example, the values in force, and the table of rights."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from headrace.cli import build
from headrace.config import Settings
from headrace.config.fields import fields_of
from headrace.loading import load, load_all
from headrace.loading.example import example
from headrace.loading.reference import reference
from headrace.loading.shown import HIDDEN, effective
from headrace.loading.variables import OPENAI, OTHERS, variables
from headrace.topics.rights import PARTS, command, rights_of
from tests.support.acl_table import table

DOCS = Path(__file__).parents[2] / "docs"


def test_the_reference_is_the_codes() -> None:
    """docs/configuration.md is what `headrace config reference` prints."""
    assert (DOCS / "configuration.md").read_text("utf-8") == reference(), "run: headrace config reference > docs/configuration.md"


def test_the_table_of_rights_is_the_codes() -> None:
    """docs/acls.md is what its module prints."""
    assert (DOCS / "acls.md").read_text("utf-8") == table(), "run: python -m tests.support.acl_table > docs/acls.md"


def test_every_field_says_what_it_means() -> None:
    """No field is without a description, and the reference names every variable."""
    assert [field.name for field in fields_of(Settings) if not field.info.description] == []
    text = reference()
    assert [name for name in (*OPENAI, *OTHERS) if name not in text] == []
    assert [one.name for one in variables() if f"`{one.name}`" not in text and one.path[0] != "policy"] == []


def test_the_example_is_a_configuration(tmp_path: Path) -> None:
    """It loads as it is, and with every commented field taken in it still does, and changes no default."""
    path = tmp_path / "headrace.yaml"
    path.write_text(example())
    assert load({"OPENAI_API_KEY": "k"}, path).limits == Settings().limits
    lines = example().splitlines()
    path.write_text("\n".join(line.removeprefix("# ") if ": " in line or line.endswith(":") else line for line in lines[2:]))
    taken = load({"OPENAI_API_KEY": "k"}, path)
    assert {"namespace", "kafka", "limits", "pause", "replay_cap"} <= taken.model_fields_set
    assert (taken.limits, taken.kafka, taken.redis, taken.pause) == (
        Settings().limits,
        Settings().kafka,
        Settings().redis,
        Settings().pause,
    )


def test_what_is_in_force_is_shown_with_its_place_and_no_secret(tmp_path: Path) -> None:
    """Each value has the variable, line or default it came from; no key, password, token or header is among them."""
    path = tmp_path / "headrace.yaml"
    path.write_text(
        yaml.safe_dump({
            "kafka": {"config": {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "geheim", "security.protocol": "SASL_SSL", "ssl.key.password": 815815}},
            "providers": [{"name": "a", "base_url": "http://h/v1?key=geheim", "api_key": "geheim", "headers": {"X-Key": "geheim"}}],
            "policy": {"timeout": {"calls": 2}},
        })
    )  # fmt: skip
    env = {
        "HEADRACE_REDIS_URL": "redis://u:geheim@h:1/0?password=geheim",
        "SENTRY_DSN": "https://geheim@s",
        "HEADRACE_LIMITS__WINDOW": "200",
    }
    loaded = load_all(env, path)
    shown = {one.field: one for one in effective(loaded)}
    assert "geheim" not in str([(one.field, one.value) for one in shown.values()])
    assert shown["kafka.config.ssl.key.password"].value == HIDDEN, "YAML reads digits as a number"
    assert (shown["limits.window"].value, shown["limits.window"].origin) == (200, "HEADRACE_LIMITS__WINDOW")
    assert (shown["policy.timeout.calls"].value, shown["policy.timeout.calls"].origin[:13]) == (2, "headrace.yaml")
    assert (shown["policy.timeout.cap_s"].value, shown["policy.timeout.cap_s"].origin) == (60.0, "default")
    assert shown["redis.url"].value == "redis://u:********@h:1/0"
    assert shown["kafka.config.sasl.mechanism"].value == "PLAIN"


@pytest.mark.parametrize("part", PARTS)
def test_rights_are_printed_for_kafkas_own_tool(part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A line a right, under the configuration's names."""
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(build("topics"), ["topics", "acls", part, "--user", "u"]).output
    assert said.splitlines() == [command(right, "u") for right in rights_of(part, load({}))]
    assert "--allow-principal User:u --operation" in said


def test_a_faulty_configuration_is_exit_code_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`config check` names every fault; a sound configuration is said to be one."""
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(build("config"), ["config", "check"]).exit_code == 0
    (tmp_path / "headrace.yaml").write_text("grace_s: soon\nlimits: {concurrency: 0}\n")
    failed = CliRunner().invoke(build("config"), ["config", "check"])
    assert [fault.split(":")[0] for fault in failed.exception.faults] == ["headrace.yaml line 1", "headrace.yaml line 2"]  # type: ignore[union-attr]
    assert failed.exception.exit_code == 2  # type: ignore[union-attr]

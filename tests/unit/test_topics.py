"""`topics.yaml`, its rules, and the difference to a broker: pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.document import parse as read_text
from headrace.errors import ConfigError
from headrace.topics.drift import Cluster, diff, fit
from headrace.topics.file import Role, Shape, broken_rules, parse

FILE = Path(__file__).parents[2] / "topics.yaml"
DAY_S = 86_400.0


@pytest.fixture
def wanted() -> dict[Role, Shape]:
    return parse(read_text(FILE.read_text(), "topics.yaml"))


def altered(shapes: dict[Role, Shape], role: Role, **config: str) -> dict[Role, Shape]:
    settings = {**shapes[role].config, **{key.replace("_", "."): value for key, value in config.items()}}
    return {**shapes, role: replace(shapes[role], config=settings)}


def test_our_own_file_breaks_no_rule(wanted: dict[Role, Shape]) -> None:
    """What the project ships can be applied, on one broker and on three."""
    assert broken_rules(wanted, DAY_S) == []
    assert broken_rules(fit(wanted, 1), DAY_S) == []


@pytest.mark.parametrize(
    ("role", "key", "value"),
    [
        ("main", "cleanup.policy", "compact"),
        ("dlq", "cleanup.policy", "compact,delete"),
        ("main", "min.insync.replicas", "4"),
        ("retry", "retention.bytes", "1000000"),
        ("retry", "retention.ms", "90000000"),
        ("later", "retention.ms", "90000000"),
        ("results", "retention.ms", "604800000"),
        ("main", "retention.ms", "-1"),
        ("dlq", "max.message.bytes", "1048588"),
        ("results", "max.message.bytes", "1048588"),
        ("later", "message.timestamp.type", "CreateTime"),
    ],
)
def test_each_rule_is_held(wanted: dict[Role, Shape], role: Role, key: str, value: str) -> None:
    """One setting that cannot work is one fault that names the setting."""
    (fault,) = broken_rules(altered(wanted, role, **{key.replace(".", "_"): value}), DAY_S)
    assert key in fault


def test_a_longer_delay_needs_more_wheels(wanted: dict[Role, Shape]) -> None:
    """A delay of three days needs one partition more than 24 h."""
    assert any("partitions" in fault for fault in broken_rules(wanted, 3 * DAY_S))


def test_faults_of_the_file_come_together() -> None:
    """A missing role, an unknown field, a typo in a setting: all at once, with lines."""
    text = (
        FILE.read_text()
        .replace("replication: 3", "replicaton: 3")
        .replace("    partitions: 5\n", "    partitions: 0\n")
        .replace("  dlq:\n", "  dql:\n")
    )
    with pytest.raises(ConfigError) as caught:
        parse(read_text(text, "topics.yaml"))
    found = "\n".join(caught.value.faults)
    assert "did you mean 'replication'" in found
    assert "did you mean 'dlq'" in found
    assert "topics.retry.partitions" in found
    assert "topics.dlq: is missing" in found


def test_names_and_settings_are_judged() -> None:
    """An illegal name, two names Kafka cannot tell apart, and a misspelt setting are faults before the broker is asked."""
    text = FILE.read_text().replace("name: llm_results", "name: llm.requests_main").replace("name: llm_requests_dlq", "name: 'a b'")
    text = text.replace("message.timestamp.type", "message.timestmp.type", 1)
    with pytest.raises(ConfigError) as caught:
        parse(read_text(text, "topics.yaml"))
    assert len(caught.value.faults) == 3


def test_nothing_is_ever_shrunk(wanted: dict[Role, Shape]) -> None:
    """Fewer partitions, shorter retention, smaller records: each is refused with its remedy, and nothing else is changed."""
    bigger = replace(wanted["main"], partitions=12, config={**wanted["main"].config, "retention.ms": "-1", "max.message.bytes": "2000000"})
    cluster = Cluster(3, {shape.name: shape for shape in wanted.values()} | {bigger.name: bigger})
    changes = diff(cluster, wanted)
    assert {change.field for change in changes} == {"partitions", "retention.ms", "max.message.bytes"}
    assert {change.kind for change in changes} == {"refused"}
    assert all("topics.yaml" in change.note for change in changes)


def test_growth_is_a_change(wanted: dict[Role, Shape]) -> None:
    """More partitions, longer retention and other settings are to be applied."""
    smaller = replace(wanted["main"], partitions=4, config={**wanted["main"].config, "retention.ms": "5", "cleanup.policy": "compact"})
    changes = diff(Cluster(3, {shape.name: shape for shape in wanted.values()} | {smaller.name: smaller}), wanted)
    assert [(change.kind, change.field) for change in changes] == [
        ("partitions", "partitions"),
        ("config", "cleanup.policy"),
        ("config", "retention.ms"),
    ]


def test_replication_follows_the_brokers(wanted: dict[Role, Shape]) -> None:
    """One broker gets 1 by itself; two are not silently given fewer replicas than the file wants; --replicas says so."""
    assert {change.kind for change in diff(Cluster(1, {}), fit(wanted, 1))} == {"create"}
    assert {change.kind for change in diff(Cluster(2, {}), fit(wanted, 2))} == {"refused"}
    two = fit(wanted, 2, 2)
    assert {change.kind for change in diff(Cluster(2, {}), two)} == {"create"}
    assert two["main"].config["min.insync.replicas"] == "1"

"""What a worker needs to know of its topics, and every reason not to start with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.config import Settings
from headrace.errors import ConfigError
from headrace.topics.broker import TIMEOUT_S, Topics, compare, missing_line
from headrace.topics.file import broken_rules
from headrace.topics.permissions import Permissions

REMEDY = "run `headrace topics diff`, then `headrace topics apply --execute`"


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the engine needs to know of its topics, by topic name. Retention -1: for ever.

    `faults` are reasons not to start, each with its remedy; `notes` are differences from `topics.yaml` that break no promise.
    """

    max_message_bytes: Mapping[str, int]
    partitions: Mapping[str, int]
    retention_ms: Mapping[str, int]
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check(settings: Settings, *, parts: Sequence[str] = (), timeout_s: float = TIMEOUT_S) -> TopicFacts:
    """The facts of the lanes' topics, with every fault that must stop a worker before it starts. Raises KafkaUnavailable, ConfigError.

    ConfigError also where the broker says that its user lacks rights that these parts (`rights.PARTS`) need.
    """
    if parts and (missing := Permissions(settings, timeout_s=timeout_s).missing(parts)):
        raise ConfigError(missing)
    changes, fitted, cluster = compare(settings, Topics(settings, timeout_s=timeout_s))
    found = cluster.topics
    if absent := [shape.name for shape in fitted.values() if shape.name not in found]:
        faults = [missing_line(absent, settings.kafka.bootstrap)]
    else:
        have = {role: found[shape.name] for role, shape in fitted.items()}
        faults = [f"{fault}; {REMEDY}" for fault in broken_rules(have, settings.limits.longest_delay_s)]
    return TopicFacts(
        max_message_bytes={name: shape.number("max.message.bytes") or 0 for name, shape in found.items()},
        partitions={name: shape.partitions for name, shape in found.items()},
        retention_ms={name: shape.number("retention.ms") or 0 for name, shape in found.items()},
        faults=tuple(faults),
        notes=tuple(f"{c.topic}: {c.field} is {c.before}, and topics.yaml wants {c.after}" for c in changes if c.before is not None),
    )

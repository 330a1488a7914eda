"""The smallest rights (ACLs) each part needs on the broker. `docs/acls.md` is made of them, and a test holds them to a real authorizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.config import Settings

Resource = Literal["topic", "group", "transactional-id", "cluster"]
TOPICS = ("main", "retry", "later", "dlq", "results")


@dataclass(frozen=True, slots=True)
class Right:
    """One ACL: an operation, as Kafka names it, on a resource of this name, or of every name that begins with it."""

    resource: Resource
    name: str
    operation: str
    prefixed: bool = False

    def __str__(self) -> str:
        return f"{self.operation} on {self.resource} {self.name}{'*' if self.prefixed else ''}"


@dataclass(frozen=True, slots=True)
class Part:
    """What runs as one user: operations by topic, by lane's group, and by the prefix of transactional ids. READ, WRITE and ALTER include
    DESCRIBE, ALTER_CONFIGS includes DESCRIBE_CONFIGS.
    """

    what: str
    topics: Mapping[str, str]
    groups: Mapping[str, str]
    transactions: tuple[str, ...] = ()


_CHECKED = dict.fromkeys(TOPICS, "DESCRIBE DESCRIBE_CONFIGS")
PARTS: Mapping[str, Part] = {
    "main": Part(
        "`headrace worker main`",
        _CHECKED
        | {
            "main": "READ DESCRIBE_CONFIGS",
            "retry": "WRITE DESCRIBE_CONFIGS",
            "dlq": "WRITE DESCRIBE_CONFIGS",
            "results": "READ WRITE DESCRIBE_CONFIGS",
        },
        {"main": "READ", "retry": "DESCRIBE", "wheels": "DESCRIBE"},
        ("main",),
    ),
    "retry": Part(
        "`headrace worker retry`, with the timing wheels",
        _CHECKED
        | {
            "retry": "READ WRITE DESCRIBE_CONFIGS",
            "later": "READ WRITE DESCRIBE_CONFIGS",
            "dlq": "WRITE DESCRIBE_CONFIGS",
            "results": "READ WRITE DESCRIBE_CONFIGS",
        },
        {"main": "DESCRIBE", "retry": "READ", "wheels": "READ"},
        ("retry", "wheels"),
    ),
    "dlq": Part(
        "`headrace worker dlq`",
        _CHECKED | {"dlq": "READ DESCRIBE_CONFIGS", "results": "READ DESCRIBE_CONFIGS"},
        {"dlq": "READ"},
        ("dlq",),
    ),
    "produce": Part("`headrace produce`", {"main": "WRITE DESCRIBE_CONFIGS"}, {}),
    "client": Part(
        "`headrace.Client`, `headrace produce --wait`", {"main": "WRITE DESCRIBE_CONFIGS", "results": "READ DESCRIBE_CONFIGS"}, {}
    ),
    "apply": Part(
        "`headrace topics apply`",
        dict.fromkeys(TOPICS, "CREATE ALTER ALTER_CONFIGS"),
        dict.fromkeys(("main", "retry", "dlq", "wheels"), "ALTER_CONFIGS"),
    ),
    "replay": Part(
        "`headrace dlq replay`, `list`, `show`, `stats`",
        {"dlq": "READ DESCRIBE_CONFIGS", "main": "WRITE DESCRIBE_CONFIGS"},
        {},
        ("replay",),
    ),
    "audit": Part(
        "`headrace audit`",
        dict.fromkeys(TOPICS, "READ DESCRIBE_CONFIGS"),
        dict.fromkeys(("main", "retry", "wheels"), "DESCRIBE"),
    ),
    "status": Part(
        "`headrace status`",
        dict.fromkeys(("main", "retry", "later"), "DESCRIBE DESCRIBE_CONFIGS") | {"dlq": "READ DESCRIBE_CONFIGS"},
        dict.fromkeys(("main", "retry", "dlq", "wheels"), "DESCRIBE"),
    ),
}


def rights_of(part: str, settings: Settings) -> list[Right]:
    """The rights of a part, under the settings' topics and namespace."""
    found = PARTS[part]
    topics = [Right("topic", getattr(settings.topics, role), op) for role, ops in found.topics.items() for op in ops.split()]
    groups = [Right("group", f"{settings.namespace}.{lane}", op) for lane, ops in found.groups.items() for op in ops.split()]
    ids = [Right("transactional-id", f"{settings.namespace}.{name}.", "WRITE", prefixed=True) for name in found.transactions]
    return [*topics, *groups, *ids]


def command(right: Right, user: str) -> str:
    """The arguments of Kafka's own tool that grant it."""
    operation = "".join(word.capitalize() for word in right.operation.split("_"))
    resource = "--cluster" if right.resource == "cluster" else f"--{right.resource} {right.name}"
    prefixed = " --resource-pattern-type prefixed" if right.prefixed else ""
    return f"--add --allow-principal User:{user} --operation {operation} {resource}{prefixed}"

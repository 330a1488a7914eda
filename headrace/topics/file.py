"""`topics.yaml`: the five topics as they should be, and the rules between them. What the broker has is `topics`' work.

The rules hold for the file and for the broker alike, so both come here as `Shape`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from headrace.config import TopicNames
from headrace.document import Document, nearest, read
from headrace.errors import ConfigError
from headrace.schedule import wheels_for

Role = Literal["main", "retry", "later", "dlq", "results"]
ROLES: tuple[Role, ...] = ("main", "retry", "later", "dlq", "results")
HEADER_ROOM = 64 * 1024  # what the pipeline's own headers may add to a record
CONFIG_NAMES = (
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "local.retention.bytes",
    "local.retention.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.insync.replicas",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class Shape:
    """A topic as it is wanted, or as the broker has it. `config` holds Kafka's names and values as text."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str] = field(default_factory=dict)

    def number(self, key: str) -> int | None:
        """The configuration value as a number; None where it is not there."""
        return int(self.config[key]) if key in self.config else None

    def forever(self, key: str) -> float | None:
        """The same, with Kafka's -1 as infinity."""
        value = self.number(key)
        return float("inf") if value == -1 else value


class _Topic(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    partitions: int = Field(ge=1, le=10_000)
    config: dict[str, bool | int | str] = Field(default_factory=dict)


class _Topics(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    main: _Topic
    retry: _Topic
    later: _Topic
    dlq: _Topic
    results: _Topic


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    replication: int = Field(default=3, ge=1, le=100)
    topics: _Topics


_FIELDS: dict[int, tuple[str, ...]] = {1: tuple(_File.model_fields), 2: ROLES, 3: tuple(_Topic.model_fields)}


def find(path: Path | None = None, *, beside: Path | None = None) -> Path:
    """The file that counts: `path`, else `topics.yaml` in `beside` or here, else the one that came with the package."""
    if path is not None:
        return path
    package = Path(__file__).parent.parent
    own = [folder / "topics.yaml" for folder in (beside, Path()) if folder is not None]
    return next((file for file in (*own, package / "topics.default.yaml") if file.is_file()), package.parent / "topics.yaml")


def load(path: Path | None, names: TopicNames | None = None) -> dict[Role, Shape]:
    """The wanted topics of the file, by role, under `names` if given. Raises ConfigError with every fault of the file itself."""
    shapes = parse(read(find(path)))
    if names is None:
        return shapes
    return {role: replace(shape, name=getattr(names, role)) for role, shape in shapes.items()}


def names_in(path: Path | None) -> TopicNames:
    """The topic names in the file."""
    return TopicNames(**{role: shape.name for role, shape in load(path).items()})


def parse(document: Document) -> dict[Role, Shape]:
    """The wanted topics, by role. Raises ConfigError with every fault, each with its line."""
    try:
        file = _File.model_validate(document.data)
    except pydantic.ValidationError as error:
        raise ConfigError([_fault(document, dict(e)) for e in error.errors(include_url=False, include_input=False)]) from None
    shapes = {role: _shape(getattr(file.topics, role), file.replication) for role in ROLES}
    faults = [f"{document.place(('topics', role))}: {text}" for role in ROLES for text in _own_faults(shapes[role])]
    faults += _same_names(document, shapes)
    if faults:
        raise ConfigError(faults)
    return shapes


def broken_rules(topics: Mapping[Role, Shape], longest_delay_s: float) -> list[str]:
    """What cannot work about these topics, one line each. A value that is not given is not judged."""
    faults = [fault for shape in topics.values() for fault in _alone(shape)]
    for waiting in (topics["retry"], topics["later"]):
        faults += _outlives(waiting, 2 * int(longest_delay_s * 1000), "twice limits.longest_delay_s")
    main, dlq = topics["main"].forever("retention.ms"), topics["dlq"].forever("retention.ms")
    if main is not None and dlq is not None:
        faults += _outlives(
            topics["results"],
            main + dlq,
            f"retention of {topics['main'].name} + {topics['dlq'].name}, so that no request returns after its answer is gone",
        )
    room = topics["main"].number("max.message.bytes")
    for shape in (topics["retry"], topics["later"], topics["dlq"], topics["results"]):
        size = shape.number("max.message.bytes")
        if room is not None and size is not None and size < room + HEADER_ROOM:
            faults.append(
                f"{shape.name}: max.message.bytes is {size}, and must be {room + HEADER_ROOM} at least ({topics['main'].name}'s + {HEADER_ROOM} for headers)"
            )
    return faults + _wheels(topics["later"], longest_delay_s)


def _alone(shape: Shape) -> list[str]:
    faults = []
    if (policy := shape.config.get("cleanup.policy", "delete")) != "delete":
        faults.append(
            f"{shape.name}: cleanup.policy is {policy}, and must be delete: compaction removes requests, and refuses records without a key"
        )
    if (isr := shape.number("min.insync.replicas")) is not None and isr > shape.replication:
        faults.append(
            f"{shape.name}: min.insync.replicas is {isr} with replication {shape.replication}, so nothing could be written; lower it"
        )
    if (size := shape.forever("retention.bytes")) is not None and size != float("inf"):
        faults.append(
            f"{shape.name}: retention.bytes is {size:.0f}, and must be -1: a full topic would drop requests that were never handled"
        )
    return faults


def _outlives(shape: Shape, least_ms: float, of: str) -> list[str]:
    have = shape.forever("retention.ms")
    if have is None or have >= least_ms:
        return []
    least = "-1" if least_ms == float("inf") else f"{least_ms:.0f} at least"
    return [f"{shape.name}: retention.ms is {have:.0f}, and must be {least} ({of})"]


def _wheels(later: Shape, longest_delay_s: float) -> list[str]:
    faults = []
    if later.partitions < (needed := wheels_for(longest_delay_s)):
        faults.append(
            f"{later.name}: has {later.partitions} partitions, and needs {needed}: one a timing wheel, for limits.longest_delay_s = {longest_delay_s:g}"
        )
    if later.config.get("message.timestamp.type", "CreateTime") != "LogAppendTime":
        faults.append(f"{later.name}: message.timestamp.type must be LogAppendTime: a timing wheel is read by append time")
    return faults


def _shape(topic: _Topic, replication: int) -> Shape:
    config = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in topic.config.items()}
    return Shape(topic.name, topic.partitions, replication, config)


def _own_faults(shape: Shape) -> list[str]:
    faults = []
    if not _NAME.fullmatch(shape.name) or shape.name in (".", ".."):
        faults.append(f"name {shape.name[:60]!r}: Kafka allows 1-249 characters of A-Z a-z 0-9 . _ -")
    for key, value in shape.config.items():
        if key not in CONFIG_NAMES and (hint := nearest(key, CONFIG_NAMES)):
            faults.append(f"config {key!r}: Kafka knows no such setting{hint}")
        if key.endswith((".ms", ".bytes", ".replicas")) and not re.fullmatch(r"-?\d+", value):
            faults.append(f"config {key}: must be a whole number")
    return faults


def _same_names(document: Document, shapes: Mapping[Role, Shape]) -> list[str]:
    """Kafka treats `.` and `_` as one in metric names, and refuses a topic that differs from another only there."""
    seen: dict[str, Role] = {}
    faults = []
    for role, shape in shapes.items():
        first = seen.setdefault(shape.name.replace(".", "_"), role)
        if first != role:
            faults.append(
                f"{document.place(('topics', role, 'name'))}: {role} and {first} have the same name (`.` and `_` count as one); give each its own"
            )
    return faults


def _fault(document: Document, error: dict[str, Any]) -> str:
    path = tuple(error["loc"])
    name = ".".join(map(str, path))
    if error["type"] == "extra_forbidden":
        known = _FIELDS.get(len(path), ())
        return f"{document.place(path)}: {name}: unknown field{nearest(str(path[-1]), known)} (known: {', '.join(known)})"
    if error["type"] == "missing":
        return f"{document.place(path)}: {name}: is missing; add it"
    return f"{document.place(path)}: {name}: {error['msg'][:1].lower()}{error['msg'][1:]}"

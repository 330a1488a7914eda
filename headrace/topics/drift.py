"""How the broker's topics differ from the wanted ones, as values. Pure; `topics` fetches what is there and carries changes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from headrace.topics.file import Role, Shape

Kind = Literal["create", "partitions", "config", "refused"]
INFINITE = -1
# Lower is a loss: records deleted before they were handled, or refused where they were accepted before.
_NEVER_LOWER = ("retention.ms", "retention.bytes", "max.message.bytes", "local.retention.ms", "local.retention.bytes")


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `field` is `topic`, `partitions`, `replication` or a configuration name; a `refused` one carries its remedy in `note`."""

    kind: Kind
    topic: str
    field: str
    before: str | None
    after: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the broker has: how many brokers are up, and the topics it knows, by name."""

    brokers: int
    topics: Mapping[str, Shape]


def fit(wanted: Mapping[Role, Shape], brokers: int, replicas: int | None = None) -> dict[Role, Shape]:
    """The wanted topics with `replicas` if given; a broker that is alone gets 1, as a development broker is."""
    replication = replicas or (1 if brokers == 1 else None)
    if replication is None:
        return dict(wanted)
    return {role: _with_replication(shape, replication) for role, shape in wanted.items()}


def diff(cluster: Cluster, wanted: Mapping[Role, Shape]) -> list[Change]:
    """Every difference between the cluster and the wanted topics, in the order of the file. Nothing here deletes or shrinks."""
    changes: list[Change] = []
    for shape in wanted.values():
        have = cluster.topics.get(shape.name)
        changes += _creation(shape, cluster.brokers) if have is None else _alterations(have, shape)
    return changes


def _with_replication(shape: Shape, replication: int) -> Shape:
    config = dict(shape.config)
    if (isr := shape.number("min.insync.replicas")) is not None:
        config["min.insync.replicas"] = str(_isr(isr, replication))
    return replace(shape, replication=replication, config=config)


def _isr(wanted: int, replication: int) -> int:
    """As wanted, but so that one replica may be down."""
    return max(1, min(wanted, replication - 1))


def _creation(shape: Shape, brokers: int) -> Iterator[Change]:
    after = f"{shape.partitions} partitions, {shape.replication} replica{'' if shape.replication == 1 else 's'}"
    if shape.replication > brokers:
        note = f"only {brokers} brokers are up: start {shape.replication}, or say --replicas {brokers}"
        yield Change("refused", shape.name, "topic", None, after, note)
    else:
        yield Change("create", shape.name, "topic", None, after)


def _alterations(have: Shape, want: Shape) -> Iterator[Change]:
    if want.partitions > have.partitions:
        note = "keys move to other partitions" if want.partitions > 1 else ""
        yield Change("partitions", want.name, "partitions", str(have.partitions), str(want.partitions), note)
    elif want.partitions < have.partitions:
        note = f"Kafka cannot remove partitions: set partitions: {have.partitions} in topics.yaml"
        yield Change("refused", want.name, "partitions", str(have.partitions), str(want.partitions), note)
    if want.replication > have.replication:
        note = "needs a reassignment, which is not done here: kafka-reassign-partitions"
        yield Change("refused", want.name, "replication", str(have.replication), str(want.replication), note)
    for key, value in want.config.items():
        yield from _setting(have, want, key, value)


def _setting(have: Shape, want: Shape, key: str, value: str) -> Iterator[Change]:
    before = have.config.get(key)
    if key == "min.insync.replicas" and want.replication > have.replication:
        value = str(_isr(int(value), have.replication))
    if before == value or (before is not None and _same(before, value)):
        return
    if key in _NEVER_LOWER and before is not None and _below(value, before):
        note = f"would drop or refuse records: set {key}: {before} in topics.yaml, or lower it by hand with kafka-configs"
        yield Change("refused", want.name, key, before, value, note)
    else:
        yield Change("config", want.name, key, before, value)


def _same(one: str, other: str) -> bool:
    """List-valued settings may come in another order."""
    return sorted(one.replace(" ", "").split(",")) == sorted(other.replace(" ", "").split(","))


def _below(value: str, before: str) -> bool:
    low, high = int(value), int(before)
    return high == INFINITE or (low != INFINITE and low < high)

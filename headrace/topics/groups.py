"""The consumer groups' own configuration on the broker: how soon a killed worker's partitions are taken over (KIP-848).

A broker without it, or with other bounds, still serves: the takeover then takes the broker's session time-out.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from headrace.client_config import base_config
from headrace.config import Settings

LANES = ("main", "retry", "dlq", "wheels")
WANTED = {"consumer.session.timeout.ms": "10000", "consumer.heartbeat.interval.ms": "2000"}
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class GroupChange:
    """One value of one group that differs from what is wanted. `error` is the broker's reason, where it would not take it."""

    group: str
    field: str
    before: str
    after: str
    error: str | None = None


class Groups:
    """The groups of one namespace. Nothing here raises for what the broker cannot do: it is not needed, only quicker."""

    def __init__(self, settings: Settings) -> None:
        self._names = [f"{settings.namespace}.{lane}" for lane in LANES]
        self._admin = AdminClient(base_config(settings, "groups"))

    def differences(self) -> list[GroupChange]:
        """What `apply` would set; empty where the broker knows no configuration of groups."""
        return [change for name in self._names for change in self._of(name)]

    def takeover(self) -> str:
        """The group protocol the broker has, as far as it tells, and how soon it gives away what a killed worker had."""
        try:
            found = self._answer(
                self._admin.describe_configs([ConfigResource(ResourceType.GROUP, self._names[0])], request_timeout=TIMEOUT_S)
            )
        except (KafkaException, TimeoutError):
            return "the broker tells nothing of groups: auto finds out whether it has KIP-848"
        session = found.get("consumer.session.timeout.ms")
        return f"groups by KIP-848, session time-out {session.value} ms" if session is not None else "classic groups"

    def apply(self, changes: list[GroupChange]) -> list[GroupChange]:
        """Set them; each with the broker's reason where it refused."""
        return [
            change
            for name in dict.fromkeys(c.group for c in changes)
            for change in self._set(name, [c for c in changes if c.group == name])
        ]

    def _of(self, name: str) -> Iterator[GroupChange]:
        resource = ConfigResource(ResourceType.GROUP, name)
        try:
            found: dict[str, Any] = self._answer(self._admin.describe_configs([resource], request_timeout=TIMEOUT_S))
        except (KafkaException, TimeoutError):
            return
        for field, after in WANTED.items():
            entry = found.get(field)
            if entry is not None and int(entry.value) > int(after):  # never raised: a broker that is quicker stays so
                yield GroupChange(name, field, str(entry.value), after)

    def _set(self, name: str, changes: list[GroupChange]) -> Iterator[GroupChange]:
        entries = [ConfigEntry(c.field, c.after, incremental_operation=AlterConfigOpType.SET) for c in changes]
        resource = ConfigResource(ResourceType.GROUP, name, incremental_configs=entries)
        error = None
        try:
            self._answer(self._admin.incremental_alter_configs([resource], request_timeout=TIMEOUT_S))
        except KafkaException as refused:
            error = refused.args[0].str()
        except TimeoutError:
            error = f"no answer within {TIMEOUT_S:g} s"
        for change in changes:
            yield GroupChange(change.group, change.field, change.before, change.after, error)

    @staticmethod
    def _answer(futures: dict[Any, Future[Any]]) -> Any:
        return next(iter(futures.values())).result(TIMEOUT_S + 2)

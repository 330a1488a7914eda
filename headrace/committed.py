"""Committed offsets and maps as the broker has them, stable: pending transactions are waited for. Any lane's, from any process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from headrace.client_config import base_config
from headrace.config import Settings
from headrace.envelope import Position
from headrace.errors import KafkaUnavailable
from headrace.offsets import Map, decode_map

REQUEST_S = 10.0


@dataclass(frozen=True, slots=True)
class Standing:
    """One partition of one group: committed offset (-1: none), its map, and where the log starts and ends."""

    committed: int
    map: Map | None
    start: int
    end: int

    def resolved(self, offset: int) -> bool | None:
        """Whether the record at `offset` was settled; None: it was not, and it is gone from the log."""
        if self.committed >= 0 and (offset < self.committed or (self.map is not None and self.map.resolved(offset))):
            return True
        return None if offset < self.start else False

    @property
    def lag(self) -> int:
        """How many offsets are not resolved; transaction markers among them count too."""
        if self.committed < 0:
            return self.end - self.start
        if self.map is None:
            return max(0, self.end - max(self.committed, self.start))
        return self.map.unresolved.bit_count() + max(0, self.end - self.map.end)

    @property
    def lost(self) -> int:
        """How many offsets fell out of the log before they were settled; transaction markers among them count too."""
        if not 0 <= self.committed < self.start:
            return 0
        if self.map is None:
            return self.start - self.committed
        return sum(offset < self.start for offset in self.map.offsets()) + max(0, self.start - self.map.end)


class Committed:
    """Reads `groups[topic]`'s offsets of that topic. Blocking; the async form runs it in a thread."""

    def __init__(self, settings: Settings, groups: Mapping[str, str]) -> None:
        self._settings = settings
        self._groups = groups
        self._admin: AdminClient | None = None
        self._stale = False

    def read(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Standing]:
        """Where each partition stands. Raises KafkaUnavailable."""
        wanted = list(partitions)
        try:
            return self._read(wanted)
        except (KafkaException, TimeoutError) as error:
            self._stale = True
            why = str(error) or "no answer"
            raise KafkaUnavailable(f"committed offsets could not be read from {self._settings.kafka.bootstrap}: {why}") from error

    async def resolved(self, positions: Sequence[Position]) -> list[bool | None]:
        """For each position whether its record was settled; None: unresolved and below the log's start. Raises KafkaUnavailable."""
        partitions = {(p.topic, p.partition) for p in positions if p.topic in self._groups}
        standings = await asyncio.to_thread(self.read, partitions) if partitions else {}
        return [s.resolved(p.offset) if (s := standings.get((p.topic, p.partition))) else False for p in positions]

    def _read(self, wanted: list[tuple[str, int]]) -> dict[tuple[str, int], Standing]:
        # the other strategy forgets its brokers in an outage, but not the coordinator's old handle: see `producer_config`
        config = base_config(self._settings, "admin") | {"metadata.recovery.strategy": "none"}
        admin = self._admin = self._admin or AdminClient(config)
        if self._stale:
            # After a broker's restart the client goes on asking with the leader epoch it has cached (FENCED_LEADER_EPOCH). It
            # must not be replaced: what is still asked of it would be answered in a client that is being destroyed.
            admin.list_topics(timeout=REQUEST_S)
            self._stale = False
        groups: dict[str, list[TopicPartition]] = {}
        for topic, partition in wanted:
            groups.setdefault(self._groups[topic], []).append(TopicPartition(topic, partition))
        offsets = [self._offsets(admin, group, partitions) for group, partitions in groups.items()]
        starts, ends = (self._log(admin, wanted, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))  # type: ignore[no-untyped-call]  # theirs
        standings: dict[tuple[str, int], Standing] = {}
        for future in offsets:
            for tp in future.result(REQUEST_S).topic_partitions:
                if tp.error is not None:
                    raise KafkaException(tp.error)
                key = (tp.topic, tp.partition)
                found = decode_map(tp.offset, tp.metadata) if tp.offset >= 0 else None
                standings[key] = Standing(
                    max(tp.offset, -1), found, starts[key].result(REQUEST_S).offset, ends[key].result(REQUEST_S).offset
                )
        return standings

    def _offsets(self, admin: AdminClient, group: str, partitions: list[TopicPartition]) -> Future[Any]:
        request = [ConsumerGroupTopicPartitions(group, partitions)]
        return admin.list_consumer_group_offsets(request, require_stable=True, request_timeout=REQUEST_S)[group]

    def _log(self, admin: AdminClient, wanted: list[tuple[str, int]], spec: OffsetSpec) -> dict[tuple[str, int], Future[Any]]:
        futures = admin.list_offsets({TopicPartition(t, p): spec for t, p in wanted}, request_timeout=REQUEST_S)
        return {(tp.topic, tp.partition): future for tp, future in futures.items()}

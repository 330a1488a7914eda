"""Committed offsets and maps as the broker has them, stable: pending transactions are waited for. Any lane's, from any process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from headrace.client_config import base_config, unpolled
from headrace.config import Settings
from headrace.envelope import Position
from headrace.errors import KafkaUnavailable
from headrace.offsets import Map, decode_map

REQUEST_S = 10.0

_TP = tuple[str, int]


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
        self._readers: dict[str, Consumer] = {}
        self._lock = threading.Lock()

    def read(self, partitions: Iterable[_TP]) -> dict[_TP, Standing]:
        """Where each partition stands. Raises KafkaUnavailable."""
        wanted = list(partitions)
        with self._unavailable("committed offsets"):
            return self._read(wanted)

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """How many partitions these topics have by now: they may gain some at any time. Raises KafkaUnavailable."""
        with self._unavailable("partitions"):
            return {topic: len(self._described(topic).partitions) for topic in topics}

    async def resolved(self, positions: Sequence[Position]) -> list[bool | None]:
        """For each position whether its record was settled; None: unresolved and below the log's start. Raises KafkaUnavailable."""
        partitions = {(p.topic, p.partition) for p in positions if p.topic in self._groups}
        standings = await asyncio.to_thread(self.read, partitions) if partitions else {}
        return [s.resolved(p.offset) if (s := standings.get((p.topic, p.partition))) else False for p in positions]

    @contextlib.contextmanager
    def _unavailable(self, what: str) -> Iterator[None]:
        try:
            yield
        except (KafkaException, TimeoutError) as error:
            why = str(error) or "no answer"
            raise KafkaUnavailable(f"{what} could not be read from {self._settings.kafka.bootstrap}: {why}") from error

    def _admin_client(self) -> AdminClient:
        with self._lock:
            if self._admin is None:  # a client is false while its queue is empty: `or` would drop it, with the answers it waits for
                # the other strategy forgets its brokers in an outage, but not the coordinator's old handle: see `producer_config`
                config = unpolled(base_config(self._settings, "admin")) | {"metadata.recovery.strategy": "none"}
                self._admin = AdminClient(config)
            return self._admin

    def _described(self, topic: str) -> Any:
        found = self._admin_client().list_topics(topic, timeout=REQUEST_S).topics[topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return found

    def _read(self, wanted: list[_TP]) -> dict[_TP, Standing]:
        for topic in {topic for topic, _ in wanted}:
            # Asked first, always. It learns the leaders' epochs: with those of before a broker's restart offsets are refused for
            # ever (FENCED_LEADER_EPOCH).
            self._described(topic)
        committed = list(self.offsets(wanted))  # before the ends: what is committed now may lie beyond an end asked for earlier
        starts, ends = (self._log(wanted, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))  # type: ignore[no-untyped-call]  # theirs
        standings: dict[_TP, Standing] = {}
        for tp in committed:
            key = (tp.topic, tp.partition)
            found = decode_map(tp.offset, tp.metadata) if tp.offset >= 0 else None
            standings[key] = Standing(max(tp.offset, -1), found, starts[key].result(REQUEST_S).offset, ends[key].result(REQUEST_S).offset)
        return standings

    def offsets(self, wanted: Iterable[_TP]) -> Iterator[TopicPartition]:
        """What the groups have committed, stable, with its metadata. Raises KafkaException.

        Through consumers that never join: the admin client's request for the same ends the process when the coordinator
        moves (librdkafka 2.16 then asks a consumer group that an admin client does not have).
        """
        groups: dict[str, list[TopicPartition]] = {}
        for topic, partition in wanted:
            groups.setdefault(self._groups[topic], []).append(TopicPartition(topic, partition))
        for group, partitions in groups.items():
            for tp in self._reader(group).committed(partitions, timeout=REQUEST_S):
                if tp.error is not None:
                    raise KafkaException(tp.error)
                yield tp

    def _reader(self, group: str) -> Consumer:
        with self._lock:
            if group not in self._readers:
                config = unpolled(base_config(self._settings, "committed")) | {
                    "group.id": group,
                    "enable.auto.commit": False,
                    "isolation.level": "read_committed",  # waits for pending transactional offsets
                    "metadata.recovery.strategy": "none",
                }
                self._readers[group] = Consumer(config)
            return self._readers[group]

    def _log(self, wanted: list[_TP], spec: OffsetSpec) -> dict[_TP, Future[Any]]:
        futures = self._admin_client().list_offsets({TopicPartition(t, p): spec for t, p in wanted}, request_timeout=REQUEST_S)
        return {(tp.topic, tp.partition): future for tp, future in futures.items()}

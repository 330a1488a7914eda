"""What can be seen of a running lane from outside, as plain values: published by the threads that own it, judged by `watchdog`.

Moments are of the monotonic clock, in seconds. Nothing here holds a record's content, id or key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

TopicPartition = tuple[str, int]


class Reading(NamedTuple):
    """A partition as its source sees it. `reached` is one past what was read (-1: nothing was heard of it yet), `end` what is readable.

    `held` records are read and not yet dispatched; with `no_room` because the window is full. `oldest_ms` is the
    timestamp of the oldest record not yet settled, epoch ms, as far as it was read.
    """

    reached: int
    end: int
    held: int = 0
    no_room: bool = False
    oldest_ms: int | None = None


class Standing(NamedTuple):
    """A partition's offsets. `since` is when it was assigned, `settled_at` its last settle here; `span` is what its map covers."""

    frontier: int
    in_flight: int
    unread: int
    span: int
    map_chars: int
    since: float
    settled_at: float
    restored: bool = True


class Call(NamedTuple):
    """A call under way: of which offset, since when."""

    offset: int
    began_at: float


@dataclass(frozen=True, slots=True)
class AtWork:
    """A lane's loop. `late_ms` is how long what waits longest for its time has been due (below 0: how far that is away; None: nothing waits)."""

    calls: Mapping[TopicPartition, Call] = field(default_factory=dict)
    busy: int = 0
    concurrency: int = 1
    waiting: int = 0
    late_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionSample:
    """One owned partition at one moment. `lag` counts what is readable and not resolved."""

    topic: str
    partition: int
    standing: Standing
    reading: Reading
    call: Call | None = None

    @property
    def lag(self) -> int:
        """How many offsets are still to be resolved; transaction markers not yet read count too."""
        return self.standing.in_flight + self.standing.unread + max(0, self.reading.end - max(self.reading.reached, self.standing.frontier))

    @property
    def heard(self) -> bool:
        """Whether a record or the partition's end was read, and its offsets are known."""
        return self.reading.reached >= 0 and self.standing.restored


@dataclass(frozen=True, slots=True)
class LaneSample:
    """One lane at one moment. `pauses` are the reasons why all of it waits by intention; `received` counts from the start, bytes are of keys and values."""

    lane: str
    partitions: tuple[PartitionSample, ...]
    pauses: tuple[str, ...] = ()
    full: bool = False
    work: AtWork = AtWork()
    unsettled: int = 0
    settled_at: float = 0.0
    joined: bool = True
    store_away: bool = False
    received: int = 0
    received_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EndpointSample:
    """A provider's endpoint by host and port. `out` is why it is left out (None: it is in), `out_s` for how long still; `healthy` None: unchecked."""

    provider: str
    address: str
    in_flight: int = 0
    out: str | None = None
    out_s: float | None = None
    healthy: bool | None = None


@dataclass(frozen=True, slots=True)
class LettersSample:
    """The dead letters that are open, by class, when all there are have been read. `oldest_ms` is epoch ms; `untracked` are beyond what is kept."""

    open: Mapping[str, int] = field(default_factory=dict)
    oldest_ms: int | None = None
    untracked: int = 0


class ThreadSample(NamedTuple):
    """A thread, or the event loop: when it came round last, and how long it may take for that."""

    name: str
    turned_at: float
    patience_s: float
    ident: int | None = None

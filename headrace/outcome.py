"""How a record ends in a lane: a closed union of values. Deciding is pure; `outputs` says what each writes, `settle` does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from headrace.envelope import Attempt, Header, Job, Position, Response
from headrace.errors import Failure

DuplicateOf = Literal["completed", "waiting", "dead", "conflict"]


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned."""

    response: Response
    attempts: tuple[Attempt, ...]
    completed_at_ms: int
    latency_ms: int


@dataclass(frozen=True, slots=True)
class Degraded:
    """Attempts are exhausted, and a configured substitute answers; the dead letter is written too."""

    response: Response
    failure: Failure
    attempts: tuple[Attempt, ...]
    completed_at_ms: int
    latency_ms: int


@dataclass(frozen=True, slots=True)
class Retry:
    """A failure that may pass, with attempts and time left: due again at `due_ms`."""

    failure: Failure
    attempts: tuple[Attempt, ...]
    due_ms: int
    elapsed_ms: int
    failed_at_ms: int


@dataclass(frozen=True, slots=True)
class Deferred:
    """Not now, by no fault of the request: due at `due_ms`, no attempt spent. A `copy` keeps its hop and leaves no mark."""

    due_ms: int
    reason: str
    copy: bool = False


@dataclass(frozen=True, slots=True)
class Dead:
    """A failure that will not pass, or nothing left to try. `claimed`: it holds the claim of its request id.

    `copy`: another record of this id goes on, so this end must not be told as the request's.
    """

    failure: Failure
    dead_at_ms: int
    attempts: tuple[Attempt, ...] = ()
    elapsed_ms: int = 0
    claimed: bool = True
    copy: bool = False


@dataclass(frozen=True, slots=True)
class Dropped:
    """A rate rule dropped it (low priority only)."""

    failure: Failure
    at_ms: int


@dataclass(frozen=True, slots=True)
class Duplicate:
    """This request id is settled already, or on its way; `since_ms` is when that was."""

    of: DuplicateOf
    since_ms: int | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class Moved:
    """Too far away for the near heap: on to timing wheel `wheel`, unclaimed and unchanged."""

    wheel: int


@dataclass(frozen=True, slots=True)
class Noted:
    """The dead-letter lane has told everyone: only the offset moves."""


Outcome = Completed | Degraded | Retry | Deferred | Dead | Dropped | Duplicate | Moved | Noted


class Settlement(NamedTuple):
    """A record and how it ends, waiting for a settle. `token` is the claim it was decided under, if it holds one.

    `alone`: it must be produced in a transaction of its own, since the broker refuses whole batches. `cut`: its dead
    letter was refused even so, and is cut to what fits.
    """

    job: Job
    outcome: Outcome
    token: str | None = None
    alone: bool = False
    cut: bool = False

    @property
    def position(self) -> Position:
        return self.job.record.position


class Output(NamedTuple):
    """A record to be produced inside a settle. `partition` -1 leaves it to the partitioner (murmur2 of the key)."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    partition: int = -1

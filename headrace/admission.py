"""What admission says of a record, as values: it goes, it is ready, or it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace.claims import Conflict, Taken, UnknownReplay
from headrace.envelope import Job, Trail
from headrace.errors import ErrorClass, Failure
from headrace.outcome import Dead, Duplicate, Outcome

_CONFLICT = "this request_id is known with another content; a changed request needs an id of its own"
_UNKNOWN = "headrace_replay_id names no registered replay; leave the header out, or replay with `headrace dlq replay`"


class Go(NamedTuple):
    """Handle it. Without a `token` nothing was claimed: it has no request id, or goes on without Redis."""

    job: Job
    token: str | None


@dataclass(frozen=True, slots=True)
class Ready:
    """An earlier owner of the position left its outcome: settle it without a call."""

    job: Job
    token: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Ends:
    """It ends here, without a claim."""

    job: Job
    outcome: Outcome
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """Its partition went away while it waited here: nothing is settled, its new owner reads it again."""

    job: Job


Admission = Go | Ready | Ends | Gone


def ended(job: Job, answer: Taken | Conflict | UnknownReplay, now_ms: int) -> Ends:
    """How a record ends that gets no claim."""
    match answer:
        case Taken():
            return Ends(job, Duplicate(answer.of, answer.since_ms, now_ms))
        case Conflict():
            return Ends(job, Dead(Failure(ErrorClass.ID_CONFLICT, _CONFLICT), now_ms, claimed=False))
        case UnknownReplay():
            # told of by its own position: what it says of its id and origin is anybody's word, and may follow their completed result
            stranger = job._replace(request_id=None, trail=Trail(job.record.position))
            return Ends(stranger, Dead(Failure(ErrorClass.INVALID_REQUEST, _UNKNOWN), now_ms, claimed=False))

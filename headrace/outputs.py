"""What each outcome writes: results, retries, dead letters, as records to be produced. Pure; `settle` produces them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson

from headrace.config import TopicNames
from headrace.envelope import Attempt, Header, Job, Response, Trail
from headrace.errors import ErrorClass, Failure
from headrace.outcome import Completed, Dead, Deferred, Degraded, Dropped, Duplicate, Moved, Noted, Output, Retry, Settlement
from headrace.schedule import DUE_HEADER, partition_of
from headrace.trail import ORIGIN_HEADER, TIME_MAX_MS, dump_attempts, failure_fields, foreign_headers, row_of, trail_fields, write_trail

_YEAR_1_MS = -62_135_596_800_000
_RESULT_REST = 1_024  # key, headers and framing of a result, at most
_RECORD_OVERHEAD = 128  # batch and record framing, at most; a few bytes are spent a header besides


@dataclass(frozen=True, slots=True)
class Outputs:
    """Turns settlements into records. `limits` are the topics' `max.message.bytes`, by topic name."""

    topics: TopicNames
    limits: Mapping[str, int]
    duplicate_notices: bool = True

    def of(self, settlement: Settlement) -> list[Output]:
        """The records of one settlement, in the order they are to be produced."""
        job, outcome = settlement.job, settlement.outcome
        match outcome:
            case Completed():
                return [self._answer(job, outcome, "completed", None)]
            case Degraded():
                dead = Dead(outcome.failure, outcome.completed_at_ms, outcome.attempts)
                return [self._answer(job, outcome, "degraded", outcome.failure), self._dead_letter(job, dead, cut=settlement.cut)]
            case Retry():
                return [self._retry(job, outcome)]
            case Deferred():
                return [self._deferred(job, outcome)]
            case Dead():
                return self._dead(job, outcome, cut=settlement.cut)
            case Dropped():
                return [self._notice(job, "failed", outcome.at_ms, failure=outcome.failure)]
            case Duplicate():
                return [self._duplicate(job, outcome)] if self.duplicate_notices else []
            case Moved():
                record = job.record
                return [Output(self.topics.later, record.key, record.value, _with_due(job), partition_of(outcome.wheel))]
            case Noted():
                return []

    def too_large(self, output: Output) -> bool:
        """Whether the record, uncompressed, is over its topic's limit: then it must be tried alone, as only the broker can tell."""
        limit = self.limits.get(output.topic, 1 << 20)
        if output.topic == self.topics.results and len(output.value or b"") + _RESULT_REST <= limit:
            return False  # its key and headers are ours, and short: measuring them would cost as much as writing them
        return size_of(output) > limit

    def _answer(self, job: Job, outcome: Completed | Degraded, status: str, failure: Failure | None) -> Output:
        request = job.request
        assert request is not None, "only a request can have been answered"
        response = outcome.response
        created_ms = int(request.created_at.timestamp() * 1000) if request.created_at else job.record.timestamp_ms
        value = orjson.dumps(
            {
                "request_id": request.request_id,
                "status": status,
                "response": {"status_code": response.status_code, "request_id": response.provider_request_id, "body": _body(response)},
                "error": _error(failure),
                "provider": response.provider,
                "model": response.model,
                "finish_reason": response.finish_reason,
                "usage": response.usage,
                "attempts": _attempts(job.trail, outcome.attempts),
                "queued_ms": max(0, outcome.completed_at_ms - outcome.latency_ms - job.record.timestamp_ms),
                "latency_ms": outcome.latency_ms,
                "created_at": rfc3339(created_ms),
                "completed_at": rfc3339(outcome.completed_at_ms),
                "agent_id": request.agent_id,
                "channel": request.channel,
                "metadata": request.metadata,
            }
        )
        return Output(self.topics.results, request.request_id.encode(), value, self._result_headers(job, status))

    def _dead(self, job: Job, outcome: Dead, *, cut: bool) -> list[Output]:
        if outcome.failure.error_class is ErrorClass.ID_CONFLICT or outcome.copy:
            notice = self._notice(job, "duplicate", outcome.dead_at_ms, failure=outcome.failure, of="conflict")
        else:
            notice = self._notice(job, "failed", outcome.dead_at_ms, failure=outcome.failure, attempts=outcome.attempts)
        return [self._dead_letter(job, outcome, cut=cut), notice]

    def _dead_letter(self, job: Job, outcome: Dead, *, cut: bool) -> Output:
        trail, record = job.trail, job.record
        fields = trail_fields(trail) | {
            "retry_count": trail.retry_count + len(outcome.attempts),
            "next_retry_at": None,
            "first_failed_at": trail.first_failed_at_ms or outcome.dead_at_ms,
            "dead_at": outcome.dead_at_ms,
            "elapsed_ms": outcome.elapsed_ms or trail.elapsed_ms or None,
            "attempts": dump_attempts(trail.attempts + outcome.attempts),
            **failure_fields(outcome.failure),
        }
        output = Output(self.topics.dlq, record.key, record.value, write_trail(record.headers, fields))
        return self._cut(output, fields) if cut and self.too_large(output) else output

    def _cut(self, output: Output, fields: dict[str, str | int | None]) -> Output:
        """What the broker refused by itself: the value's beginning, flagged, with the producer's headers left out."""
        flagged = write_trail(
            [], fields | {"cut": f"value {len(output.value or b'')} bytes, headers {len(foreign_headers(output.headers))}"}
        )
        room = self.limits.get(output.topic, 1 << 20) - _size(flagged) - _RECORD_OVERHEAD - 1024
        return Output(output.topic, (output.key or b"")[:1024] or None, (output.value or b"")[: max(0, room)], flagged)

    def _retry(self, job: Job, outcome: Retry) -> Output:
        trail, record = job.trail, job.record
        fields = trail_fields(trail) | {
            "hop": trail.hop + 1,
            "retry_count": trail.retry_count + 1,
            "next_retry_at": outcome.due_ms,
            "first_failed_at": trail.first_failed_at_ms or outcome.failed_at_ms,
            "elapsed_ms": outcome.elapsed_ms,
            "attempts": dump_attempts(trail.attempts + outcome.attempts),
            **failure_fields(outcome.failure),
        }
        return Output(self.topics.retry, record.key, record.value, write_trail(record.headers, fields))

    def _deferred(self, job: Job, outcome: Deferred) -> Output:
        trail, record = job.trail, job.record
        fields = trail_fields(trail) | {"hop": trail.hop + (0 if outcome.copy else 1), "next_retry_at": outcome.due_ms}
        return Output(self.topics.retry, record.key, record.value, write_trail(record.headers, fields))

    def _duplicate(self, job: Job, outcome: Duplicate) -> Output:
        since = rfc3339(outcome.since_ms) if outcome.since_ms is not None else None
        return self._notice(job, "duplicate", outcome.at_ms, of=outcome.of, since=since)

    def _notice(
        self,
        job: Job,
        status: str,
        at_ms: int,
        *,
        failure: Failure | None = None,
        attempts: Sequence[Attempt] = (),
        of: str | None = None,
        since: str | None = None,
    ) -> Output:
        request = job.request
        value: dict[str, Any] = {
            "request_id": job.request_id,
            "status": status,
            "response": None,
            "error": _error(failure),
            "provider": failure.provider if failure else None,
            "model": failure.model if failure else None,
            "attempts": _attempts(job.trail, attempts),
            "completed_at": rfc3339(at_ms),
            "origin": str(job.trail.origin),
            "agent_id": request.agent_id if request else None,
            "channel": request.channel if request else None,
            "metadata": request.metadata if request else None,
        }
        if of is not None:
            value |= {"of": of, "since": since}
        key = (job.request_id or str(job.trail.origin)).encode()
        notice = Output(self.topics.results, key, orjson.dumps(value), self._result_headers(job, status))
        if not self.too_large(notice):
            return notice
        # Only metadata can be so long. A notice must be taken: there is nothing to settle instead of it.
        return notice._replace(value=orjson.dumps(value | {"metadata": None}))

    def _result_headers(self, job: Job, status: str) -> list[Header]:
        headers: list[Header] = [("headrace_status", status.encode()), ("headrace_origin", str(job.trail.origin).encode())]
        if job.fingerprint:
            headers.append(("headrace_fingerprint", job.fingerprint.encode()))
        return headers


def size_of(output: Output) -> int:
    """Bytes the record takes uncompressed, at most."""
    return len(output.key or b"") + len(output.value or b"") + _size(output.headers) + _RECORD_OVERHEAD


def rfc3339(ms: int) -> str:
    """Epoch milliseconds as RFC 3339 in UTC. Producers choose their records' times: what lies outside the years 1 to 9999 is clamped."""
    ms = min(max(ms, _YEAR_1_MS), TIME_MAX_MS)
    return f"{_second(ms // 1000)}.{ms % 1000:03d}Z"


@lru_cache(256)
def _second(seconds: int) -> str:
    """Formatting a time costs as much as the rest of a result; of one second there are many."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()


def _with_due(job: Job) -> list[Header]:
    """The headers as they are, due time and origin among them, wherever they stood: the wheels read the one, and who comes back needs the other."""
    others: list[Header] = [h for h in job.record.headers if h[0] not in (DUE_HEADER, ORIGIN_HEADER)]
    return [*others, (ORIGIN_HEADER, str(job.trail.origin).encode()), (DUE_HEADER, str(job.trail.next_retry_at_ms).encode())]


def _size(headers: Sequence[Header]) -> int:
    return sum(len(name.encode("utf-8", "replace")) + len(value or b"") + 10 for name, value in headers)


def _body(response: Response) -> object:
    return orjson.Fragment(response.body) if isinstance(response.body, bytes) else response.body


def _error(failure: Failure | None) -> dict[str, str | None] | None:
    if failure is None:
        return None
    return {"class": failure.error_class.value, "code": failure.code, "message": failure.message}


def _attempts(trail: Trail, new: Sequence[Attempt]) -> dict[str, Any]:
    return {"count": trail.retry_count + len(new), "each": [row_of(attempt) for attempt in (*trail.attempts, *new)]}

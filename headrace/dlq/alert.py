"""What is told about dead letters: facts and counts, never a prompt. When it is told is `outlet`'s work, where to is a sink's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from headrace.dlq.letter import Letter
from headrace.redact import OTHER, mask, plain
from headrace.trace import trace_id

Fingerprint = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Alert:
    """`count` dead letters of one fingerprint; id, code, attempts and positions are those of the last. Times: epoch ms."""

    pipeline: str
    error_class: str
    provider: str
    model: str
    topic: str
    first_at_ms: int
    last_at_ms: int
    position: str
    origin: str
    code: str | None = None
    request_id: str | None = None
    attempts: int = 0
    replay_count: int = 0
    count: int = 1
    trace_id: str | None = None

    @property
    def fingerprint(self) -> Fingerprint:
        """What makes two alerts the same. Never the request id: it would defeat every grouping."""
        return (self.pipeline, self.error_class, self.provider, self.model)

    def plus(self, other: Alert) -> Alert:
        """Both as one; the later of the two is its example."""
        last = other if other.last_at_ms >= self.last_at_ms else self
        first_at_ms = min(self.first_at_ms, other.first_at_ms)
        return replace(last, count=self.count + other.count, first_at_ms=first_at_ms)

    def folded(self) -> Alert:
        """The same without provider and model, for when callers choose more names than can be told apart."""
        return replace(self, provider=OTHER, model=OTHER)


class Sink(Protocol):
    """Somewhere to send alerts. `send` returns once it was accepted, and raises otherwise; it is then called again later."""

    @property
    def name(self) -> str: ...

    async def send(self, alert: Alert) -> None: ...


class SinkBusy(Exception):
    """The sink asks for a pause of `retry_after_s`."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"busy for {retry_after_s:g} s")
        self.retry_after_s = retry_after_s


class SinkRefused(Exception):
    """The sink will never take this alert; repeating it is useless."""


def alert_of(letter: Letter, pipeline: str) -> Alert:
    """The alert for one dead letter of a pipeline (its namespace)."""
    return Alert(
        pipeline=pipeline,
        error_class=letter.error_class,
        provider=plain(letter.provider),
        model=plain(letter.model),
        topic=letter.position.topic,
        first_at_ms=letter.dead_at_ms,
        last_at_ms=letter.dead_at_ms,
        position=str(letter.position),
        origin=str(letter.origin),
        code=plain(mask(letter.code, limit=64)) if letter.code else None,
        request_id=letter.request_id,
        attempts=max(letter.trail.retry_count, len(letter.trail.attempts)),
        replay_count=letter.replay_count,
        trace_id=trace_id(letter.trail.traceparent),
    )

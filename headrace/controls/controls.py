"""What one worker knows of the operators' orders: asked before every call, replaced as a whole when they change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.controls.entry import Entry, asked_model
from headrace.controls.pace import Pace, look_ms
from headrace.controls.rules import Rules
from headrace.envelope import Job, Request
from headrace.instrument import Tell, silent
from headrace.plural import counted

TARGETS = "targets"  # a place in the pace for all pauses of targets together


class Controls:
    """Not thread-safe: it belongs to the event loop. `active` is False while there is no order, and nothing else need be asked then."""

    def __init__(self, *, tell: Tell = silent) -> None:
        self._tell = tell
        self._pace = Pace()
        self.rules = Rules()
        self.active = False

    def replace(self, entries: Iterable[Entry], now_ms: int) -> None:
        """These stand now, and no others. What is new and what is gone is told."""
        before = {key: entry for key, entry in self.rules.entries.items() if entry.stands(now_ms)}
        self.rules = Rules(entry for entry in entries if entry.stands(now_ms))
        after = self.rules.entries
        for key, entry in after.items():
            known = before.get(key)
            if known is None or known.since_ms != entry.since_ms:
                self._began(entry)
        for key in before.keys() - after.keys():
            self._ended(before[key])
        self._pace.keep({*after, TARGETS})
        self.active = bool(after)

    def expire(self, now_ms: int) -> None:
        """Let go of what has run out."""
        if self.active and not all(entry.stands(now_ms) for entry in self.rules.entries.values()):
            gone = [entry for entry in self.rules.entries.values() if not entry.stands(now_ms)]
            self.replace(self.rules.entries.values(), now_ms)
            for entry in gone:
                self._ended(entry)

    def holds(self, provider: str, model: str | None, now_ms: int) -> bool:
        """Whether an operator paused this model of a provider; without a model, all of the provider."""
        return self.active and self.rules.target(provider, model, now_ms) is not None

    def back_ms(self, provider: str, model: str, now_ms: int) -> int | None:
        """When a request that met such a pause looks again, before it is `spaced`; None without one."""
        entry = self.rules.target(provider, model, now_ms) if self.active else None
        return None if entry is None else look_ms(entry.since_ms, entry.until_ms, now_ms)

    def spaced(self, until_ms: int) -> int:
        """As much later that those who wait for a target do not come back all at once."""
        return self._pace.spaced(TARGETS, until_ms) if self.active else until_ms

    def paused_ms(self, request: Request, now_ms: int) -> int | None:
        """When a request that is paused for what it is looks again; None if it is not."""
        return self._due_ms(self.rules.request(request.request_id, request.agent_id, request.channel, now_ms), now_ms)

    def cancelled(self, job: Job, default_model: str, now_ms: int) -> Entry | None:
        """The order that cancels all that an agent, a channel or a model had waiting, if this is among it."""
        request = job.request
        if request is None:
            return None
        return self.rules.cancel(request.agent_id, request.channel, asked_model(request, default_model), job.trail.origin, now_ms)

    def _due_ms(self, entry: Entry | None, now_ms: int) -> int | None:
        return None if entry is None else self._pace.due_ms(entry.key, entry.since_ms, entry.until_ms, now_ms)

    def _began(self, entry: Entry) -> None:
        if entry.kind == "pause":
            self._tell("paused_by_operator", told(entry))
        else:
            self._tell("cancelled_by_operator", told(entry))

    def _ended(self, entry: Entry) -> None:
        if entry.kind == "pause":
            self._tell("resumed_by_operator", told(entry))
        else:
            self._tell("cancellation_ended", told(entry))


def told(entry: Entry) -> Mapping[str, Any]:
    """An order as an event's fields: who, why, since and until when, and what about. An id is its own name; no request's content is here."""
    about = counted(entry.left, "id") if entry.kind == "ids" else str(entry.scope)
    return {"about": about, "by": entry.who, "reason": entry.why, "since_ms": entry.since_ms, "until_ms": entry.until_ms}

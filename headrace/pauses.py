"""Targets that are shut because of a quota or a key: a pure state machine of one process. Alerts and deferrals are others' work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headrace.config import PauseSettings
from headrace.errors import ErrorClass, Failure
from headrace.pause import Held, Pause, Scope, Shuttable

__all__ = ["MODELS", "Held", "Pause", "Pauses", "Scope", "Shuttable"]

# A probe whose end nobody reported stops blocking the target after this: longer than a call may take.
PROBE_LAPSE_MS = 90_000
# While a probe is out, others are asked to come back this much later.
PROBE_WAIT_MS = 5_000
# A provider's Retry-After may lengthen a pause, but not beyond this.
LONGEST_MS = 86_400_000
# Model names come from records: this many shut models are remembered and shared, the soonest to reopen is forgotten first.
# What is forgotten costs a call that is refused again, and no attempt.
MODELS = 200
CODE_CHARS = 64
_FORBIDDEN = 403


@dataclass(slots=True)
class _Shut:
    until_ms: int
    length_ms: int
    error_class: str = ""
    code: str = ""
    probe_lapses_ms: int | None = None
    probe_sent_ms: int = 0

    def probed_by(self, sent_ms: int | None) -> bool:
        """Whether a call sent then is the probe: while it is out nobody else may call, so only older calls end beside it."""
        return self.probe_lapses_ms is not None and (sent_ms is None or sent_ms >= self.probe_sent_ms)

    def closed(self, now_ms: int) -> bool:
        return now_ms < self.until_ms or self.probing(now_ms)

    def probing(self, now_ms: int) -> bool:
        return self.probe_lapses_ms is not None and now_ms < self.probe_lapses_ms


def _silent(name: str, fields: dict[str, object]) -> None:
    del name, fields


class Pauses:
    """Which targets are shut, until when, and who may probe. Not thread-safe: it belongs to the event loop.

    A pause ends by time; then exactly one call passes (`may_call`), and its success reopens the scope for all.
    `configured` are the targets whose keys must all be shut for the lane to stop.
    """

    def __init__(
        self,
        settings: PauseSettings,
        configured: Iterable[Shuttable] = (),
        *,
        probe_lapse_ms: int = PROBE_LAPSE_MS,
        tell: Callable[[str, dict[str, object]], None] = _silent,
        held: Held | None = None,
    ) -> None:
        self._held = held
        self._first_ms = round(settings.first_s * 1000)
        self._cap_ms = round(settings.cap_s * 1000)
        self._configured = frozenset(_key_scope(target) for target in configured)
        self._probe_lapse_ms = probe_lapse_ms
        self._tell = tell
        self._shut: dict[Scope, _Shut] = {}

    @property
    def quiet(self) -> bool:
        """Whether nothing is shut or held back, so that every call may go out."""
        return not self._shut and (self._held is None or not self._held.active)

    def configure(self, configured: Iterable[Shuttable]) -> None:
        """These are the targets now. What a key has shut that nobody has any more is forgotten: a new key is not the old one."""
        before, self._configured = self._configured, frozenset(_key_scope(target) for target in configured)
        gone = {(scope.provider, scope.key_id) for scope in before - self._configured}
        for scope in [scope for scope in self._shut if (scope.provider, scope.key_id) in gone]:
            del self._shut[scope]
            self._tell("target_reopened", {"provider": scope.provider, "key_id": scope.key_id})

    def why_shut(self, target: Shuttable, now_ms: int) -> str | None:
        """The error class that shut the target; None if it is open, or held back by an operator alone."""
        return next((shut.error_class for _, shut in self._of(target) if shut.closed(now_ms)), None)

    def shut(self, target: Shuttable, failure: Failure, now_ms: int) -> bool:
        """Shut what this failure shows to be unusable; True the first time, when someone must be told.

        403 shuts this model for this key; any other failure everything this key opens. Failures of calls that
        were on their way when the scope was shut change nothing; one after its reopening doubles the pause.
        """
        scope = _model_scope(target) if failure.status_code == _FORBIDDEN and _ungranted(failure) else _key_scope(target)
        known = self._shut.get(scope)
        if known is not None and now_ms < known.until_ms:
            return False
        length_ms = min(known.length_ms * 2, self._cap_ms) if known else min(self._first_ms, self._cap_ms)
        asked_ms = min(failure.retry_after_ms or 0, LONGEST_MS)
        why = failure.error_class.value
        self._put(Pause(scope, now_ms + max(length_ms, asked_ms), length_ms, why, (failure.code or "")[:CODE_CHARS]))
        self._tell(
            "target_shut",
            {
                "provider": scope.provider, "key_id": scope.key_id, "scope": "key" if scope.model is None else "model",
                "error_class": why, "code": failure.code, "pause_ms": length_ms, "again": known is not None,
            },
        )  # fmt: skip
        return known is None

    def may_call(self, target: Shuttable, now_ms: int) -> bool:
        """Whether this call may go out. At a reopening the first to ask takes the probe, and is answered True alone.

        Who was answered True must report back: `succeeded`, `shut`, or `abandoned` where the call proved nothing.
        """
        if self._held is not None and self._held.holds(target.provider, target.model, now_ms):
            return False
        if not self._shut:
            return True
        known = [shut for _, shut in self._of(target)]
        if any(shut.closed(now_ms) for shut in known):
            return False
        for shut in known:
            shut.probe_sent_ms = now_ms
            shut.probe_lapses_ms = now_ms + self._probe_lapse_ms
        return True

    def shut_until(self, target: Shuttable, now_ms: int) -> int | None:
        """When the target may be asked for again (epoch ms); None if `may_call` would say yes."""
        closed = [shut for _, shut in self._of(target) if shut.closed(now_ms)] if self._shut else []
        ends = [shut.until_ms if now_ms < shut.until_ms else now_ms + PROBE_WAIT_MS for shut in closed]
        if self._held is not None and (back_ms := self._held.back_ms(target.provider, target.model, now_ms)) is not None:
            ends.append(back_ms)
        return max(ends, default=None)

    def succeeded(self, target: Shuttable, sent_ms: int | None = None) -> None:
        """A call sent at `sent_ms` got its answer: what it was probing is open again. One from before the pause opens nothing."""
        if not self._shut:
            return
        for scope, shut in self._of(target):
            if shut.probed_by(sent_ms):
                del self._shut[scope]
                self._tell("target_reopened", {"provider": scope.provider, "key_id": scope.key_id})

    def abandoned(self, target: Shuttable, sent_ms: int | None = None) -> None:
        """The call ended without a word about quota or key (time-out, 5xx, cancelled). If it was the probe, the next call may probe."""
        for _, shut in self._of(target):
            if shut.probed_by(sent_ms):
                shut.probe_lapses_ms = None

    def all_shut(self, now_ms: int) -> bool:
        """Whether every configured key is shut, so that the lane has nobody to call. Shut models do not count."""
        held = self._held if self._held is not None and self._held.active else None
        if (not self._shut and held is None) or not self._configured:
            return False
        return all(
            ((shut := self._shut.get(scope)) is not None and shut.closed(now_ms))
            or (held is not None and held.holds(scope.provider, None, now_ms))
            for scope in self._configured
        )

    def all_held(self, now_ms: int) -> bool:
        """Whether operators hold back every configured provider."""
        if self._held is None or not self._held.active or not self._configured:
            return False
        return all(self._held.holds(scope.provider, None, now_ms) for scope in self._configured)

    def __contains__(self, scope: Scope) -> bool:
        """Whether it was shut and has not been found open since."""
        return scope in self._shut

    def snapshot(self, now_ms: int) -> list[Pause]:
        """What is shut at this moment, to be shared with other processes. Probes are not shared: each process has one."""
        return [
            Pause(scope, shut.until_ms, shut.length_ms, shut.error_class, shut.code)
            for scope, shut in self._shut.items()
            if now_ms < shut.until_ms
        ]

    def merge(self, pauses: Iterable[Pause], now_ms: int) -> list[Scope]:
        """Take over what others have shut; the longer pause wins. Returns the scopes that were open here. Never reopens.

        Others' models only get the room there is: what this process has found out itself is not forgotten for them.
        """
        news = []
        if len(self._shut) >= MODELS:
            self._shut = {scope: shut for scope, shut in self._shut.items() if scope.model is None or now_ms < shut.until_ms}
        for pause in pauses:
            known = self._shut.get(pause.scope)
            if pause.until_ms <= now_ms or (known is not None and pause.until_ms <= known.until_ms):
                continue
            if known is None and pause.scope.model is not None and len(self._shut) >= MODELS:
                continue
            if known is None:
                news.append(pause.scope)
            length_ms = max(pause.length_ms, known.length_ms if known else 0)
            self._put(pause._replace(until_ms=min(pause.until_ms, now_ms + LONGEST_MS), length_ms=min(length_ms, self._cap_ms)))
        return news

    def _of(self, target: Shuttable) -> Iterator[tuple[Scope, _Shut]]:
        for scope in (_key_scope(target), _model_scope(target)):
            shut = self._shut.get(scope)
            if shut is not None:
                yield scope, shut

    def _put(self, pause: Pause) -> None:
        if pause.scope not in self._shut and len(self._shut) >= MODELS:
            self._forget_one()
        self._shut[pause.scope] = _Shut(pause.until_ms, pause.length_ms, pause.error_class, pause.code)

    def _forget_one(self) -> None:
        """A model, or else a key of another process that nobody here calls with; never a configured key."""
        loose = [scope for scope in self._shut if scope not in self._configured]
        if loose:
            del self._shut[min(loose, key=lambda one: (one.model is None, self._shut[one].until_ms))]


def _ungranted(failure: Failure) -> bool:
    return failure.error_class is ErrorClass.AUTH


def _key_scope(target: Shuttable) -> Scope:
    return Scope(target.provider, target.key_id, None)


def _model_scope(target: Shuttable) -> Scope:
    return Scope(target.provider, target.key_id, target.model)

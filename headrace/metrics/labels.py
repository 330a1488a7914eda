"""What a label may say: every set is closed, and what is not in it is `other`. Callers, providers and handlers choose names; labels do not grow with them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from headrace.config import Settings
from headrace.errors import ErrorClass
from headrace.redact import NONE, OTHER

OUTCOMES = ("completed", "degraded", "retry", "deferred", "dead", "dropped", "duplicate", "moved", "noted")
DUPLICATE_OF = ("completed", "waiting", "dead", "conflict")
CLASSES = tuple(error_class.value for error_class in ErrorClass)
ENDS = ("committed", "aborted", "landed", "absent")
SINKS = ("console", "sentry")
TOLD = {"alert_sent": "sent", "alert_failed": "failed", "alert_refused": "refused", "alerts_unsent": "unsent"}
MOVED_TO = ("retry", "later")
TOKENS = ("prompt", "completion")
EXTRA = ("taken_over", "hand_over_refused")
PAUSING = ("quota_exhausted", "auth")
OUT = ("connection", "timeout", "server_error", "overloaded", "health")
HEALTH: Mapping[bool | None, str] = {None: "unchecked", True: "well", False: "failing"}

PAUSES: Mapping[str, str] = {
    "stop": "stop",
    "too many records wait for a retry": "parked",
    "every target is shut": "targets_shut",
    "Redis is out of reach": "redis_away",
    "what Redis lost is being restored": "redis_restoring",
    "no broker can be reached": "broker_away",
    "paused by an operator": "operator",
}
DEFERRALS: Mapping[str, str] = {
    "target shut": "target_shut",
    ErrorClass.QUOTA_EXHAUSTED.value: "quota_exhausted",
    ErrorClass.AUTH.value: "auth",
    "the handler asked for a delay": "handler",
    "paused by an operator": "operator",
    "next_retry_at is ahead": "not_due",
    "another record holds this request id and is not settled yet": "copy",
}
LOSSES: Mapping[str, str] = {
    "deleted by retention before they were settled": "unsettled",
    "deleted by retention before they were read": "unread",
    "deleted by retention before they were moved": "unmoved",
    "gone from the log before they were settled": "gone",
    "committed beyond the log's end": "truncated",
}


class LabelSets:
    """Those that depend on the configuration."""

    def __init__(self, settings: Settings) -> None:
        names = settings.topics
        self.providers = tuple(dict.fromkeys(provider.name for provider in settings.providers))
        self.models = tuple(sorted(settings.model_names()))
        self.topics = (names.main, names.retry, names.later, names.dlq, names.results)
        self._providers, self._topics = frozenset(self.providers), frozenset(self.topics)
        self.model = lru_cache(64)(self._model)

    def provider(self, name: str) -> str:
        """A configured one; `none` where a handler names none."""
        return name if name in self._providers else OTHER if name else NONE

    def topic(self, name: str) -> str:
        """One of the five."""
        return name if name in self._topics else OTHER

    def _model(self, name: str) -> str:
        """A configured one; a dated name counts as the one it is a version of, the longest that fits."""
        if name in self.models or not isinstance(name, str):  # a handler may have answered with anything
            return name if name in self.models else OTHER
        found = [model for model in self.models if name.startswith((f"{model}-", f"{model}:", f"{model}@"))]
        return max(found, key=len) if found else OTHER if name else NONE


def class_of(name: str) -> str:
    """An error class, or `none`."""
    return name if name in CLASSES else OTHER if name else NONE


def one_of(known: Mapping[str, str], text: str) -> str:
    """The label for a text of ours; `other` for one that is new."""
    return known.get(text, OTHER)

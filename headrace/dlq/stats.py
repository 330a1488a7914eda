"""Dead letters counted by cause: error class, provider and model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.dlq.letter import Letter
from headrace.redact import OTHER

GROUPS = 1_000


@dataclass(slots=True)
class Group:
    """The dead letters of one cause; times are epoch milliseconds of their death."""

    error_class: str
    provider: str
    model: str
    count: int
    first_ms: int
    last_ms: int


def group(letters: Iterable[Letter], *, groups: int = GROUPS) -> list[Group]:
    """The groups, largest first. Names are the callers' to choose: beyond so many groups the rest of a class is `other`."""
    found: dict[tuple[str, str, str], Group] = {}
    for letter in letters:
        cause = (letter.error_class, letter.provider or "-", letter.model or "-")
        if cause not in found and len(found) >= groups:
            cause = (letter.error_class, OTHER, OTHER)
        known = found.get(cause)
        if known is None:
            found[cause] = Group(*cause, count=1, first_ms=letter.dead_at_ms, last_ms=letter.dead_at_ms)
            continue
        known.count += 1
        known.first_ms = min(known.first_ms, letter.dead_at_ms)
        known.last_ms = max(known.last_ms, letter.dead_at_ms)
    return sorted(found.values(), key=lambda cause: (-cause.count, cause.error_class, cause.provider, cause.model))

"""What an audit finds: rules that are broken, where, and what became of every request id."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

KEPT = 1_000


class Rule(enum.StrEnum):
    """What must hold (DESIGN §1). The value names it in output."""

    EXACTLY_ONE = "exactly_one"
    """Each source record ends in exactly one outcome, or is on its way."""
    ONE_COMPLETED = "one_completed"
    """At most one `completed` an id, and nothing but duplicate notices after it."""
    NEVER_SENT = "never_sent"
    """Nothing comes out that did not go in: every output names a record that is there, its id and its content."""
    UNALTERED = "unaltered"
    """Key, value and the producer's headers are those of the source, wherever the record is handed on."""
    OFFSETS = "offsets"
    """Committed offsets only grow, never pass the log's end, lose nothing, and reach the end when all is settled."""
    NEVER_EARLY = "never_early"
    """No call before its due time."""
    CALLS = "calls"
    """Calls beyond what the outcomes account for are at most those in flight or not yet settled at the kills."""


class Violation(NamedTuple):
    """One broken rule: whose id, which record, and a sentence. Never a word of a prompt."""

    rule: Rule
    request_id: str | None
    position: str | None
    text: str

    def __str__(self) -> str:
        about = ", ".join(part for part in (self.request_id, self.position) if part is not None)
        return f"{self.rule}: {about + ': ' if about else ''}{self.text}"


class Row(NamedTuple):
    """One request id (for a record without one: its origin). Counts are of records; `open_at` is where it is on its way.

    `state` is `completed`, `open`, `degraded`, `failed`, `duplicate`, `lost` or, where only traces are left, `gone`.
    `calls` is None without a log of calls.
    """

    request_id: str
    state: str
    open_at: Mapping[str, int]
    sources: int
    completed: int
    degraded: int
    failed: int
    duplicates: int
    letters: int
    calls: int | None

    @property
    def twice(self) -> bool:
        """Whether it was sent, or ended, more than once."""
        return self.sources > 1 or self.duplicates > 0 or self.completed + self.degraded + self.failed > 1


class Broken:
    """Collects violations: all are counted, the first thousand are kept."""

    def __init__(self) -> None:
        self.kept: list[Violation] = []
        self.counts: dict[Rule, int] = {}

    def __call__(self, rule: Rule, request_id: str | None, position: object, text: str) -> None:
        self.counts[rule] = self.counts.get(rule, 0) + 1
        if len(self.kept) < KEPT:
            self.kept.append(Violation(rule, request_id, None if position is None else str(position), text))


def _no_rows() -> Iterator[Row]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Verdict:
    """The audit's result. `states` counts ids by their state; `completed` and `duplicates` count records in the results.

    `open` counts what is on its way, `open_at` by place (`moving`: it went on while the audit read). `unjudged` says
    how much could not be judged, by reason. `bound` is None where no history told of kills, `calls` without a log of
    calls. `violations` holds the first thousand, `broken` all of them by rule.
    """

    ids: int
    states: Mapping[str, int]
    completed: int
    duplicates: int
    open: int
    open_at: Mapping[str, int]
    read: Mapping[str, int]
    unjudged: Mapping[str, int]
    violations: tuple[Violation, ...]
    broken: Mapping[Rule, int]
    calls: int | None = None
    extra_calls: int | None = None
    bound: int | None = None
    rows: Callable[[], Iterator[Row]] = field(default=_no_rows, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        return not self.broken

"""What the broker would not take, and what follows: it refuses whole batches and transactions, so each is tried alone before it is judged. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from headrace.errors import ErrorClass, Failure
from headrace.outcome import Dead, Deferred, Output, Retry, Settlement


@dataclass(frozen=True, slots=True)
class Refusal:
    """An output that was not taken. `size` and `record` are its batch's fault, perhaps its own; `topic` is the topic's."""

    kind: Literal["size", "record", "topic"]
    message: str


class Prepared(NamedTuple):
    """A settlement with the records it writes."""

    settlement: Settlement
    outputs: list[Output]


@dataclass(slots=True)
class Sorted:
    """Who goes on together, who must be tried alone or in groups, and who is held back, each with the broker's words."""

    together: list[Prepared] = field(default_factory=list)
    alone: list[Settlement] = field(default_factory=list)
    apart: list[list[Settlement]] = field(default_factory=list)
    held: list[tuple[Settlement, str]] = field(default_factory=list)


def sort_refused(group: Sequence[Prepared], refused: Mapping[int, Refusal]) -> Sorted:
    """What follows for each of a group; `refused` is by the index of the output in all of the group's.

    Who writes to a topic that cannot be written is held back, and so is a dead letter refused even when it was cut.
    """
    outputs = [output for prepared in group for output in prepared.outputs]
    # The client may refuse the first record of a topic at once; the others would be found one transaction at a time.
    shut = {(outputs[i].topic, outputs[i].partition): refusal for i, refusal in refused.items() if refusal.kind == "topic"}
    found = Sorted()
    index = 0
    for prepared in group:
        reasons = [shut[o.topic, o.partition] for o in prepared.outputs if (o.topic, o.partition) in shut]
        reasons += [refused[i] for i in range(index, index + len(prepared.outputs)) if i in refused]
        index += len(prepared.outputs)
        settlement = prepared.settlement
        if not reasons:
            found.together.append(prepared)
        elif reasons[0].kind == "topic" or settlement.cut:
            found.held.append((settlement, reasons[0].message))
        elif settlement.alone:
            found.alone.append(instead(settlement, reasons[0]))
        else:
            found.alone.append(settlement._replace(alone=True))
    return found


def sort_shut(group: Sequence[Prepared], why: str) -> Sorted:
    """A topic may not be written, and the broker does not say which: who writes to different ones is tried apart, who is left alone is held back."""
    by_topics: dict[frozenset[tuple[str, int]], list[Settlement]] = {}
    for prepared in group:
        by_topics.setdefault(frozenset((o.topic, o.partition) for o in prepared.outputs), []).append(prepared.settlement)
    if len(by_topics) > 1:
        return Sorted(apart=list(by_topics.values()))
    return Sorted(held=[(prepared.settlement, why) for prepared in group])


def instead(settlement: Settlement, refusal: Refusal) -> Settlement:
    """Refused by the broker though alone: a dead letter instead; a dead letter is cut to what fits."""
    outcome = settlement.outcome
    if isinstance(outcome, Dead):
        return settlement._replace(cut=True)
    error_class = ErrorClass.INVALID_REQUEST if refusal.kind == "record" else ErrorClass.TOO_LARGE
    attempts = getattr(outcome, "attempts", ())
    times = (getattr(outcome, name, 0) for name in ("completed_at_ms", "failed_at_ms", "at_ms"))
    at_ms = next(filter(None, times), settlement.job.record.timestamp_ms)
    failure = Failure(error_class, f"the broker refuses what this outcome writes: {refusal.message}", called=bool(attempts))
    elapsed_ms = outcome.elapsed_ms if isinstance(outcome, Retry) else 0
    copy = isinstance(outcome, Deferred) and outcome.copy
    return settlement._replace(outcome=Dead(failure, at_ms, attempts, elapsed_ms, claimed=settlement.token is not None, copy=copy))

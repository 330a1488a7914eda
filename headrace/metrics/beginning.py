"""The series that are there from a worker's start, at 0: a rate needs a first value, and an alert a series to be quiet about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.instrument.events import LEVELS
from headrace.metrics import definitions as d
from headrace.metrics.labels import CLASSES, DEFERRALS, DUPLICATE_OF, ENDS, EXTRA, LOSSES, MOVED_TO, PAUSING, SINKS, TOKENS, TOLD, LabelSets
from headrace.metrics.metric import Labels, Metric
from headrace.redact import NONE, OTHER

CALLING = ("main", "retry")


def beginning(sets: LabelSets, lanes: Sequence[str]) -> Iterator[tuple[Metric, Labels]]:
    """What the lanes of this process can tell of, as far as it is known before."""
    yield from ((d.EVENTS, (event,)) for event in LEVELS)
    yield from ((d.LOST, (topic, reason)) for topic in sets.topics[:-1] for reason in (*LOSSES.values(), OTHER))
    for lane in lanes:
        yield from ((d.TRANSACTIONS, (lane, end)) for end in ENDS)
        yield from ((metric, (lane,)) for metric in (d.UNREAD, d.BLOCKED, d.HANDED_OVER, d.INTERRUPTED, d.SETTLE_TIME, d.SETTLE_SIZE))
        yield from _calling(sets, lane) if lane in CALLING else ((d.SETTLED, (lane, "noted", NONE)),)
    if any(lane in CALLING for lane in lanes):
        yield from ((d.TOKENS, (provider, model, kind)) for provider in sets.providers for model in sets.models for kind in TOKENS)
        yield from ((d.PROVIDER_PAUSES, (provider, why)) for provider in sets.providers for why in PAUSING)
        yield from ((d.POSSIBLE_EXTRA, (reason,)) for reason in EXTRA)
        yield d.ROUND_TRIP, ()
    if "retry" in lanes:
        yield from ((d.WHEELS_MOVES, (to,)) for to in MOVED_TO)
        yield d.WHEELS_LATENESS, ()
    if "dlq" in lanes:
        yield from ((d.ALERTS, (sink, end)) for sink in SINKS for end in TOLD.values())


def _calling(sets: LabelSets, lane: str) -> Iterator[tuple[Metric, Labels]]:
    for outcome in ("completed", "deferred", "duplicate", *(("moved",) if lane == "retry" else ())):
        yield d.SETTLED, (lane, outcome, NONE)
    yield from ((d.SETTLED, (lane, outcome, error_class)) for outcome in ("retry", "dead") for error_class in CLASSES)
    yield from ((d.DUPLICATES, (lane, of)) for of in DUPLICATE_OF)
    yield from ((d.DEFERRED, (lane, reason)) for reason in (*DEFERRALS.values(), OTHER))
    yield from ((d.LATENCY, (lane, provider, NONE)) for provider in sets.providers)
    yield d.LATENESS, (lane,)

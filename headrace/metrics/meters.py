"""Counts what is told: a hook, one for a process. A settle comes as one event with its tally, so nothing here is done per event and record.

Every series of a closed set is there from the start, at 0: a rate needs a first value.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from headrace.instrument.events import LEVELS
from headrace.metrics import definitions as d
from headrace.metrics.beginning import CALLING, beginning
from headrace.metrics.labels import DEFERRALS, LOSSES, MOVED_TO, SINKS, TOKENS, TOLD, LabelSets, class_of, one_of
from headrace.metrics.metric import Histogram, Labels, Metric, Row
from headrace.redact import OTHER
from headrace.tally import Tally


class Meters:
    """`meters(name, fields)` is the hook; `rows` what was counted so far. Thread-safe."""

    def __init__(self, sets: LabelSets, lanes: Sequence[str]) -> None:
        self.sets = sets
        self._lock = threading.Lock()
        self._counts: dict[Metric, dict[Labels, float]] = {}
        self._histograms: dict[Metric, dict[Labels, Histogram]] = {}
        self._hears: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
            "settled": self._settled,
            "settle_again": lambda told: self._add(d.TRANSACTIONS, (told["lane"], "aborted")),
            "ambiguous_commit": lambda told: self._add(d.TRANSACTIONS, (told["lane"], "landed" if told["landed"] else "absent")),
            "settle_blocked": lambda told: self._add(d.BLOCKED, (told["lane"],), told["outcomes"]),
            "handed_over": lambda told: self._add(d.HANDED_OVER, (told["lane"],), told["outcomes"]),
            "interrupted": lambda told: self._add(d.INTERRUPTED, (told["lane"],), told["records"]),
            "claim_taken_over": lambda told: self._add(d.POSSIBLE_EXTRA, ("taken_over",)),
            "hand_over_refused": lambda told: self._add(d.POSSIBLE_EXTRA, ("hand_over_refused",), told["count"]),
            "records_lost": self._lost,
            "target_shut": lambda told: self._add(d.PROVIDER_PAUSES, (sets.provider(told["provider"]), class_of(told["error_class"]))),
            "wheels_moved": self._moved,
            "parked": self._parked,
            "store_unavailable": lambda told: self._set(d.REDIS_UP, (), 0.0),
            "store_back": lambda told: self._set(d.REDIS_UP, (), 1.0),
            **{name: partial(self._alerted, end) for name, end in TOLD.items()},
        }
        for metric, labels in beginning(sets, lanes):
            if metric.kind == "histogram":
                self._histograms.setdefault(metric, {})[labels] = Histogram(metric.buckets)
            else:
                self._counts.setdefault(metric, {})[labels] = 0.0
        if any(lane in CALLING for lane in lanes):
            self._set(d.REDIS_UP, (), 1.0)

    def __call__(self, name: str, fields: Mapping[str, Any]) -> None:
        """From any thread."""
        if name != "settled":
            self._add(d.EVENTS, (name if name in LEVELS else OTHER,))
        if (hear := self._hears.get(name)) is not None:
            hear(fields)

    def redis_took(self, seconds: float) -> None:
        """A round trip to Redis."""
        self._observe(d.ROUND_TRIP, (), (seconds,))

    def rows(self) -> Iterator[Row]:
        """Everything as it stands."""
        with self._lock:
            rows = [Row(metric, labels, value) for metric, by in self._counts.items() for labels, value in by.items()]
            rows += [Row(metric, labels, value.shown()) for metric, by in self._histograms.items() for labels, value in by.items()]
        return iter(rows)

    def _settled(self, told: Mapping[str, Any]) -> None:
        lane, tally = told["lane"], told["tally"]
        assert isinstance(tally, Tally), "the settler made it"
        with self._lock:
            self._plus(d.EVENTS, ("settled",), 1.0)
            self._plus(d.TRANSACTIONS, (lane, "committed"), 1.0)
            for (outcome, error_class), count in tally.counts.items():
                self._plus(d.SETTLED, (lane, outcome, class_of(error_class)), count)
            for (outcome, why), count in tally.details.items():
                if outcome == "duplicate":
                    self._plus(d.DUPLICATES, (lane, why), count)
                else:
                    self._plus(d.DEFERRED, (lane, one_of(DEFERRALS, why)), count)
            for (provider, model), spent in tally.tokens.items():
                named = self.sets.provider(provider), self.sets.model(model)
                for kind, count in zip(TOKENS, spent, strict=True):
                    self._plus(d.TOKENS, (*named, kind), count)
            for (provider, error_class), took_ms in tally.latencies.items():
                labels = lane, self.sets.provider(provider), class_of(error_class)
                self._into(d.LATENCY, labels, [ms / 1000 for ms in took_ms])
            self._plus(d.UNREAD, (lane,), tally.unread)
            self._into(d.LATENESS, (lane,), [max(0, ms) / 1000 for ms in tally.lateness])
            self._into(d.SETTLE_TIME, (lane,), (told["seconds"],))
            self._into(d.SETTLE_SIZE, (lane,), (tally.counts.total(),))

    def _lost(self, told: Mapping[str, Any]) -> None:
        topic = str(told["partition"]).rpartition("/")[0]
        self._add(d.LOST, (self.sets.topic(topic), one_of(LOSSES, told["reason"])), told["records"])

    def _moved(self, told: Mapping[str, Any]) -> None:
        for to in MOVED_TO:
            self._add(d.WHEELS_MOVES, (to,), told[f"to_{to}"])
        self._observe(d.WHEELS_LATENESS, (), (told["late_ms"] / 1000,))

    def _parked(self, told: Mapping[str, Any]) -> None:
        for topic, partition, records in told["records"]:
            self._set(d.PARKED, (self.sets.topic(topic), str(partition)), records)
        self._set(d.PARKED_CAP, (), told["cap"])

    def _alerted(self, end: str, told: Mapping[str, Any]) -> None:
        self._add(d.ALERTS, (told["sink"] if told["sink"] in SINKS else OTHER, end), told["count"])

    def _add(self, metric: Metric, labels: Labels, more: float = 1.0) -> None:
        with self._lock:
            self._plus(metric, labels, more)

    def _plus(self, metric: Metric, labels: Labels, more: float) -> None:
        by = self._counts.setdefault(metric, {})
        by[labels] = by.get(labels, 0.0) + more

    def _set(self, metric: Metric, labels: Labels, value: float) -> None:
        with self._lock:
            self._counts.setdefault(metric, {})[labels] = value

    def _observe(self, metric: Metric, labels: Labels, values: Iterable[float]) -> None:
        with self._lock:
            self._into(metric, labels, values)

    def _into(self, metric: Metric, labels: Labels, values: Iterable[float]) -> None:
        by = self._histograms.setdefault(metric, {})
        if labels not in by:
            by[labels] = Histogram(metric.buckets)
        by[labels].observe(values)

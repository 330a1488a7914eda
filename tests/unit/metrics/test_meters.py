"""What is told becomes counts: under labels from closed sets whatever the names, and at a cost per record that is known."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from headrace.config import ProviderSettings, Settings
from headrace.instrument.events import LEVELS
from headrace.metrics import definitions as d
from headrace.metrics.labels import LabelSets
from headrace.metrics.meters import Meters
from headrace.metrics.metric import Histogram, Metric, Shown
from headrace.tally import Tally

SETTINGS = Settings(
    providers=(ProviderSettings(name="first", default_model="gpt-x"), ProviderSettings(name="second", default_model="gpt-x-mini"))
)
LANES = ("main", "retry", "dlq")


@pytest.fixture
def meters() -> Meters:
    return Meters(LabelSets(SETTINGS), LANES)


def value(meters: Meters, metric: Metric, *labels: str) -> Any:
    return {row.labels: row.value for row in meters.rows() if row.metric is metric}.get(labels)


def settled(meters: Meters, tally: Tally, lane: str = "main") -> None:
    meters("settled", {"lane": lane, "counts": tally.counts, "tally": tally, "seconds": 0.02})


def test_a_settle_is_counted_by_outcome_and_class(meters: Meters) -> None:
    """One event a settle; its latencies and tokens go where they belong."""
    tally = Tally(
        counts=Counter({("completed", ""): 3, ("retry", "timeout"): 2}),
        latencies={("first", ""): [40, 900, 300_001], ("first", "timeout"): [5000]},
        tokens={("first", "gpt-x"): [10, 20]},
        lateness=[3, -1],
    )
    settled(meters, tally)
    assert value(meters, d.SETTLED, "main", "completed", "none") == 3
    assert value(meters, d.SETTLED, "main", "retry", "timeout") == 2
    assert value(meters, d.TRANSACTIONS, "main", "committed") == 1
    assert value(meters, d.TOKENS, "first", "gpt-x", "completion") == 20
    latency: Shown = value(meters, d.LATENCY, "main", "first", "none")
    assert (latency.buckets[0], latency.buckets[-2], latency.buckets[-1]) == (("0.05", 1.0), ("300.0", 2.0), ("+Inf", 3.0))
    assert latency.total == pytest.approx(300.941)
    assert value(meters, d.LATENESS, "main").buckets[-1] == ("+Inf", 2.0)


def test_names_that_others_choose_make_no_series(meters: Meters) -> None:
    """10,000 models, providers, reasons and classes that nobody configured leave as many series as one does."""

    def tally(name: str) -> Tally:
        return Tally(
            counts=Counter({("dead", name): 1, ("deferred", ""): 1}), details=Counter({("deferred", name): 1}),
            latencies={(name, name): [1]}, tokens={(name, name): [1, 1]},
        )  # fmt: skip

    settled(meters, tally("bait"))
    before = len(list(meters.rows()))
    for number in range(10_000):
        settled(meters, tally(f"bait-{number}"))
        meters("target_shut", {"provider": f"bait-{number}", "error_class": f"bait-{number}"})
        meters(f"bait-{number}", {})
    rows = list(meters.rows())
    assert len(rows) <= before + 2
    assert not any("bait" in label for row in rows for label in row.labels)


def test_a_dated_model_counts_as_the_one_it_is_a_version_of() -> None:
    """Providers answer with the version they served; the longest configured name that fits is meant."""
    sets = LabelSets(SETTINGS)
    assert [sets.model(name) for name in ("gpt-x", "gpt-x-2026-01-01", "gpt-x-mini-2026-01-01", "gpt-xl", "")] == [
        "gpt-x", "gpt-x", "gpt-x-mini", "other", "none",
    ]  # fmt: skip


def test_every_event_is_counted(meters: Meters) -> None:
    """All that can be told are there from the start, at 0; the fields of those that are counted apart are checked by the live page."""
    assert {row.labels[0] for row in meters.rows() if row.metric is d.EVENTS} == set(LEVELS)
    meters("alert_failed", {"sink": "console", "error_class": "timeout", "count": 2, "error": "OSError"})
    meters("records_lost", {"partition": f"{SETTINGS.topics.main}/3", "reason": "deleted by retention before they were read", "records": 7})
    meters("store_unavailable", {"error": "x"})
    assert value(meters, d.EVENTS, "alert_failed") == 1
    assert value(meters, d.ALERTS, "console", "failed") == 2
    assert value(meters, d.LOST, SETTINGS.topics.main, "unread") == 7
    assert value(meters, d.REDIS_UP) == 0
    meters("store_back", {})
    assert value(meters, d.REDIS_UP) == 1


def test_a_process_without_calls_tells_nothing_of_models_and_redis() -> None:
    """The dead-letter lane needs neither: series that stay 0 for ever would say otherwise."""
    rows = {row.metric for row in Meters(LabelSets(SETTINGS), ("dlq",)).rows()}
    assert not rows & {d.TOKENS, d.LATENCY, d.REDIS_UP, d.ROUND_TRIP, d.WHEELS_MOVES, d.PROVIDER_PAUSES}
    assert d.ALERTS in rows


def test_a_bound_belongs_to_its_bucket() -> None:
    """`le` means less or equal."""
    histogram = Histogram((0.1, 1.0))
    histogram.observe([0.1, 0.2, 1.0, 1.1])
    assert histogram.shown() == Shown((("0.1", 1.0), ("1.0", 3.0), ("+Inf", 4.0)), pytest.approx(2.4))  # type: ignore[arg-type]

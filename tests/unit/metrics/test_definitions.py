"""The list of metrics keeps the rules of OpenMetrics, and the page that documents it is the one that follows from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.metrics import definitions
from headrace.metrics.metric import Metric
from headrace.metrics.reference import page
from headrace.metrics.standard import PROCESS

ROOT = Path(__file__).resolve().parents[3]
UNITS = ("seconds", "bytes", "ratio")
CLOSED = frozenset(
    {
        "lane", "topic", "partition", "class", "outcome", "of", "reason", "provider", "model", "kind", "end", "to", "sink", "event", "endpoint", "state",
        "version", "python", "lanes",
    }
)  # fmt: skip


def test_docs_follow_from_the_definitions() -> None:
    """docs/metrics.md is made, not written: `python -m headrace.metrics.reference > docs/metrics.md` makes it anew."""
    assert (ROOT / "docs" / "metrics.md").read_text("utf-8") == page()


def test_every_metric_is_documented_once() -> None:
    """No group of the page leaves one out, or shows it twice."""
    shown = re.findall(r"^\| `(\w+)` \|", page(), re.MULTILINE)
    assert sorted(shown) == sorted(metric.shown for metric in (*definitions.OURS, *PROCESS))


@pytest.mark.parametrize("metric", definitions.OURS, ids=lambda metric: metric.name)
def test_names_and_units_are_those_of_openmetrics(metric: Metric) -> None:
    """Base units, at the end of the name; the suffix of its kind is not part of a name; nothing but small letters."""
    assert re.fullmatch(r"headrace_[a-z]+(_[a-z]+)*", metric.name)
    assert not metric.name.endswith(("_total", "_info", "_bucket", "_count", "_sum", "_created"))
    unit = next((unit for unit in UNITS if metric.name.endswith(f"_{unit}")), "")
    assert metric.unit == unit
    assert metric.help.endswith(".")
    assert "\n" not in metric.help


@pytest.mark.parametrize("metric", definitions.OURS, ids=lambda metric: metric.name)
def test_labels_are_of_a_closed_set(metric: Metric) -> None:
    """A label that callers choose would grow without end; and `le` belongs to histograms."""
    assert set(metric.labels) <= CLOSED
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert bool(metric.buckets) == (metric.kind == "histogram")

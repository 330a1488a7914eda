"""`docs/metrics.md`, made from the definitions: `python -m headrace.metrics.reference > docs/metrics.md`. A test holds the page to it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from headrace.metrics import definitions as d
from headrace.metrics import labels
from headrace.metrics.metric import Metric
from headrace.metrics.standard import PROCESS
from headrace.redact import NONE, OTHER

_TOP = """\
# Metrics

A worker answers `/metrics` where it answers [`/livez`](health.md), in OpenMetrics or in Prometheus' text format, as the scraper asks
(`Accept`). It is asked for nothing and listens on 127.0.0.1 unless told otherwise: `HEADRACE_HTTP_HOST`, `HEADRACE_METRICS_PORT`. This page is
made from the definitions in the code: `python -m headrace.metrics.reference`.

Every label has a closed set of values. Lanes, topics, partitions, providers and models are those of the configuration; error classes,
outcomes and reasons those of Headrace; what is none of them is `other`. Nothing a caller sends becomes a label: no id, no key, no name.

Counters count from the start of the process. Figures of lanes and partitions are a second old. Of a partition only its owner tells, so a sum
over workers is the fleet's; where several workers tell the same number (`headrace_dead_letters_*`, `headrace_parked_*`), take the maximum.

What to alert on is in `grafana/rules/headrace.yml`, and what to do then in [the runbook](runbook.md). `grafana/dashboards/headrace.json` shows
all of it. [Prometheus on your own host](health.md#prometheus-on-your-own-host) says how to have them scraped.
"""
_GROUPS = (
    ("Flow", ("records_received", "lane_settled_age")),
    ("Partitions", ("partition_lag", "records_lost")),
    ("Calls", ("call_latency", "extra_calls")),
    ("Settling", ("settle_duration", "outcomes_blocked")),
    ("Retries that wait", ("wheels_held", "parked_cap")),
    ("Dead letters", ("dead_letters_open", "alerts")),
    ("Redis", ("redis_reachable", "redis_round_trip")),
    ("The worker itself", ("events", "build")),
)
_HEAD = "| name | type | unit | labels | |\n|---|---|---|---|---|\n"


def page() -> str:
    """The whole of it."""
    parts = [_TOP]
    for title, (first, last) in _GROUPS:
        parts.append(f"\n## {title}\n\n{_HEAD}{_rows(_between(first, last))}")
    parts.append(f"\n## The process\n\nOf prometheus-client, where there is a `/proc`.\n\n{_HEAD}{_rows(PROCESS)}")
    parts.append(f"\n## What labels may say\n\n| label | |\n|---|---|\n{_labels()}")
    return "".join(parts)


def _labels() -> str:
    said: tuple[tuple[str, Iterable[str]], ...] = (
        ("lane", ("main", "retry", "dlq", "wheels")),
        ("outcome", labels.OUTCOMES),
        ("class", (*labels.CLASSES, NONE, OTHER)),
        ("of", labels.DUPLICATE_OF),
        ("reason of a pause", (*labels.PAUSES.values(), OTHER)),
        ("reason of a deferral", (*labels.DEFERRALS.values(), OTHER)),
        ("reason of a loss", (*labels.LOSSES.values(), OTHER)),
        ("reason of a possible extra call", labels.EXTRA),
        ("reason of an endpoint left out", (*labels.OUT, OTHER)),
        ("state", labels.HEALTH.values()),
        ("end of a transaction", labels.ENDS),
        ("end of an alert", labels.TOLD.values()),
        ("sink", (*labels.SINKS, OTHER)),
        ("kind", labels.TOKENS),
        ("to", labels.MOVED_TO),
    )
    configured = "| topic, partition, provider, endpoint, model | those of the configuration; also `other`, and `none` where a handler names none |\n"
    event = "| event | the names of `headrace/instrument/events.py` |\n"
    return (
        "".join(f"| {label} | {', '.join(f'`{value}`' for value in dict.fromkeys(values))} |\n" for label, values in said)
        + configured
        + event
    )


def _between(first: str, last: str) -> Iterable[Metric]:
    names = [metric.name.removeprefix("headrace_") for metric in d.OURS]
    start = next(at for at, name in enumerate(names) if name.startswith(first))
    stop = next(at for at, name in enumerate(names) if name.startswith(last))
    return d.OURS[start : stop + 1]


def _rows(metrics: Iterable[Metric]) -> str:
    return "".join(
        f"| `{metric.shown}` | {metric.kind} | {metric.unit} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |\n"
        for metric in metrics
    )


if __name__ == "__main__":
    sys.stdout.write(page())

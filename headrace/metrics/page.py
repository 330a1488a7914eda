"""The page at /metrics: rows gathered at a scrape, in a registry of our own, as OpenMetrics or Prometheus text, as the scraper asks."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from headrace import __version__
from headrace.instrument import Tell
from headrace.instrument.crash import words_of
from headrace.metrics import definitions as d
from headrace.metrics.metric import Metric, Row, Shown
from headrace.watch.health import Page

Gather = Callable[[], Iterable[Row]]


class MetricsPage:
    """`sources` are asked at each scrape, on the scraper's thread. One that fails is told, and the scrape fails: half a page would look whole."""

    def __init__(self, sources: Sequence[Gather], lanes: Sequence[str], tell: Tell) -> None:
        self._tell = tell
        self._registry = prometheus.CollectorRegistry(auto_describe=False)
        self._registry.register(_Rows(sources, tuple(lanes)))
        prometheus.ProcessCollector(registry=self._registry)

    def page(self, accept: str) -> Page:
        """The page for an `Accept` header."""
        try:
            encode, content_type = _encoder(accept)
            return Page(HTTPStatus.OK, content_type, encode(self._registry))
        except Exception as error:  # noqa: BLE001  the server's thread has nobody to tell: it is told here, and the scraper gets a 500
            self._tell("metrics_failed", {"error": words_of(error)})
            return Page(
                HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", b"the metrics cannot be gathered; see the worker's log\n"
            )


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Plain text for a header that cannot be read: anybody may send one."""
    try:
        return choose_encoder(accept)
    except (ValueError, IndexError):
        return choose_encoder("")


class _Rows(Collector):
    def __init__(self, sources: Sequence[Gather], lanes: tuple[str, ...]) -> None:
        self._sources = sources
        self._build = Row(d.BUILD, (__version__, platform.python_version(), ",".join(lanes)), 1.0)

    def collect(self) -> Iterator[Family]:
        """In the order of the definitions, each metric once."""
        by: dict[Metric, list[Row]] = {}
        for row in (self._build, *(row for source in self._sources for row in source())):
            by.setdefault(row.metric, []).append(row)
        for metric in d.OURS:
            if metric in by:
                yield _family(metric, by[metric])


def _family(metric: Metric, rows: Iterable[Row]) -> Family:
    match metric.kind:
        case "histogram":
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
            for row in rows:
                assert isinstance(row.value, Shown), "a histogram is shown as one"
                histogram.add_metric(row.labels, row.value.buckets, row.value.total)
            return histogram
        case "info":
            info = InfoMetricFamily(metric.name, metric.help)
            for row in rows:
                info.add_metric((), dict(zip(metric.labels, row.labels, strict=True)))
            return info
        case _:
            made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = made(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
            for row in rows:
                assert not isinstance(row.value, Shown), "only histograms are"
                family.add_metric(row.labels, float(row.value))
            return family

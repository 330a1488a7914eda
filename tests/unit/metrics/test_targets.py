"""Endpoints and pauses, as metrics and as `/status` shows them: why, until when, and no name that a caller chose."""

from __future__ import annotations

import pytest

from headrace.config import ProviderSettings, Settings
from headrace.errors import ErrorClass, Failure
from headrace.llm.balance import failing
from headrace.metrics import definitions as d
from headrace.metrics.gauges import Moment, Process, of_process
from headrace.metrics.labels import OUT, PAUSING, LabelSets
from headrace.metrics.metric import Metric
from headrace.pauses import Pause, Scope
from headrace.vitals import EndpointSample
from headrace.watch.targets import targets

NOW = 1_800_000_000_000
SETS = LabelSets(Settings(providers=(ProviderSettings(name="p", default_model="m"),)))
PAUSES = (
    Pause(Scope("p", "k1", None), NOW + 30_000, 1, "quota_exhausted", "insufficient_quota"),
    Pause(Scope("p", "k1", "caller-model"), NOW + 90_000, 1, "auth", "x"),
    Pause(Scope("p", "k2", None), NOW + 60_000, 1, "auth"),
    Pause(Scope("p", "k3", None), NOW + 5_000, 1),
    Pause(Scope("p", "k4", None), NOW - 1, 1, "auth"),
)
ENDPOINTS = (
    EndpointSample("p", "a:80", 3),
    EndpointSample("p", "b:80", 0, "timeout", 7.5, healthy=False),
    EndpointSample("p", "c:80", 0, "some new reason", 0.0, healthy=True),
)


def values(metric: Metric) -> dict[tuple[str, ...], object]:
    process = Process(0.0, PAUSES, ENDPOINTS)
    return {row.labels: row.value for row in of_process(process, SETS, Moment(1.0, NOW), {}) if row.metric is metric}


def test_an_endpoint_is_shown_with_why_it_is_left_out_and_its_health() -> None:
    """One reason at a time, of the closed set; every other stands at 0, so that a series ends rather than vanishes."""
    out = values(d.ENDPOINT_OUT)
    assert len(out) == 3 * (len(OUT) + 1)
    assert {labels for labels, value in out.items() if value} == {("p", "b:80", "timeout"), ("p", "c:80", "other")}
    assert {labels[1:] for labels, value in values(d.ENDPOINT_HEALTH).items() if value} == {
        ("a:80", "unchecked"), ("b:80", "failing"), ("c:80", "well"),
    }  # fmt: skip
    assert values(d.ENDPOINT_CALLS) == {("p", "a:80"): 3, ("p", "b:80"): 0, ("p", "c:80"): 0}


@pytest.mark.parametrize("error_class", list(ErrorClass))
def test_every_class_that_ejects_has_its_label(error_class: ErrorClass) -> None:
    """What leaves an endpoint out is in the set of reasons; what does not is not."""
    ejects = failing(Failure(error_class, "x", called=True, status_code=503))
    assert ejects == (error_class.value in OUT)


def test_a_pause_is_counted_by_its_class() -> None:
    """With its end; one that is over is not counted, one of an older version has no class, and each pair is there at 0."""
    assert values(d.PROVIDER_PAUSED) == {("p", "quota_exhausted"): 1, ("p", "auth"): 2, ("p", "none"): 1}
    assert values(d.PROVIDER_REOPENS) == {("p", "quota_exhausted"): 30.0, ("p", "auth"): 90.0, ("p", "none"): 5.0}
    quiet = {row.labels: row.value for row in of_process(Process(0.0), SETS, Moment(1.0, NOW), {}) if row.metric is d.PROVIDER_PAUSED}
    assert quiet == {("p", why): 0 for why in PAUSING}


def test_status_shows_class_code_and_end() -> None:
    """A model is named only where the configuration does."""
    shown = targets(ENDPOINTS, PAUSES, NOW, SETS.model)
    assert shown["pauses"][0] == {
        "provider": "p", "key_id": "k1", "model": None, "error_class": "quota_exhausted", "code": "insufficient_quota",
        "until": "2027-01-15T08:00:30+00:00", "left_s": 30,
    }  # fmt: skip
    assert shown["pauses"][1]["model"] == "other"
    assert shown["endpoints"][1] == {
        "provider": "p", "endpoint": "b:80", "in_flight": 0, "out": "timeout", "out_s": 7.5, "healthy": False,
    }  # fmt: skip

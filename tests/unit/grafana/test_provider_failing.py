"""Which error classes count as a provider's failing: the same in the alert, in the ratio it goes by, and on the dashboard."""

from __future__ import annotations

import json
import re

import yaml

from headrace.errors import ErrorClass
from tests.support.pages import ROOT


def test_every_class_is_a_providers_failing_or_left_out_for_a_reason() -> None:
    """A new error class has to say which it is."""
    groups = yaml.safe_load((ROOT / "grafana" / "rules" / "headrace.yml").read_text("utf-8"))["groups"]
    exprs = {rule.get("record") or rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}
    panels = json.loads((ROOT / "grafana" / "dashboards" / "headrace.json").read_text("utf-8"))["panels"]
    (shown,) = (panel["targets"][0]["expr"] for panel in panels if panel["title"] == "Share of calls that fail")
    faults, judged = classes(exprs["headrace:provider_failures:ratio5m"])
    assert [faults] == classes(exprs["HeadraceProviderFailing"])
    assert [faults, judged] == classes(shown)
    assert judged == faults | {"none"}
    assert {error_class.value for error_class in ErrorClass} - faults == {
        "rate_limited", "quota_exhausted", "auth",  # waited for, or shut: HeadraceProviderPaused
        "context_length", "content_policy", "invalid_request", "too_large", "expired", "undecodable", "id_conflict",  # the caller's
        "internal", "cancelled", "rate_rule",  # ours, or the operator's
    }  # fmt: skip


def classes(query: str) -> list[set[str]]:
    """The sets of classes it asks for, in order."""
    return [set(found.split("|")) for found in re.findall(r'class=~"([^"]*)"', query)]

"""Each alert fires, stays quiet just below its bound, and resolves: tried by promtool over the rules as they are shipped."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "grafana" / "rules" / "headrace.yml"
BEFORE, DURING, AFTER = 14, 58, 80  # minutes: quiet for 15, then 45 of what alarms, then quiet again
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (of Prometheus) is not on the PATH")


@dataclass(frozen=True, slots=True)
class Case:
    """Series of an alert by selector: (quiet, alarming, almost), each a value, a slope (`+5`: a counter), or `_` for no sample."""

    series: dict[str, tuple[str, str, str]]
    labels: dict[str, str]
    value: str = ""


def gauge(quiet: float, alarming: float, almost: float) -> tuple[str, str, str]:
    return str(quiet), str(alarming), str(almost)


CASES = {
    "HeadraceDeadLettersOpen": Case(
        # two workers tell the same: 60 + 41 are open, not twice that
        {
            'headrace_dead_letters_open{job="h",instance="a",class="timeout"}': gauge(0, 60, 60),
            'headrace_dead_letters_open{job="h",instance="b",class="timeout"}': gauge(0, 60, 60),
            'headrace_dead_letters_open{job="h",instance="a",class="internal"}': gauge(0, 41, 40),
        },
        {"job": "h"}, "101",
    ),
    "HeadraceDeadLetterOld": Case(
        {'headrace_dead_letters_oldest_open_age_seconds{job="h",instance="a"}': gauge(0, 3601, 3600)}, {"job": "h"}
    ),
    "HeadraceDeadLetterInflow": Case(
        {
            'headrace_records_settled_total{job="h",lane="main",outcome="completed",class="none"}': ("+90", "+90", "+96"),
            'headrace_records_settled_total{job="h",lane="main",outcome="dead",class="timeout"}': ("+0", "+10", "+4"),
        },
        {"job": "h"},
    ),
    "HeadraceAbsent": Case({'headrace_build_info{job="h"}': ("1", "_", "1")}, {}),
    "HeadraceWorkerDown": Case({'up{job="headrace",instance="a"}': gauge(1, 0, 1)}, {"job": "headrace", "instance": "a"}),
    "HeadraceLaneAbsent": Case(
        {
            'headrace_lane_joined{job="h",instance="a",lane="main"}': ("1", "1", "1"),
            'headrace_lane_joined{job="h",instance="a",lane="dlq"}': ("1", "1", "1"),
            'headrace_lane_joined{job="h",instance="a",lane="retry"}': ("1", "0", "0"),
            'headrace_lane_joined{job="h",instance="b",lane="retry"}': ("1", "_", "1"),
        },
        {"lane": "retry"},
    ),
    "HeadracePartitionStalled": Case(
        {'headrace_partition_stalled{job="h",instance="a",lane="main",topic="t",partition="3"}': gauge(0, 1, 0)},
        {"job": "h", "lane": "main", "topic": "t", "partition": "3"},
    ),
    "HeadraceThreadHung": Case(
        {
            'headrace_threads_hung{job="h",instance="a"}': gauge(0, 1, 0),
            'headrace_event_loop_beat_age_seconds{job="h",instance="a"}': gauge(0.3, 15, 10),
        },
        {"job": "h", "instance": "a"},
    ),
    "HeadraceLanePaused": Case(
        {
            'headrace_lane_paused{job="h",lane="main",reason="targets_shut"}': gauge(0, 1, 0),
            'headrace_lane_paused{job="h",lane="main",reason="operator"}': gauge(0, 1, 1),
        },
        {"job": "h", "lane": "main", "reason": "targets_shut"},
    ),
    "HeadraceProviderPaused": Case(
        {'headrace_provider_paused_scopes{job="h",provider="p",class="auth"}': gauge(0, 2, 0)}, {"job": "h", "provider": "p"}
    ),
    "HeadraceProviderFailing": Case(
        # its chain falls back, so `q` answers; `few` fails always, but seldom; `limited` answers 429 and
        # `asked` is asked wrongly, which says nothing of them; a handler that calls nobody is no provider
        {
            'headrace_call_latency_seconds_count{job="h",instance="a",lane="main",provider="p",class="none"}': ("+10", "+0", "+10"),
            'headrace_call_latency_seconds_count{job="h",instance="a",lane="main",provider="p",class="overloaded"}': ("+0", "+5", "+5"),
            'headrace_call_latency_seconds_count{job="h",instance="b",lane="retry",provider="p",class="timeout"}': ("+0", "+5", "+5"),
            'headrace_call_latency_seconds_count{job="h",instance="a",lane="main",provider="p",class="rate_limited"}': ("+0", "+90", "+90"),
            'headrace_call_latency_seconds_count{job="h",instance="a",lane="retry",provider="q",class="none"}': ("+1", "+10", "+10"),
            'headrace_call_latency_seconds_count{job="h",instance="a",lane="main",provider="few",class="connection"}': ("+0", "+1", "+1"),
            'headrace_call_latency_seconds_count{job="h",instance="a",lane="main",provider="limited",class="rate_limited"}': ("+0", "+90", "+90"),
            'headrace_call_latency_seconds_count{job="h",instance="a",lane="main",provider="asked",class="invalid_request"}': ("+0", "+90", "+90"),
            'headrace_call_latency_seconds_count{job="h",instance="a",lane="main",provider="none",class="timeout"}': ("+0", "+90", "+90"),
        },
        {"job": "h", "provider": "p"},
    ),
    "HeadraceEndpointOut": Case(
        {
            'headrace_endpoint_out{job="h",instance="a",provider="p",endpoint="e",reason="connection"}': gauge(0, 1, 0),
            'headrace_endpoint_out{job="h",instance="a",provider="p",endpoint="e",reason="health"}': gauge(0, 0, 0),
            'headrace_endpoint_out{job="h",instance="b",provider="p",endpoint="e",reason="connection"}': gauge(0, 0, 0),
        },
        {"job": "h", "provider": "p", "endpoint": "e"},
    ),
    "HeadraceRecordsLost": Case(
        {'headrace_records_lost_total{job="h",topic="t",reason="unread"}': ("+0", "+1", "+0")}, {"job": "h", "topic": "t"}
    ),
    "HeadraceRetentionNear": Case(
        {
            'headrace_partition_oldest_record_age_seconds{job="h",lane="main",topic="t",partition="0"}': gauge(5, 81, 80),
            'headrace_topic_retention_seconds{job="h",topic="t"}': gauge(100, 100, 100),
            'headrace_partition_oldest_record_age_seconds{job="h",lane="main",topic="for-ever",partition="0"}': gauge(5, 81, 81),
            'headrace_topic_retention_seconds{job="h",topic="for-ever"}': gauge(-1, -1, -1),
        },
        {"job": "h", "topic": "t"},
    ),
    "HeadraceRetriesLate": Case(
        {
            'headrace_retry_lateness_seconds_bucket{job="h",lane="retry",le="0.1"}': ("+100", "+90", "+100"),
            'headrace_retry_lateness_seconds_bucket{job="h",lane="retry",le="1.0"}': ("+100", "+90", "+100"),
            'headrace_retry_lateness_seconds_bucket{job="h",lane="retry",le="5.0"}': ("+100", "+100", "+100"),
            'headrace_retry_lateness_seconds_bucket{job="h",lane="retry",le="+Inf"}': ("+100", "+100", "+100"),
        },
        {"job": "h"},
    ),
    "HeadraceParked": Case(
        {
            'headrace_parked_records{job="h",instance="a",topic="t",partition="0"}': gauge(0, 81, 80),
            'headrace_parked_records{job="h",instance="b",topic="t",partition="0"}': gauge(0, 81, 80),
            'headrace_parked_cap_records{job="h",instance="a"}': gauge(100, 100, 100),
        },
        {"job": "h"},
    ),
    "HeadraceRedisAway": Case({'headrace_redis_admission_open{job="h",instance="a"}': gauge(1, 0, 1)}, {"job": "h"}),
    "HeadraceSettleBlocked": Case(
        {'headrace_outcomes_blocked_total{job="h",lane="main"}': ("+0", "+3", "+0")}, {"job": "h", "lane": "main"}
    ),
    "HeadraceTransactionsFail": Case(
        {
            'headrace_transactions_total{job="h",lane="main",end="committed"}': ("+90", "+80", "+90"),
            'headrace_transactions_total{job="h",lane="main",end="aborted"}': ("+0", "+20", "+9"),
        },
        {"job": "h", "lane": "main"},
    ),
    "HeadraceDeadLettersUncounted": Case(
        # one of two has read everything: the figures are there
        {
            'headrace_dead_letters_followed_ratio{job="h",instance="a"}': gauge(1, 0.4, 0.4),
            'headrace_dead_letters_followed_ratio{job="h",instance="b"}': gauge(1, 0.5, 1),
        },
        {"job": "h"},
    ),
    "HeadraceAlertsFail": Case(
        {
            'headrace_alerts_total{job="h",sink="sentry",end="failed"}': ("+0", "+2", "+0"),
            'headrace_alerts_total{job="h",sink="sentry",end="sent"}': ("+5", "+0", "+5"),
        },
        {"job": "h", "sink": "sentry"},
    ),
}  # fmt: skip


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def values(first: str, then: str, last: str) -> str:
    """A series that is `first` for 15 minutes, `then` for 45, and `last` for 21; of a counter the slopes."""
    parts, reached = [], 0
    for step, samples in ((first, 15), (then, 45), (last, 21)):
        if step.startswith("+"):
            slope = int(step)
            parts.append(f"{reached}+{slope}x{samples - 1}")
            reached += slope * samples
        else:
            parts.append(f"_x{samples}" if step == "_" else f"{step}x{samples - 1}")
    return " ".join(parts)


def filled(text: str, labels: dict[str, str], value: str) -> str:
    """An annotation as Prometheus fills it in."""
    return re.sub(r"\{\{ \$(?:labels\.(\w+)|value) \}\}", lambda found: labels[found[1]] if found[1] else value, text)


def test(name: str, *, alarming: bool) -> dict[str, Any]:
    """promtool's test of an alert: before, in the middle, and after."""
    case, rule = CASES[name], alerts()[name]
    expected = {
        "exp_labels": case.labels | rule["labels"],
        "exp_annotations": {key: filled(text, case.labels, case.value) for key, text in rule["annotations"].items()},
    }
    series = [
        {"series": selector, "values": values(quiet, loud if alarming else almost, quiet)}
        for selector, (quiet, loud, almost) in case.series.items()
    ]
    moments = [(BEFORE, False), (DURING, alarming), (AFTER, False)]
    return {
        "interval": "1m",
        "input_series": series,
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": [expected] if fires else []} for minute, fires in moments
        ],
    }


test.__test__ = False  # type: ignore[attr-defined]  # promtool's, not pytest's


@promtool
def test_alerts_fire_and_resolve(tmp_path: Path) -> None:
    """Quiet before, firing with its labels and texts while it holds, quiet again after; and never where it almost holds."""
    tests = [test(name, alarming=alarming) for name in CASES for alarming in (True, False)]
    path = tmp_path / "alerts.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}), "utf-8")
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tried() -> None:
    """A new alert comes with its case."""
    assert set(CASES) == set(alerts())


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_alert_says_what_to_do(name: str) -> None:
    """Severity, summary, description, and a section of the runbook that is there."""
    rule = alerts()[name]
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    text = (ROOT / page).read_text("utf-8")
    assert anchor in {title.lower() for title in re.findall(r"^## (\w+)$", text, re.MULTILINE)}
    section = re.split(rf"^## {name}$", text, flags=re.MULTILINE)[1].split("\n## ")[0]
    assert all(f"**{part}**" in section for part in ("Means", "Look", "Do")), section


def test_the_runbook_has_no_section_without_an_alert() -> None:
    """An alert that is gone takes its section along."""
    titles = re.findall(r"^## (Headrace\w+)$", (ROOT / "docs" / "runbook.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(titles) == sorted(alerts())

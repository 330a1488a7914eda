"""The dashboard is whole: it is the one its script makes, every panel says what it shows, and every query can be answered."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.metrics import definitions
from headrace.metrics.standard import PROCESS

ROOT = Path(__file__).resolve().parents[3]
GRAFANA = ROOT / "grafana"
FILE = GRAFANA / "dashboards" / "headrace.json"
UNITS = {"short", "s", "bytes", "Bps", "ops", "percentunit"}
FUNCTIONS = {"sum", "max", "min", "count", "by", "rate", "increase", "changes", "topk", "histogram_quantile", "time", "and", "le"}
BOARD: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
SAMPLES = {name: metric for metric in (*definitions.OURS, *PROCESS) for name in metric.series}


def queries() -> Iterator[tuple[str, str]]:
    for panel in PANELS:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])


def test_the_file_is_the_one_its_script_makes() -> None:
    """`python grafana/dashboard.py > grafana/dashboards/headrace.json` makes it anew."""
    made = subprocess.run([sys.executable, str(GRAFANA / "dashboard.py")], capture_output=True, text=True, timeout=60, check=True)
    assert made.stdout == FILE.read_text("utf-8")


def test_its_identity_is_stable() -> None:
    """Links to it go on working: the uid is fixed, there is no database id, and nobody edits it in place."""
    assert BOARD["uid"] == "headrace"
    assert "id" not in BOARD
    assert BOARD["editable"] is False


def test_its_variables_choose_source_job_and_instance() -> None:
    """One datasource variable of that name; job and instance choose several, or all."""
    source, job, instance = BOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert [variable["name"] for variable in (job, instance)] == ["job", "instance"]
    for variable in (job, instance):
        assert variable["datasource"]["uid"] == "$datasource"
        assert (variable["multi"], variable["includeAll"], variable["allValue"]) == (True, True, ".+")


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    """Title, description, a unit, the chosen datasource, and a legend for each of its queries."""
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    for one in (panel, *panel["targets"]):
        assert one["datasource"] == {"type": "prometheus", "uid": "$datasource"}
    assert all(target["legendFormat"] for target in panel["targets"])
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references)


def test_panels_have_their_own_place_and_number() -> None:
    """No id twice, no title twice, no two panels over each other, none beyond the grid."""
    everything = BOARD["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    places = [panel["gridPos"] for panel in everything]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


@pytest.mark.parametrize(("title", "query"), list(queries()))
def test_a_query_asks_for_what_there_is(title: str, query: str) -> None:
    """Only metrics that a worker shows, by labels that they have, for the chosen job and instance, over Grafana's own interval.

    That a live worker shows exactly the defined metrics is held by tests/integration/test_metrics.py.
    """
    selectors = re.findall(r"([a-z_:]+)\{([^}]*)\}", query)
    assert selectors
    for name, inside in selectors:
        assert name in SAMPLES, f"{title}: no metric is called {name}"
        assert inside.startswith('job=~"$job", instance=~"$instance"'), title
        labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", inside)) - {"job", "instance"}
        assert labels <= set(SAMPLES[name].labels), f"{title}: {name} has no label {labels}"
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]', " ", query)
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", bare))))
    known = {label for name, _ in selectors for label in SAMPLES[name].labels} | {"le", "job", "instance"}
    assert grouped <= known, f"{title}: no metric of it has {grouped - known}"
    words = set(re.findall(r"[a-z_]{2,}", bare)) - {name for name, _ in selectors}
    assert words <= FUNCTIONS | grouped, f"{title}: {words - FUNCTIONS - grouped}"
    assert set(re.findall(r"\[([^]]*)\]", query)) <= {"$__rate_interval"}


@pytest.mark.parametrize(("title", "query"), list(queries()))
def test_counters_are_asked_for_their_rate_and_gauges_are_not(title: str, query: str) -> None:
    """A counter as it stands says nothing; the rate of a gauge neither."""
    for function, name in re.findall(r"(?:(rate|increase)\()?([a-z_]+)\{", query):
        metric = SAMPLES[name]
        assert bool(function) == (metric.kind in ("counter", "histogram")), f"{title}: {name}"


def test_every_metric_is_on_the_dashboard() -> None:
    """What is worth measuring is worth a look; of a few a sum or their age is enough, and they are named here."""
    shown = {name for _, query in queries() for name in re.findall(r"([a-z_]+)\{", query)}
    left_out = {name for metric in definitions.OURS for name in metric.series if not set(metric.series) & shown}
    assert left_out == {
        "headrace_lane_joined", "headrace_lane_settled_age_seconds", "headrace_partition_frontier_offset", "headrace_records_settled_unread_total",
    }  # fmt: skip


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (of Prometheus) is not on the PATH")
def test_every_query_is_promql(tmp_path: Path) -> None:
    """As Prometheus' own parser reads it."""
    rules = [
        {"record": f"query:{at}", "expr": query.replace("$__rate_interval", "5m").replace("$job", ".+").replace("$instance", ".+")}
        for at, (_, query) in enumerate(queries())
    ]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}), "utf-8")
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_ask_for_what_there_is() -> None:
    """Recording rules and alerts name metrics that a worker shows, or each other."""
    groups = yaml.safe_load((GRAFANA / "rules" / "headrace.yml").read_text("utf-8"))["groups"]
    recorded = {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}
    for rule in (rule for group in groups for rule in group["rules"]):
        named = set(re.findall(r"headrace[a-z_:0-9]+", re.sub(r'"[^"]*"', "", rule["expr"])))
        assert named <= set(SAMPLES) | recorded, f"{rule}: {named - set(SAMPLES) - recorded}"


def test_it_is_provisioned_and_read_only() -> None:
    """Grafana finds the file where the compose file mounts it, cannot change it, and has a source for it."""
    provider = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "headrace.yml").read_text("utf-8"))["providers"][0]
    assert (provider["allowUiUpdates"], provider["disableDeletion"]) == (False, True)
    source = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text("utf-8"))["datasources"][0]
    assert (source["type"], source["isDefault"], source["editable"]) == ("prometheus", True, False)
    assert source["url"] == "http://prometheus:9090"


def test_prometheus_finds_the_workers_of_the_compose_file() -> None:
    """By the names of their services, however many run of each, at the port they are told; and reads the rules that are mounted."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    config = yaml.safe_load((GRAFANA / "prometheus" / "prometheus.yml").read_text("utf-8"))
    found = next(job for job in config["scrape_configs"] if job["job_name"] == "headrace")["dns_sd_configs"][0]
    workers = {name: service for name, service in compose["services"].items() if name.startswith("worker-")}
    assert set(found["names"]) == set(workers)
    assert {service["environment"]["HEADRACE_METRICS_PORT"] for service in workers.values()} == {str(found["port"])}
    mounts = dict(volume.split(":")[:2] for volume in compose["services"]["prometheus"]["volumes"])
    (rules,) = config["rule_files"]
    assert (ROOT / mounts["./grafana/rules"].replace("/etc/prometheus/rules", "grafana/rules") / Path(rules).name).is_file()
    assert mounts["./grafana/prometheus/prometheus.yml"] == "/etc/prometheus/prometheus.yml"

"""Makes the dashboard: `python grafana/dashboard.py > grafana/dashboards/headrace.json`. The panels are in `panels.py`; a test holds the file to them."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UID = "headrace"
SOURCE = {"type": "prometheus", "uid": "$datasource"}
WIDTH = 24
SELECTED = 'job=~"$job", instance=~"$instance"'


@dataclass(frozen=True, slots=True)
class Panel:
    """`queries` are (PromQL, legend). In PromQL `metric{}` and `metric{label="x"}` get the job and instance chosen; `[]` the rate's interval."""

    title: str
    description: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    stacked: bool = False
    thresholds: tuple[tuple[str, float | None], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """A heading, and what stands under it."""

    title: str
    panels: tuple[Panel, ...]


def quantiles(metric: str, by: str, more: str = "") -> tuple[tuple[str, str], ...]:
    """Median and 99th percentile of a histogram, by the labels in `by`."""
    selector = f"{{+{more}}}" if more else "{}"
    return tuple(
        (
            f"histogram_quantile({q}, sum by ({by}le) (rate({metric}_bucket{selector}[])))",
            f"p{name} {{{{{by.rstrip(', ')}}}}}" if by else f"p{name}",
        )
        for q, name in ((0.5, 50), (0.99, 99))
    )


def selected(query: str) -> str:
    """The query as Grafana sends it."""
    return query.replace("{}", f"{{{SELECTED}}}").replace("{+", f"{{{SELECTED}, ").replace("[]", "[$__rate_interval]")


def dashboard(rows: tuple[Row, ...]) -> dict[str, Any]:
    """The whole of it."""
    return {
        "uid": UID,
        "title": "Headrace",
        "description": "LLM inference over Kafka: flow, retries, dead letters, providers, and what they run on.",
        "tags": ["headrace"],
        "editable": False,
        "graphTooltip": 1,
        "schemaVersion": 39,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": _variables()},
        "panels": _placed(rows),
    }


def _variables() -> list[dict[str, Any]]:
    source = {
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0, "refresh": 1, "regex": "",
        "current": {}, "includeAll": False, "multi": False, "options": [],
    }  # fmt: skip
    return [source, _labels("job", "Job", "headrace_build_info"), _labels("instance", "Instance", 'headrace_build_info{job=~"$job"}')]


def _labels(name: str, label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {name})"
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "definition": query,
        "query": {"query": query, "refId": f"{name}-values"}, "refresh": 2, "sort": 1, "hide": 0, "regex": "",
        "multi": True, "includeAll": True, "allValue": ".+", "current": {"text": ["All"], "value": ["$__all"]}, "options": [],
    }  # fmt: skip


def _placed(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    """Panels beside each other as far as they fit, then below."""
    placed: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        placed.append(
            {"id": len(placed) + 1, "type": "row", "title": row.title, "collapsed": False, "panels": [], "gridPos": _at(0, top, WIDTH, 1)}
        )
        top, left, height = top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                top, left, height = top + height, 0, 0
            placed.append(_panel(panel, len(placed) + 1) | {"gridPos": _at(left, top, panel.width, panel.height)})
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return placed


def _at(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(panel: Panel, number: int) -> dict[str, Any]:
    steps = [{"color": color, "value": value} for color, value in panel.thresholds or (("green", None),)]
    custom = {
        "fillOpacity": 20,
        "lineWidth": 1,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    stat = panel.kind == "stat"
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "targets": [_target(query, legend, chr(ord("A") + at)) for at, (query, legend) in enumerate(panel.queries)],
        "fieldConfig": {"defaults": defaults if stat else defaults | {"custom": custom}, "overrides": []},
        "options": (_STAT if stat else _SERIES) | panel.options,
    }


_STAT = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "background", "graphMode": "area"}
_SERIES = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi", "sort": "desc"}}


def _target(query: str, legend: str, reference: str) -> dict[str, Any]:
    return {"refId": reference, "datasource": SOURCE, "expr": selected(query), "legendFormat": legend, "range": True, "editorMode": "code"}


def text() -> str:
    """The file."""
    sys.path.insert(0, str(Path(__file__).parent))
    from panels import ROWS

    return json.dumps(dashboard(ROWS), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from dashboard import text as made

    sys.stdout.write(made())

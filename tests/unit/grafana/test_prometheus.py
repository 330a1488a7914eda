"""What Prometheus is given is valid as it judges itself: the rules, the compose file's configuration, and that for a host of one's own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.pages import ROOT, read

RULES = ROOT / "grafana" / "rules" / "headrace.yml"
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (of Prometheus) is not on the PATH")


@promtool
def test_rules_and_configuration_are_valid() -> None:
    """As Prometheus itself judges them."""
    config = ROOT / "grafana" / "prometheus" / "prometheus.yml"
    for command in (["check", "rules", str(RULES)], ["check", "config", "--syntax-only", str(config)]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_the_configuration_for_a_host_of_ones_own_is_valid(tmp_path: Path) -> None:
    """What docs/health.md shows finds its rules from where it says it stands; without them it is refused."""
    (shown,) = (block.text for block in read(ROOT / "docs" / "health.md").blocks if "scrape_configs" in block.text)
    (tmp_path / "prometheus.yml").write_text(shown, "utf-8")
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode != 0
    (tmp_path / "grafana").symlink_to(ROOT / "grafana")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    rules = sum(len(group["rules"]) for group in groups)
    assert f"{rules} rules found" in done.stdout
    assert [job["job_name"] for job in yaml.safe_load(shown)["scrape_configs"]] == ["headrace"]

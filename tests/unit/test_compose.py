"""What docker-compose.yml and deploy/kubernetes.yaml promise, as far as their text shows it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.cli import COMMANDS
from headrace.loading import load
from headrace.local.jars import KAFKA_VERSION
from headrace.process import LEAVE_S

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text("utf-8")
COMPOSE = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", TEXT))  # as it is where nothing is set
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("headrace")}
WORKERS = {name: service for name, service in OURS.items() if name.startswith("worker-")}
ITEMS: list[dict[str, Any]] = yaml.safe_load((ROOT / "deploy" / "kubernetes.yaml").read_text("utf-8"))["items"]
DEPLOYED = {item["metadata"]["name"]: item["spec"]["template"]["spec"] for item in ITEMS if item["kind"] in ("Deployment", "Job")}


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_is_published_beyond_loopback(name: str) -> None:
    """Every port of every service is bound to 127.0.0.1, and nothing takes the host's network."""
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", ()))
    assert "network_mode" not in SERVICES[name]


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_no_more_rights_than_it_needs(name: str) -> None:
    """No capability, no new privileges, a bounded log; an image of a fixed version; no secret in its variables."""
    service = SERVICES[name]
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert service["logging"]["options"]["max-size"]
    assert re.fullmatch(r"headrace:local|[\w/-]+:v?\d+(\.\d+)+(-alpine)?", service["image"])
    named = [key for key in service.get("environment", {}) if re.search(r"PASSWORD|SECRET|TOKEN|REDIS_URL", key)]
    assert all(key.endswith("_FILE") for key in named)


@pytest.mark.parametrize("name", OURS)
def test_ours_run_as_nobody_on_a_root_that_cannot_be_written(name: str) -> None:
    """The image built here, a numeric user, a read-only root, and nothing but /tmp in memory."""
    service = OURS[name]
    assert (service["build"], service["pull_policy"]) == (".", "never")  # nobody else's image of that name is taken for ours
    assert int(service["user"].partition(":")[0]) >= 10_000
    assert service["read_only"] is True
    assert [mount.partition(":")[0] for mount in service["tmpfs"]] == ["/tmp"]
    assert all(volume.endswith(":ro") for volume in service["volumes"])


def test_the_three_lanes_are_services_of_their_own_and_can_be_scaled() -> None:
    """main, retry and dlq, each with its grace; neither a name nor a port that a second one would clash with."""
    assert {name: service["command"] for name, service in WORKERS.items()} == {
        f"worker-{lane}": ["worker", lane] for lane in ("main", "retry", "dlq")
    }
    for service in WORKERS.values():
        assert not {"container_name", "hostname", "ports"} & service.keys()
        assert "HEADRACE_INSTANCE" not in service["environment"]
        assert int(service["stop_grace_period"].rstrip("s")) >= float(service["environment"]["HEADRACE_GRACE_S"]) + LEAVE_S
        assert service["deploy"]["resources"]["limits"]["memory"]


def test_a_worker_waits_for_what_it_needs() -> None:
    """Kafka, Redis and the model healthy, the topics there."""
    for service in WORKERS.values():
        conditions = {name: on["condition"] for name, on in service["depends_on"].items()}
        assert conditions.pop("topics") == "service_completed_successfully"
        assert conditions == dict.fromkeys(("kafka", "redis", "stub-llm"), "service_healthy")
        assert all("test" in SERVICES[name]["healthcheck"] for name in conditions)


def test_the_workers_configuration_is_taken() -> None:
    """Each variable is one that Headrace knows, the file is right, and the address of Redis is in a file with a password Redis can read."""
    variables = dict(WORKERS["worker-main"]["environment"])
    variables["HEADRACE_REDIS_URL_FILE"] = str(ROOT / COMPOSE["secrets"]["redis_url"]["file"])
    variables["HEADRACE_CONFIG"] = str(ROOT / WORKERS["worker-main"]["volumes"][0].partition(":")[0])
    settings = load(variables)
    assert (settings.kafka.bootstrap, settings.providers[0].base_url) == ("kafka:19092", "http://stub-llm:8000/v1")
    assert re.fullmatch(r"redis://:[A-Za-z0-9_-]+@redis:6379/0", settings.redis.url.get_secret_value())
    assert (settings.http.host, settings.http.metrics_port) == ("0.0.0.0", 9464)


def test_redis_keeps_what_it_is_given() -> None:
    """Nothing is evicted, writes go to a file, and the password stands in no command line."""
    command = SERVICES["redis"]["command"][-1]
    assert "--maxmemory-policy noeviction" in command
    assert "--appendonly yes" in command
    assert "--requirepass" not in command


def test_the_broker_is_the_one_everything_is_tested_with() -> None:
    """The image's version is the local stack's, and clients of this machine are led to loopback."""
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"
    assert "OUTSIDE://127.0.0.1:9092" in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]


def test_what_is_mounted_and_run_exists() -> None:
    """Docker would make a folder of a file that is missing; and a command that is none would end the container."""
    sources = [volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())]
    sources += [secret["file"] for secret in COMPOSE["secrets"].values()]
    assert [source for source in sources if source.startswith(".") and not (ROOT / source).exists()] == []
    assert {service["command"][0] for service in OURS.values() if "command" in service} <= COMMANDS.keys()


def test_docker_takes_the_file(tmp_path: Path) -> None:
    """`docker compose config`, where Docker is."""
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60, check=False).returncode
    ):
        pytest.skip("docker compose is not on this machine: the file was read as YAML only")
    command = ["docker", "compose", "-f", str(ROOT / "docker-compose.yml"), "--profile", "cli", "config", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("name", DEPLOYED)
def test_on_kubernetes_the_same_holds(name: str) -> None:
    """No root, no rights, nothing written but /tmp, secrets as files, the probes and the grace of a worker."""
    pod = DEPLOYED[name]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    values = {one["name"]: one.get("value", "pod-1") for one in container["env"]}
    assert {key for key in values if re.search(r"REDIS|API_KEY", key)} == {"HEADRACE_REDIS_URL_FILE", "OPENAI_API_KEY_FILE"}
    given = {key: value for key, value in values.items() if not value.startswith(("/run", "/etc"))}
    assert load(given | {"OPENAI_API_KEY": "x"}).instance == "pod-1"
    if name != "headrace-topics":
        assert pod["terminationGracePeriodSeconds"] >= float(values["HEADRACE_GRACE_S"]) + LEAVE_S
        probes = [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
        assert probes == ["/livez", "/livez", "/readyz"]
        assert container["args"] == ["worker", name.removeprefix("headrace-")]

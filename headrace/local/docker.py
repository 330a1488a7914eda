"""The broker as a container, through the docker command line. Its data ends with it."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess

from headrace.errors import StackError
from headrace.local import process
from headrace.local.folder import Folder
from headrace.local.process import Leashed
from headrace.local.properties import COMMON

READY_S = 300.0  # the first start pulls the image
_ASK = struct.pack(">ihhih", 10, 18, 0, 1, -1)  # ApiVersions v0, the one request every broker answers to everybody
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
    settings = [f"--env={variable}={value}" for variable, value in environment(port).items()]
    return process.start(
        "the Kafka container",
        ["docker", "run", "--rm", "--name", name, "--publish", f"127.0.0.1:{port}:{port}", *settings, image_name],
        folder.path / "kafka.out",
        cleanup=f"docker rm --force {name}",
        keep=(folder.lock_fd,),
    )


def environment(port: int) -> dict[str, str]:
    """The variables that make the image a node of its own, which clients reach at that port of loopback."""
    properties = {
        **COMMON,
        "controller.quorum.voters": "1@localhost:9093",
        "listeners": f"PLAINTEXT://:{port},CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }
    return {f"KAFKA_{key.upper().replace('.', '_')}": value for key, value in properties.items()}


def answers(port: int) -> bool | None:
    """True once a broker answers there; None before. Docker takes connections for a container that does not listen yet."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(_ASK)
            return True if connection.recv(4) else None
    except OSError:
        return None

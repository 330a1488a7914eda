"""A broker for the local stack: the one the environment names, or a KRaft node of our own. Never reads HEADRACE_KAFKA_BOOTSTRAP."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import StackError
from headrace.local import docker as docker_cli
from headrace.local import process
from headrace.local.folder import Folder
from headrace.local.jars import KAFKA_VERSION, kafka_jars
from headrace.local.java import find_java
from headrace.local.process import Leashed, Startup
from headrace.local.properties import LOG4J, broker_properties

STARTED = r"Kafka Server started"
_READY_S = 60.0
_FORMAT_S = 60.0
_REMEDIES = (
    (r"Address already in use|BindException", "a port was taken meanwhile: start again, others are chosen"),
    (r"Failed to acquire lock", "another broker uses this folder: stop it, or choose another folder"),
    (r"UnsupportedClassVersionError", "this Java is too old: pip install 'headrace[local]', or install Java 17 or later"),
    (r"No space left|Could not reserve enough space|OutOfMemory", "the disk or the memory is full: make room, start again"),
    (r"meta\.properties|metadata\.version|Corrupt|InconsistentClusterId", "its data is damaged: delete the folder"),
)


@dataclass(frozen=True, slots=True)
class Kafka:
    """A broker that answers at `bootstrap`; `how` says which it is; `process` is None where it is not ours."""

    bootstrap: str
    how: str
    process: Leashed | None = None

    def stop(self) -> None:
        """End the broker if it is ours."""
        if self.process is not None:
            self.process.stop()


def start_kafka(folder: Folder, startup: Startup, *, docker: bool = False) -> Kafka:
    """Return a broker that is ready: HEADRACE_TEST_KAFKA_BOOTSTRAP, else the image (`docker`), else our own node.

    Raises StackError with the remedy; then nothing is left running.
    """
    if given := os.environ.get("HEADRACE_TEST_KAFKA_BOOTSTRAP"):
        return Kafka(given, "HEADRACE_TEST_KAFKA_BOOTSTRAP")
    if docker:
        image = docker_cli.image(KAFKA_VERSION)
        port = folder.ports("kafka")["kafka"]
        startup.step(f"Starting {image}, which is pulled where it is not here yet")
        return _ready(docker_cli.start(image, port, folder), port, f"the {image} image", startup, docker_cli.READY_S)
    return _own(folder, startup)


def _own(folder: Folder, startup: Startup) -> Kafka:
    java = find_java()
    jars = kafka_jars(startup.step)
    folder.require_version(KAFKA_VERSION)
    ports = folder.ports("kafka", "controller")
    # C1 alone starts in 2.6 s instead of 4.0; what is kept and used for long gets the better compiler.
    tiers = [] if folder.persistent else ["-XX:TieredStopAtLevel=1"]
    command = [java.path, "-Xmx1g", *tiers, f"-Dlog4j2.configurationFile={folder.path / 'log4j2.properties'}"]
    command += ["-cp", os.pathsep.join(map(str, jars))]
    (folder.path / "log4j2.properties").write_text(LOG4J.format(log=folder.path / "broker.log"))
    _format(folder, command, ports, startup)
    _write_properties(folder.path / "server.properties", folder.path / "kafka", ports)
    (folder.path / "broker.log").unlink(missing_ok=True)
    startup.step("Starting Kafka")
    broker = process.start(
        "Kafka",
        [*command, "kafka.Kafka", str(folder.path / "server.properties")],
        folder.path / "kafka.out",
        keep=(folder.lock_fd,),
    )
    how = f"Apache Kafka {KAFKA_VERSION}, run by {java.how}"
    return _ready(broker, ports["kafka"], how, startup, _READY_S, folder.path / "broker.log")


def _format(folder: Folder, command: list[str], ports: dict[str, int], startup: Startup) -> None:
    """Format the data once, under another name and then renamed: what bears the name is whole."""
    data, part = folder.path / "kafka", folder.path / "kafka.part"
    if (data / "meta.properties").is_file():
        return
    if data.exists():
        raise StackError(f"{data} is no formatted data of a broker: delete {folder.path} and start again")
    shutil.rmtree(part, ignore_errors=True)
    startup.step("Formatting Kafka's data")
    config = folder.path / "format.properties"
    _write_properties(config, part, ports)
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "a")  # no leading dash
    # C1 alone: the tool lives for a second, and the better compiler never pays for itself.
    tool = [command[0], "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *command[1:], "kafka.tools.StorageTool"]
    command = [*tool, "format", "-t", cluster, "-c", str(config), "--standalone"]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=_FORMAT_S, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        said = f"{getattr(error, 'stdout', '') or ''}{getattr(error, 'stderr', '') or ''}"[-2000:]
        raise _explained(f"Kafka's data could not be formatted ({type(error).__name__}):\n{said}") from error
    config.unlink()
    part.rename(data)


def _write_properties(path: Path, data: Path, ports: dict[str, int]) -> None:
    lines = broker_properties(data, ports["kafka"], ports["controller"])
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))


def _ready(broker: Leashed, port: int, how: str, startup: Startup, timeout_s: float, log: Path | None = None) -> Kafka:
    """Wait for the broker's own word and a connection; stop it if either fails, whatever the reason."""
    try:
        if log is not None:
            broker.wait_for(STARTED, log, startup, timeout_s)
        broker.wait_until(lambda: docker_cli.answers(port), log or broker.log, startup, timeout_s)
        return Kafka(f"127.0.0.1:{port}", how, broker)
    except BaseException as error:
        broker.stop()
        if isinstance(error, StackError):
            raise _explained(str(error)) from error
        raise


def _explained(text: str) -> StackError:
    remedy = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, text)), None)
    return StackError(f"{remedy}\n{text}" if remedy else text)

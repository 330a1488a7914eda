"""Servers of a test's own, to be killed, frozen, emptied and started again; those that tests share are left alone."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from headrace.local import properties
from headrace.local.folder import Folder, open_folder
from headrace.local.kafka import Kafka, start_kafka
from headrace.local.process import Startup
from headrace.local.redis import find_server


class OwnKafka:
    """A broker on ports of its own; `bootstrap` stays the same over a restart, and so does its data."""

    def __init__(self, folder: Folder, changes: Mapping[str, str]) -> None:
        self._folder = folder
        self._changes = changes
        self._server = self._start()
        self.bootstrap = self._server.bootstrap

    def _start(self) -> Kafka:
        given = {name: value for name, value in os.environ.items() if name != "HEADRACE_TEST_KAFKA_BOOTSTRAP"}
        with mock.patch.dict(os.environ, given, clear=True), mock.patch.dict(properties.COMMON, self._changes):
            return start_kafka(self._folder, Startup())

    @property
    def pid(self) -> int:
        """The broker's own process."""
        assert self._server.process is not None, "it is ours"
        return self._server.process.pid

    @property
    def ended(self) -> bool:
        """Whether the broker has ended by itself."""
        assert self._server.process is not None, "it is ours"
        return self._server.process.exit_code() is not None

    @property
    def data(self) -> Path:
        """Where its logs are."""
        return self._folder.path / "kafka"

    def kill(self) -> None:
        """`kill -9`."""
        os.kill(self.pid, signal.SIGKILL)
        self._server.stop()

    def freeze(self) -> None:
        """SIGSTOP: connections stay, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def fill_disk(self, largest_bytes: int) -> None:
        """From now on no file of it can grow beyond that size (EFBIG, to the broker the same as ENOSPC). Linux only."""
        hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (largest_bytes, hard))

    def restart(self) -> None:
        """Start it again after `kill`, or once it has ended, at the same address."""
        self._server.stop()
        self._server = self._start()
        assert self._server.bootstrap == self.bootstrap, "its port was taken meanwhile"

    def stop(self) -> None:
        """End it."""
        self._server.stop()


@contextmanager
def own_kafka(**changes: str) -> Iterator[OwnKafka]:
    """Give a broker with these properties changed (`_` for `.`), and end it."""
    with open_folder(None) as folder:
        server = OwnKafka(folder, {name.replace("_", "."): value for name, value in changes.items()})
        try:
            yield server
        finally:
            server.stop()


class OwnRedis:
    """A Redis on a port of its own, without a file: started again, it is empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        command = [find_server()[0], "--bind", "127.0.0.1", "--port", str(self._port), "--save", "", "--dir", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "Redis does not start"
                time.sleep(0.02)

    def kill(self) -> None:
        """`kill -9`."""
        self._process.kill()
        self._process.wait(10)

    def save(self) -> None:
        """Write what it holds to its file, which `start` reads."""
        self.command("SAVE")

    def forget(self) -> None:
        """Remove that file, of a server that is down."""
        (self._folder / "dump.rdb").unlink(missing_ok=True)

    def freeze(self) -> None:
        """SIGSTOP: connections stay, nothing is answered."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def flush(self) -> None:
        """FLUSHALL."""
        self.command("FLUSHALL")

    def command(self, line: str) -> None:
        """Send one command that is answered with OK."""
        with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
            connection.sendall(line.encode() + b"\r\n")
            assert connection.recv(16).startswith(b"+OK")


@contextmanager
def own_redis(folder: Path) -> Iterator[OwnRedis]:
    """Give a Redis of this test's own, and end it."""
    server = OwnRedis(folder)
    try:
        yield server
    finally:
        server.thaw()
        server.kill()

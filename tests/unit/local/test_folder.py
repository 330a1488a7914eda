"""The data folder: one holder, one Kafka version, the same ports again."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import StackError
from headrace.local.folder import open_folder


def test_ports_are_remembered(tmp_path: Path) -> None:
    """A persistent folder gives the same ports at the next start, so that pasted exports stay true."""
    with open_folder(tmp_path / "data") as folder:
        first = folder.ports("kafka", "controller")
    with open_folder(tmp_path / "data") as folder:
        assert folder.ports("kafka", "controller") == first
    assert len(set(first.values())) == 2


def test_a_taken_port_is_replaced(tmp_path: Path) -> None:
    """A remembered port that another program has taken is given up for a free one."""
    with open_folder(tmp_path / "data") as folder:
        taken = folder.ports("kafka")["kafka"]
    with socket.socket() as other, open_folder(tmp_path / "data") as folder:
        other.bind(("127.0.0.1", taken))
        other.listen()
        assert folder.ports("kafka")["kafka"] != taken


def test_two_stacks_do_not_share_a_folder(tmp_path: Path) -> None:
    """The second is refused at once, and told which process holds the folder."""
    with open_folder(tmp_path / "data"), pytest.raises(StackError, match=r"process \d+.* stop it, or choose another folder"):
        open_folder(tmp_path / "data").__enter__()


def test_a_dead_holder_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers of a killed stack keep the lock until they have ended; the next stack waits for that, and then has the folder."""
    with open_folder(tmp_path / "data"):
        pass
    lock = (tmp_path / "data" / "lock").open("r+")
    fcntl.flock(lock, fcntl.LOCK_EX)
    lock.write(_dead_pid())
    lock.flush()
    waits: list[float] = []

    def end_of_the_servers(seconds: float) -> None:
        waits.append(seconds)
        lock.close()

    monkeypatch.setattr("headrace.local.folder.time.sleep", end_of_the_servers)
    with open_folder(tmp_path / "data") as folder:
        assert (folder.path / "lock").read_text() == str(os.getpid())
    assert len(waits) == 1


def _dead_pid() -> str:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True)
    return done.stdout.strip().ljust(12)


def test_another_kafka_version_is_refused(tmp_path: Path) -> None:
    """Data of another version is not opened; the error names both versions and what to do."""
    with open_folder(tmp_path / "data") as folder:
        folder.require_version("3.9.1")
    with open_folder(tmp_path / "data") as folder, pytest.raises(StackError, match=r"3\.9\.1.*4\.4\.0.*delete"):
        folder.require_version("4.4.0")


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """A folder with foreign files in it is left alone."""
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(StackError, match="not a stack's folder"):
        open_folder(tmp_path).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_damaged_notes_are_an_error(tmp_path: Path) -> None:
    """Notes that do not parse are named, with the remedy."""
    with open_folder(tmp_path / "data") as folder:
        (folder.path / "stack.json").write_text('{"ports":')
        with pytest.raises(StackError, match="delete"):
            folder.ports("kafka")


def test_a_temporary_folder_is_removed() -> None:
    """Without a path the folder is temporary and gone afterwards."""
    with open_folder(None) as folder:
        folder.ports("kafka")
        assert folder.path.is_dir()
    assert not folder.path.exists()


def test_the_folders_of_killed_stacks_are_swept() -> None:
    """A temporary folder whose lock nobody holds is removed by the next stack; one in use is not."""
    code = "import os; from headrace.local.folder import open_folder as o; m = o(None); print(m.__enter__().path, flush=True); os._exit(9)"
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    left = Path(killed.stdout.strip())
    assert left.is_dir()
    os.utime(left / "lock", (0, 0))
    with open_folder(None) as held, open_folder(None):
        assert held.path.is_dir()
    assert not left.exists()

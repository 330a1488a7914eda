"""The health check of a container: what its exit code says, and what it costs."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.watch.health import Answer, Health
from workers import livez

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("well", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_is_what_the_worker_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], well: bool, code: int
) -> None:
    """200 is 0 and 503 is 1; what the worker says is printed, for `docker inspect`."""
    health = Health("127.0.0.1", 0, {"/livez": lambda: Answer(well, {"status": "as it is"})})
    address = health.open()
    try:
        monkeypatch.setenv("HEADRACE_METRICS_PORT", address.rpartition(":")[2])
        assert livez.main([]) == code
        assert livez.main([f"{address}/livez"]) == code
        assert livez.main([f"{address}/absent"]) == 1
        assert "as it is" in capsys.readouterr().out
    finally:
        health.close()


@pytest.mark.parametrize("said", [b"", b"200", b"HTTP/1.1", b"\xff\xfe 404 x\r\n\r\n200", b"HTTP/1.0 404 No\r\n\r\n 200 "])
def test_what_is_no_200_is_unwell(said: bytes) -> None:
    """Neither a peer that says nothing nor one that speaks something else is taken for a healthy worker."""
    with _peer(said) as port:
        assert livez.main([f"http://127.0.0.1:{port}/livez"]) == 1


def test_nobody_there_or_no_port_is_unwell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A refused connection and a port that nobody named are 1, with the reason."""
    monkeypatch.delenv("HEADRACE_METRICS_PORT", raising=False)
    assert livez.main([]) == 1
    assert "HEADRACE_METRICS_PORT" in capsys.readouterr().out
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening
        assert livez.main([f"http://127.0.0.1:{taken.getsockname()[1]}/livez"]) == 1


def test_it_imports_nothing_of_the_engine() -> None:
    """It runs every ten seconds beside the worker, so it must not import what takes the worker its start."""
    code = "import workers.livez, sys; print([name for name in ('headrace', 'pydantic', 'asyncio', 'http.client') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@contextmanager
def _peer(said: bytes) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        thread.join(10)

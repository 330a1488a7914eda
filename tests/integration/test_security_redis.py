"""Redis behind TLS and an ACL user: a worker does all its work with the smallest rights the documentation names."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as client

from headrace.config import RedisSettings
from headrace.errors import ConfigError, StoreUnavailable
from headrace.local.redis import find_server
from headrace.store import Store
from tests.support.bench import Bench
from tests.support.engine import Engine
from tests.support.fixtures import bench, stub  # noqa: F401  pytest finds them by name
from tests.support.secured import PASSWORD, Certificates
from tests.support.stub import PatientStub

PAGE = Path(__file__).parents[2] / "docs" / "redis.md"


def rights(namespace: str) -> list[str]:
    """The rules of the user as docs/redis.md gives them, for this namespace."""
    (rules,) = re.findall(r"ACL SETUSER headrace (.*)", PAGE.read_text("utf-8"))
    given = [rule.strip("'").replace("{headrace}", f"{{{namespace}}}") for rule in rules.split()]
    return [rule for rule in given if not rule.startswith(">")]


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[tuple[int, Certificates]]:
    """Give the TLS port of a Redis, and its certificates; it has no other."""
    certificates = Certificates.made(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    key = ["--tls-cert-file", str(certificates.server), "--tls-key-file", str(certificates.server)]
    command = [find_server()[0], "--port", "0", "--tls-port", str(port), *key, "--tls-ca-cert-file", str(certificates.ca)]
    command += ["--tls-auth-clients", "no", "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path), "--requirepass", "admin"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 20
    try:
        while True:
            if process.poll() is not None:
                pytest.skip("this redis-server is built without TLS")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "Redis does not start"
                time.sleep(0.02)
        yield port, certificates
    finally:
        process.kill()
        process.communicate()


def url(port: int, ca: Path, *, user: str = "headrace", password: str = PASSWORD) -> str:
    """As an operator writes it."""
    return f"rediss://{user}:{password}@127.0.0.1:{port}/0?ssl_ca_certs={ca}"


async def test_a_worker_needs_no_more_of_redis_than_the_page_says(
    doors: tuple[int, Certificates], bench: Bench, stub: PatientStub  # noqa: F811
) -> None:  # fmt: skip
    """Over TLS, as a user with those rights alone, requests are claimed, retried, completed; Redis refuses nothing that was asked."""
    port, certificates = doors
    admin = client.Redis.from_url(url(port, certificates.ca, user="default", password="admin"))
    admin.execute_command("ACL", "SETUSER", "headrace", "reset", f">{PASSWORD}", *rights(bench.namespace))
    settings = bench.settings(stub.base_url, redis=RedisSettings(url=url(port, certificates.ca)))
    bench.ask("a", "a", "b")
    async with Engine(settings, "main", "retry", "dlq"):
        assert (await bench.finished(["a", "b"], timeout_s=60))["a", "completed"] == 1
    assert [(entry["reason"], entry["object"]) for entry in admin.acl_log()] == []


@pytest.mark.parametrize(("user", "which"), [("nobody", "ca"), ("headrace", "other_ca")])
async def test_what_keeps_a_worker_out_of_redis_is_told(user: str, which: str, doors: tuple[int, Certificates]) -> None:
    """A wrong user and a CA that is not Redis' are told as such, without the password."""
    port, certificates = doors
    store = Store(url(port, getattr(certificates, which), user=user), "x")
    with pytest.raises((StoreUnavailable, ConfigError)) as caught:
        await asyncio.wait_for(store.open(), 30)
    assert ("certificate" if which == "other_ca" else "password") in str(caught.value)
    assert PASSWORD not in str(caught.value)
    await store.close()

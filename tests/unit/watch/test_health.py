"""The probes and the server that answers them: what is alive, what is ready, what is refused, and what a client may cost."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.loading import load
from headrace.vitals import AtWork, Call, LaneSample, PartitionSample, Reading, Standing, ThreadSample
from headrace.watch.health import AT_ONCE, Answer, Health, Page
from headrace.watch.judgement import Held, Judged, Paused
from headrace.watch.probes import STALE_S, Probes
from headrace.watch.watchdog import Report

SAMPLE = PartitionSample("main", 3, Standing(10, 2, 0, 5, 41, 0.0, 90.0), Reading(15, 20, 1, oldest_ms=1), Call(10, 40.0))
WELL = Judged("main", SAMPLE, quiet_since=90.0, moved_at=50.0)
LANE = LaneSample("main", (SAMPLE,), settled_at=90.0, work=AtWork(busy=1, concurrency=4))
ENV = {"OPENAI_API_KEY": "sk-x"}


def report(**fields: Any) -> Report:
    return Report(**({"at": 100.0, "lanes": {"main": LANE}, "partitions": {WELL.key: WELL}} | fields))


def probes(found: Report, *lanes: str, now: float = 101.0) -> Probes:
    return Probes(lambda: found, lanes or ("main",), now=lambda: now)


def get(address: str, path: str, method: str = "GET") -> tuple[int, Any]:
    request = urllib.request.Request(address + path, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, Answer]]]:
    """Give a server whose answers can be set."""
    answers = {"/livez": Answer(well=True, body={"status": "ok"})}
    health = Health("127.0.0.1", 0, {"/livez": lambda: answers["/livez"]})
    yield health.open(), answers
    health.close()


def test_a_probe_is_200_or_503_and_says_why(server: tuple[str, dict[str, Answer]]) -> None:
    """What an orchestrator acts upon is the status; what an operator reads is the body."""
    address, answers = server
    assert get(address, "/livez") == (200, {"status": "ok"})
    assert get(address, "/livez?verbose") == (200, {"status": "ok"})
    assert get(address, "/livez", "HEAD") == (200, None)
    answers["/livez"] = Answer(well=False, body={"status": "stalled"})
    assert get(address, "/livez") == (503, {"status": "stalled"})


def test_other_paths_and_methods_are_refused(server: tuple[str, dict[str, Answer]]) -> None:
    """404 with what there is. Nothing but reading is understood."""
    address, _ = server
    assert get(address, "/metrics") == (404, {"paths": ["/livez"]})
    assert get(address, "/../etc/passwd")[0] == 404
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(address + "/livez", data=b"x", method="POST"), timeout=10)
    with refused.value as error:
        assert error.code == 501


@pytest.mark.parametrize("said", [b"\x00\xff\xfe\r\n\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"GET\r\n\r\n", b"G"])
def test_garbage_harms_nobody(server: tuple[str, dict[str, Answer]], said: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    """The next probe is answered, and nothing is printed."""
    address, _ = server
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(said)
    assert get(address, "/livez")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_clients_that_say_nothing_cost_a_bounded_number_of_threads(server: tuple[str, dict[str, Answer]]) -> None:
    """However many connect, and drip a byte now and then: a few threads at most, and a probe is answered all the same."""
    address, _ = server
    host, port = address.removeprefix("http://").split(":")
    before = threading.active_count()
    with ExitStack() as opened:
        for _ in range(4 * AT_ONCE):
            client = opened.enter_context(socket.create_connection((host, int(port)), timeout=10))
            client.sendall(b"GET /livez HTTP/1.1\r\nX: ")
        for _ in range(3):
            assert get(address, "/livez")[0] == 200
            assert threading.active_count() - before <= AT_ONCE


def test_a_port_that_is_taken_is_a_fault_of_the_configuration(server: tuple[str, dict[str, Answer]]) -> None:
    """It names the variable and the remedy."""
    port = int(server[0].rsplit(":", 1)[1])
    with pytest.raises(ConfigError) as raised:
        Health("127.0.0.1", port, {}).open()
    assert "HEADRACE_METRICS_PORT" in str(raised.value)
    assert f"127.0.0.1:{port}" in str(raised.value)
    assert "another port" in str(raised.value)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "a" * 64 + ".invalid"])
def test_an_address_that_is_not_ours_is_a_fault_of_the_configuration(host: str) -> None:
    """The same."""
    with pytest.raises(ConfigError, match="HEADRACE_HTTP_HOST"):
        Health(host, 0, {}).open()


def test_the_variables_are_read() -> None:
    """Loopback and any free port, unless said otherwise."""
    assert (load(ENV).http.host, load(ENV).http.metrics_port) == ("127.0.0.1", 0)
    given = load(ENV | {"HEADRACE_HTTP_HOST": "0.0.0.0", "HEADRACE_METRICS_PORT": "9400"})
    assert (given.http.host, given.http.metrics_port) == ("0.0.0.0", 9400)


@pytest.mark.parametrize("port", ["-1", "65536", "http", "9400 "])
def test_a_port_that_is_none_is_named(port: str) -> None:
    """By the variable; blanks around a number are taken."""
    env = ENV | {"HEADRACE_METRICS_PORT": port}
    if port.strip().isdigit() and int(port) < 65_536:
        assert load(env).http.metrics_port == int(port)
        return
    with pytest.raises(ConfigError, match="HEADRACE_METRICS_PORT"):
        load(env)


def test_alive_while_nothing_is_stalled() -> None:
    """Nor hangs."""
    assert probes(report()).live() == (True, {"status": "ok"})


def test_a_stalled_partition_is_named() -> None:
    """Lane, topic, partition, for how long, what holds it, and what helps."""
    stalled = Judged("main", SAMPLE, quiet_since=0.0, moved_at=0.0, stalled=Held("offset 10 has been called for 61 s", "restart"))
    well, body = probes(report(partitions={stalled.key: stalled})).live()
    assert not well
    assert body["stalled"] == [
        {
            "lane": "main",
            "topic": "main",
            "partition": 3,
            "for_s": 101,
            "held_by": "offset 10 has been called for 61 s",
            "remedy": "restart",
        }
    ]


def test_a_hung_thread_is_named() -> None:
    """The event loop is one of them."""
    well, body = probes(report(hung=((ThreadSample("event loop", 0.0, 20.0), 100.0),))).live()
    assert not well
    assert body["hung"] == [{"thread": "event loop", "still_s": 100}]


def test_a_watchdog_that_looks_no_more_is_not_alive() -> None:
    """An old report proves nothing."""
    assert probes(report(), now=100.0 + STALE_S).live().well
    well, body = probes(report(), now=101.0 + STALE_S).live()
    assert not well
    assert body["hung"][0]["thread"] == "watchdog"


@pytest.mark.parametrize(
    ("lanes", "fields", "waits_for"),
    [
        ({}, {}, "main has not joined its group yet"),
        ({"main": {"joined": False}}, {}, "main has not joined its group yet"),
        ({"main": {"store_away": True, "pauses": ("Redis is out of reach",)}}, {}, "main: Redis is out of reach"),
        ({"main": {}}, {"stopping": True}, "the worker stops"),
        ({"main": {}}, {}, None),
        ({"main": {"pauses": ("every target is shut",)}}, {}, None),
    ],
)
def test_ready_once_all_is_joined_and_redis_is_there(
    lanes: Mapping[str, Mapping[str, Any]], fields: Mapping[str, Any], waits_for: str | None
) -> None:
    """And not while stopping. A provider that is out is no reason to take the worker away."""
    found = probes(report(lanes={name: LaneSample(name, (), **given) for name, given in lanes.items()}))
    found.stopping = fields.get("stopping", False)
    well, body = found.ready()
    assert well == (waits_for is None)
    assert body.get("for") == (None if waits_for is None else [waits_for])


def test_every_lane_has_to_be_ready() -> None:
    """One that has not even been looked at is not."""
    well, body = probes(report(), "main", "retry").ready()
    assert not well
    assert body["for"] == ["retry has not joined its group yet"]


def test_the_whole_picture_holds_numbers_and_reasons() -> None:
    """What the watchdog looks at, of each partition; and it is plain JSON."""
    paused = Judged("main", SAMPLE, quiet_since=100.0, moved_at=50.0, paused=Paused("every target is shut", 60.0))
    well, body = probes(report(partitions={paused.key: paused})).status()
    assert well
    told = json.loads(json.dumps(body))["lanes"]["main"]
    assert (told["busy"], told["callers"], told["settled_s_ago"]) == (1, 4, 11.0)
    (one,) = told["partitions"]
    assert one["lag"] == 2 + 5
    assert (one["frontier"], one["frontier_age_s"], one["window"], one["map_chars"]) == (10, 51.0, 5, 41)
    assert one["oldest_call"] == {"offset": 10, "for_s": 61.0}
    assert one["paused"] == {"why": "every target is shut", "for_s": 41.0}


def test_a_page_is_served_as_it_is_asked_for() -> None:
    """Beside the probes a page has its own bytes, type and status, and hears what the client accepts."""
    asked: list[str] = []

    def page(accept: str) -> Page:
        asked.append(accept)
        return Page(HTTPStatus.OK if accept else HTTPStatus.INTERNAL_SERVER_ERROR, "text/x", b"body")

    health = Health("127.0.0.1", 0, {"/livez": lambda: Answer(well=True, body={})}, {"/metrics": page})
    address = health.open()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{address}/metrics?x=1", headers={"Accept": "text/x"}), timeout=10) as answer:
            assert (answer.status, answer.headers["Content-Type"], answer.read()) == (200, "text/x", b"body")
        with pytest.raises(urllib.error.HTTPError) as failed:
            urllib.request.urlopen(urllib.request.Request(f"{address}/metrics"), timeout=10)
        with failed.value as error:
            assert error.code == 500
        assert get(address, "/") == (404, {"paths": ["/livez", "/metrics"]})
    finally:
        health.close()
    assert asked == ["text/x", ""]

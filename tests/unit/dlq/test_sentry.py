"""The Sentry sink against a local server that plays the envelope endpoint: what is sent, and what a failure becomes."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
import sentry_sdk
from aiohttp import web
from pydantic import SecretStr

from headrace.dlq.alert import SinkBusy, SinkRefused, alert_of
from headrace.dlq.alerts import Alerts
from headrace.dlq.console import Console
from headrace.dlq.outlet import Pace
from headrace.dlq.sentry import Sentry, SentryFailed
from headrace.errors import ConfigError

from .letters import API_KEY, CANARY, letter


class FakeSentry:
    """Answers as it is told to; `got` holds what was sent, unpacked."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.auth: list[str] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.hold: asyncio.Event | None = None
        self.arrived = asyncio.Event()
        self.port = 0

    @property
    def dsn(self) -> SecretStr:
        return SecretStr(f"http://public@127.0.0.1:{self.port}/42")

    def event(self, index: int = -1) -> dict[str, Any]:
        parsed: dict[str, Any] = orjson.loads(self.got[index].split(b"\n")[2])
        return parsed

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.got.append(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        self.auth.append(request.headers["X-Sentry-Auth"])
        self.arrived.set()
        if self.hold is not None:
            await self.hold.wait()
        status, headers = self.answers.pop(0) if self.answers else (200, {})
        return web.json_response({"id": "1"}, status=status, headers=headers)


@pytest.fixture
async def server() -> AsyncIterator[FakeSentry]:
    fake = FakeSentry()
    app = web.Application()
    app.router.add_post("/api/42/envelope/", fake.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.port = runner.addresses[0][1]
    yield fake
    if fake.hold is not None:
        fake.hold.set()
    await runner.cleanup()


async def test_event_groups_by_cause(server: FakeSentry) -> None:
    """An accepted event has the cause as fingerprint and low-cardinality tags; the id stands in the extras only."""
    await Sentry(server.dsn).send(alert_of(letter(offset=7), "headrace"))
    event = server.event()
    assert event["fingerprint"] == ["headrace", "timeout", "openai", "gpt-4o-mini"]
    assert event["tags"] == {
        "error_class": "timeout",
        "provider": "openai",
        "model": "gpt-4o-mini",
        "topic": "llm_requests_dlq",
        "pipeline": "headrace",
    }
    assert event["extra"]["request_id"] == "r-1"
    assert (event["extra"]["attempts"], event["extra"]["count"]) == (3, 1)
    assert event["extra"]["origin"] == "llm_requests_main/0/7"
    assert event["message"] == "dead letter: timeout at openai, gpt-4o-mini"
    assert "sentry_key=public" in server.auth[0]


async def test_nothing_else_leaves(server: FakeSentry) -> None:
    """Neither prompt nor key, host name, stack, modules or request is in the bytes sent, wherever a hostile producer put them."""
    hostile = letter(headers=dict.fromkeys(("model", "provider", "error_code", "error_message"), f"{CANARY} {API_KEY}"), agent_id=CANARY)
    await Sentry(server.dsn).send(alert_of(hostile, "headrace"))
    assert b"CANARY" not in server.got[0]
    allowed = {"event_id", "timestamp", "level", "logger", "platform", "release", "environment", "fingerprint", "tags", "extra", "message"}
    # The SDK adds these two itself: its own version, and the empty list of breadcrumbs.
    assert set(server.event()) - {"sdk", "contexts", "breadcrumbs", "_meta"} <= allowed
    assert server.event().get("breadcrumbs", {}).get("values", []) == []


async def test_scrub_is_the_last_line(server: FakeSentry) -> None:
    """Even an alert made past the checks does not carry a prompt or a key out."""
    sneaky = replace(alert_of(letter(), "headrace"), model=f"say {API_KEY}", code=f"'{CANARY}' {API_KEY}", origin=f"'{CANARY}'")
    await Sentry(server.dsn).send(sneaky)
    text = orjson.dumps({name: part for name, part in server.event().items() if name != "fingerprint"})
    assert b"CANARY" not in text


async def test_global_sdk_is_left_alone(server: FakeSentry) -> None:
    """An application's own client stays in place and hears nothing; its tags and breadcrumbs do not get into our events."""
    heard: list[Any] = []
    sentry_sdk.init(dsn="http://app@127.0.0.1:1/1", default_integrations=False, before_send=lambda event, _: heard.append(event))
    client = sentry_sdk.get_client()
    try:
        sentry_sdk.set_tag("app", CANARY)
        sentry_sdk.add_breadcrumb(message=CANARY)
        await Sentry(server.dsn).send(alert_of(letter(), "headrace"))
        assert sentry_sdk.get_client() is client
        assert heard == []
        assert b"CANARY" not in server.got[0]
    finally:
        client.close()
        sentry_sdk.get_global_scope().set_client(None)
        sentry_sdk.get_isolation_scope().clear()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((500, {}), SentryFailed),
        ((403, {}), SentryFailed),
        ((302, {"Location": "http://127.0.0.1:1/"}), SentryFailed),
        ((400, {}), SinkRefused),
        ((413, {}), SinkRefused),
    ],
)
async def test_a_failure_is_raised(server: FakeSentry, answer: tuple[int, dict[str, str]], error: type[Exception]) -> None:
    """Whatever is not an acceptance is raised, so that it is counted; a redirect is not followed."""
    server.answers = [answer]
    with pytest.raises(error):
        await Sentry(server.dsn).send(alert_of(letter(), "headrace"))


@pytest.mark.parametrize(
    ("header", "seconds"), [({"Retry-After": "7"}, 7.0), ({}, 60.0), ({"Retry-After": "soon"}, 60.0), ({"Retry-After": "99999"}, 3600.0)]
)
async def test_busy_says_how_long(server: FakeSentry, header: dict[str, str], seconds: float) -> None:
    """429 is a pause of what Retry-After asks for, bounded, and a minute where it says nothing readable."""
    server.answers = [(429, header)]
    with pytest.raises(SinkBusy) as busy:
        await Sentry(server.dsn).send(alert_of(letter(), "headrace"))
    assert busy.value.retry_after_s == seconds


async def test_a_slow_server_is_a_failure_not_a_wait(server: FakeSentry) -> None:
    """A server that does not answer within the time-out is a failure; meanwhile the loop runs on."""
    server.hold = asyncio.Event()
    sending = asyncio.create_task(Sentry(server.dsn, timeout_s=0.3).send(alert_of(letter(), "headrace")))
    await asyncio.wait_for(server.arrived.wait(), 5)
    with pytest.raises(SentryFailed):
        await asyncio.wait_for(sending, 5)


async def test_an_unreachable_server_is_a_failure_without_its_address() -> None:
    """The error text holds neither the DSN's key nor the address."""
    with pytest.raises(SentryFailed) as failed:
        await Sentry(SecretStr("http://public@127.0.0.1:1/42")).send(alert_of(letter(), "headrace"))
    assert "public" not in str(failed.value)
    assert "127.0.0.1" not in str(failed.value)


async def test_alerts_come_through_a_failing_sentry(server: FakeSentry) -> None:
    """After a 500 and a 429 the event arrives, once, and the dead letters that came meanwhile are counted in the next."""
    server.answers = [(500, {}), (429, {"Retry-After": "0"})]
    told: list[str] = []
    pace = Pace(window_s=0.0, per_s=1000.0, backoff_s=0.001)
    alerts = Alerts(Console(), [Sentry(server.dsn)], pipeline="headrace", tell=lambda name, _: told.append(name), pace=pace)
    alerts.start()
    for n in range(100):
        alerts.note(letter(offset=n))
    await alerts.close(10.0)
    assert told == ["alert_failed", "alert_failed", "alert_sent"]
    assert server.event()["extra"]["count"] == 100
    assert server.event()["message"].startswith("100 dead letters: timeout")


def test_a_bad_dsn_is_a_configuration_fault() -> None:
    """A DSN that is none is refused before anything starts, without repeating it."""
    with pytest.raises(ConfigError) as fault:
        Sentry(SecretStr("https://secret-key-without-host"))
    assert "secret" not in str(fault.value)

"""What a worker's /metrics says: every metric that is documented and no other, labels from closed sets, nothing of a request."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import orjson

from headrace.config import Settings
from headrace.instrument.events import LEVELS
from headrace.llm.standing import address_of
from headrace.local.stub import Action, Match, Rule
from headrace.metrics import definitions
from headrace.metrics import labels as sets
from headrace.metrics.metric import Metric
from headrace.metrics.standard import PROCESS
from tests.support.bench import Bench
from tests.support.engine import Engine
from tests.support.metrics import Page
from tests.support.stub import PatientStub

pytest_plugins = ["tests.support.fixtures"]

BAIT = "bait4f1c"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
RULES = (
    Rule(name="refused", match=Match(prompt_contains="refused"), action=Action(signal="invalid_request")),
    Rule(name="shaky", match=Match(prompt_contains="shaky", first=1), action=Action(signal="server_error")),
)
LANES = ("main", "retry", "dlq")


def allowed(settings: Settings) -> dict[str, frozenset[str]]:
    """What each label may say."""
    known = sets.LabelSets(settings)
    others = frozenset({"other", "none"})
    return {
        "lane": frozenset({*LANES, "wheels"}),
        "topic": frozenset(known.topics),
        "outcome": frozenset(sets.OUTCOMES),
        "class": frozenset(sets.CLASSES) | others,
        "of": frozenset(sets.DUPLICATE_OF),
        "reason": frozenset({*sets.PAUSES.values(), *sets.DEFERRALS.values(), *sets.LOSSES.values(), *sets.EXTRA, *sets.OUT}) | others,
        "provider": frozenset(known.providers) | others,
        "model": frozenset(known.models) | others,
        "endpoint": frozenset(address_of(server.base_url) for provider in settings.providers for server in provider.servers()),
        "state": frozenset(sets.HEALTH.values()),
        "kind": frozenset(sets.TOKENS),
        "end": frozenset({*sets.ENDS, *sets.TOLD.values()}),
        "to": frozenset(sets.MOVED_TO),
        "sink": frozenset(sets.SINKS) | others,
        "event": frozenset(LEVELS),
        "lanes": frozenset({",".join(LANES)}),
    }


def hostile(bench: Bench, number: int) -> None:
    """Names in every field of a request that a caller fills in, and in its headers."""
    body = {"model": f"{BAIT}-{number}", "messages": [{"role": "user", "content": f"{BAIT} {('hello', 'refused', 'shaky')[number % 3]}"}]}
    request = {
        "request_id": f"{BAIT}-{number}", "body": body, "agent_id": f"{BAIT}-{number}", "channel": f"{BAIT}-{number}",
        "metadata": {f"{BAIT}-{number}": BAIT}, "priority": "low",
    }  # fmt: skip
    names = ("provider", "model", "error_class", "error_code", "attempts", "origin", "status", BAIT)
    headers = [(f"headrace_{name}", f"{BAIT}-{number}".encode()) for name in names] + [("traceparent", TRACE.encode())]
    bench.send(orjson.dumps(request), key=f"{BAIT}-{number}".encode(), headers=headers)


async def test_the_page_is_what_is_documented(bench: Bench, stub: PatientStub) -> None:
    """A live worker of all lanes, after requests that hold bait wherever a caller may write: no metric more or less, no label beyond its set."""
    stub.set_rules(RULES)
    settings = bench.settings(stub.base_url)
    async with Engine(settings, *LANES) as engine:
        for number in range(30):
            hostile(bench, number)
        for value in (b"\xff\xfe" + BAIT.encode(), None, orjson.dumps({"request_id": BAIT * 40})):
            bench.send(value, key=BAIT.encode())
        bench.flush()
        await bench.finished(f"{BAIT}-{number}" for number in range(30))
        await bench.until_drained(LANES)
        page = await Page.until(engine, lambda page: (page.value("headrace_dead_letters_open") or 0) >= 13, "13 open dead letters")
        text = await Page.until(engine, lambda page: page.value("headrace_calls_in_flight") == 0, "rest", accept="text/plain")
    assert BAIT not in page.text
    assert len(page.text) < 400_000, "20 partitions: a scrape stays small"
    assert {sample.name for sample in page.samples()} == {name for metric in documented() for name in metric.series}
    assert {sample.name for sample in text.samples()} == {sample.name for sample in page.samples()}
    sets_by_label = allowed(settings)
    for sample in page.samples():
        for label, value in sample.labels.items():
            if label in ("partition", "version", "python", "le"):
                assert re.fullmatch(r"[0-9.e+Inf]+", value), f"{sample.name}: {label}={value}"
            else:
                assert value in sets_by_label[label], f"{sample.name}: {label}={value}"
    assert objections(text.text) == ""
    assert page.content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.content_type.startswith("text/plain; version=0.0.4")


def objections(text: str) -> str:
    """What promtool has to say of names, units and help; where it is installed."""
    if shutil.which("promtool") is None:
        return ""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def documented() -> tuple[Metric, ...]:
    """All of them; those of the process only where there is a /proc."""
    return (*definitions.OURS, *(PROCESS if Path("/proc/self/stat").exists() else ()))


async def test_the_numbers_are_those_of_what_happened(bench: Bench, stub: PatientStub) -> None:
    """Received, settled by outcome, retried, dead, told twice, called, paid for: each is counted where it belongs, once."""
    stub.set_rules(RULES)
    async with Engine(bench.settings(stub.base_url), *LANES) as engine:
        bench.ask("well-1", "well-2", "well-2")
        bench.ask("bad-1", prompt="refused")
        bench.ask("again-1", prompt="shaky")
        await bench.finished(["well-1", "well-2", "bad-1", "again-1"])
        await bench.until_drained(LANES)
        page = await Page.until(engine, lambda page: page.value("headrace_dead_letters_open") == 1, "1 open dead letter")
    settled = "headrace_records_settled_total"
    assert page.value("headrace_records_received_total", lane="main") == 5
    assert page.value(settled, lane="main", outcome="completed") == 2
    assert page.value(settled, lane="main", outcome="duplicate") == 1
    assert page.value(settled, lane="main", outcome="dead", class_="invalid_request") == 1
    assert page.value(settled, lane="main", outcome="retry", class_="server_error") == 1
    assert page.value(settled, lane="retry", outcome="completed") == 1
    assert page.value(settled, lane="dlq", outcome="noted") == 1
    assert page.value(settled, lane="main") == 5
    assert page.value("headrace_records_duplicate_total", lane="main") == 1
    assert page.value("headrace_call_latency_seconds_count", provider="stub", class_="none") == 3
    assert page.value("headrace_call_latency_seconds_count", provider="stub", class_="server_error") == 1
    assert page.value("headrace_retry_lateness_seconds_count", lane="retry") == 1
    assert (page.value("headrace_tokens_total", provider="stub", kind="completion") or 0) > 0
    assert page.value("headrace_dead_letters_open", class_="invalid_request") == 1
    assert page.value("headrace_events_total", event="settled") == page.value("headrace_transactions_total", end="committed")
    assert page.value("headrace_partition_stalled") == 0


async def test_a_spent_quota_is_shown_with_its_class_code_and_end(bench: Bench, stub: PatientStub) -> None:
    """On the page by class, in `/status` with the provider's code and the time left; the endpoint is not to blame, and stays in."""
    stub.set_rules((Rule(name="quota", match=Match(), action=Action(signal="insufficient_quota")),))
    async with Engine(bench.settings(stub.base_url, pause={"first_s": 600, "cap_s": 600}, limits={"concurrency": 1})) as engine:
        bench.ask("q-1")
        await engine.event("target_shut", timeout_s=60)
        paused = "headrace_provider_paused_scopes"
        page = await Page.until(engine, lambda page: page.value(paused, class_="quota_exhausted") == 1, "pause")
        status = await asyncio.to_thread(status_of, engine)
        await engine.stop()
    assert page.value(paused, class_="auth") == 0
    assert 0 < (page.value("headrace_provider_reopens_seconds", class_="quota_exhausted") or 0) <= 600
    assert page.value("headrace_endpoint_out") == 0
    (pause,) = status["pauses"]
    assert (pause["error_class"], pause["code"], pause["model"]) == ("quota_exhausted", "insufficient_quota", None)
    assert 0 < pause["left_s"] <= 600
    (endpoint,) = status["endpoints"]
    assert (endpoint["provider"], endpoint["out"], endpoint["healthy"]) == ("stub", None, None)


def status_of(engine: Engine) -> dict[str, Any]:
    """`/status`. Blocking."""
    address = engine.named("health_listening")[0]["address"]
    with urllib.request.urlopen(f"{address}/status", timeout=20) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


async def test_a_dead_letter_is_open_until_it_is_answered(bench: Bench, stub: PatientStub) -> None:
    """Its id used again counts as well as a replay; a worker that starts later reads both topics and tells the same; until then it tells nothing."""
    settings = bench.settings(stub.base_url)
    async with Engine(settings, "main", "retry") as engine:
        for name in ("mended", "forgotten"):
            bench.ask(name, deadline_at="2001-01-01T00:00:00Z")
        await bench.finished(["mended", "forgotten"])
        async with Engine(bench.settings(stub.base_url, instance="first"), "dlq") as first:
            before = await Page.until(first, lambda page: page.value("headrace_dead_letters_open", class_="expired") == 2, "2 open")
            bench.ask("mended")
            await bench.until("results", lambda seen: len(seen) >= 3)
            after = await Page.until(first, lambda page: page.value("headrace_dead_letters_open") == 1, "1 open")
            async with Engine(bench.settings(stub.base_url, instance="second"), "dlq") as second:
                late = await Page.until(second, lambda page: page.value("headrace_dead_letters_followed_ratio") == 1, "caught up")
        assert engine.named("letters_unfollowed") == []
    assert late.value("headrace_dead_letters_open") == 1
    assert (
        0
        < (before.value("headrace_dead_letters_oldest_open_age_seconds") or 0)
        <= (after.value("headrace_dead_letters_oldest_open_age_seconds") or 0)
        < 600
    )
    assert late.value("headrace_redis_reachable") is None, "the dead-letter lane needs no Redis"

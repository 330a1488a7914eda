"""The auditor on a real broker: silent where every promise was kept, also beside a busy worker, and loud where one is broken by hand."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from headrace.audit import Rule, audit
from headrace.cli import build
from headrace.config import Settings
from headrace.dlq.letter import read_letter
from headrace.dlq.replay import Terms, new_replay_id, replayed
from headrace.envelope import Record
from headrace.local.stub import Latency, StubLLM
from headrace.local.stub import Rule as StubRule
from headrace.log import scan
from headrace.store import Store
from tests.support import raw
from tests.support.audited import audited
from tests.support.bench import Bench
from tests.support.engine import Engine
from tests.support.history import History

pytest_plugins = ["tests.support.fixtures"]

IDS = [f"r{number}" for number in range(60)]
DEAD = IDS[1::10]
RETRIED = IDS[::4]


def rules() -> list[StubRule]:
    """A mix: ids that fail twice and pass, ids that are refused."""
    retried = {"name": "twice", "match": {"request_ids": RETRIED, "first": 2}, "action": "server_error"}
    dead = {"name": "never", "match": {"request_ids": DEAD}, "action": "invalid_request"}
    return [StubRule.model_validate(rule) for rule in (retried, dead)]


def send_all(bench: Bench, history: History) -> None:
    """Every id once, ten twice, one with another content, and five records that are no request."""
    bench.ask(*IDS)
    bench.ask(*IDS[:10])
    bench.ask("r3", prompt="another")
    for value in (b"\xff\x00", None, b"[1]", orjson.dumps({"request_id": "bad", "prompt": 7})):
        bench.send(value, key=b"k", headers=[("mine", b"\xff"), ("mine", None)])
    bench.flush()
    raw.produce(bench.kafka, bench.names.main, 1, value=b"{", header=(b"\xff", b"a name that is no text"))
    for request_id in IDS:
        history.produced(request_id)


async def replay(bench: Bench, settings: Settings, *request_ids: str) -> None:
    """Send their dead letters back, as `headrace dlq replay` does."""
    terms = Terms(bench.names.main, new_replay_id(int(time.time() * 1000)))
    store = Store(bench.redis_url, bench.namespace)
    await store.open()
    await store.register_replay(terms.replay_id, 3_600_000)
    await store.close()
    for record in await asyncio.to_thread(list, scan(settings, bench.names.dlq)):
        letter = read_letter(record)
        if letter.request_id in request_ids:
            sent = replayed(letter, terms, int(time.time() * 1000))
            bench.send(sent.value, key=sent.key, headers=list(sent.headers))
    bench.flush()


class Desk:
    """`headrace audit` over a bench, in this process."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace.cli.audit.load", lambda: settings)

    async def run(self, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        """Exit code and NDJSON."""
        code, text = await self.show("--json", *arguments)
        return code, [orjson.loads(line) for line in text.splitlines()]

    async def show(self, *arguments: str) -> tuple[int, str]:
        """Exit code and what is on stdout."""
        done = await asyncio.to_thread(CliRunner().invoke, build("audit"), ["audit", *arguments])
        return done.exit_code, done.stdout

    async def broken(self) -> set[str]:
        """The rules that it says are broken."""
        code, lines = await self.run()
        assert code == (7 if lines[-1]["broken"] else 0)
        return set(lines[-1]["broken"])


async def test_a_mix_is_sound_until_it_is_broken_by_hand(
    bench: Bench, stub: StubLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Completed, retried, moved by wheels, dead, replayed, copied, undecodable: exit 0, every id at its end; then three forgeries, each named."""
    stub.set_rules(rules())
    history, settings = History(), bench.settings(stub.base_url)
    send_all(bench, history)
    async with Engine(settings) as engine:
        far = orjson.dumps({"request_id": "far", "prompt": "x", "next_retry_at": time.time() + 6})
        bench.send(far, key=b"far", role="retry")
        bench.flush()
        await bench.finished([*IDS, "far"])
        stub.heal()
        await replay(bench, settings, *DEAD[:3])
        await bench.until(
            "results", lambda seen: {m.key() for m in seen if b'"completed"' in (m.value() or b"")} >= {i.encode() for i in DEAD[:3]}
        )
        await bench.until_drained()
        verdict = await audited(bench, stub, history)
        await engine.stop()
    assert (verdict.extra_calls, verdict.bound, verdict.open, verdict.unjudged) == (0, 0, 0, {})
    assert verdict.states == {"completed": 58, "failed": 8}
    desk = Desk(settings, monkeypatch)
    calls = tmp_path / "calls.ndjson"
    calls.write_bytes(b"".join(entry.line() for entry in stub.log))
    code, lines = await desk.run("--calls", str(calls))
    assert (code, lines[-1]["ok"], lines[-1]["calls"]) == (0, True, stub.total_calls)
    assert {line["request_id"] for line in lines if line["kind"] == "id" and line["state"] == "completed"} >= {*RETRIED, "far", *DEAD[:3]}
    await _forge(bench, settings, desk)


async def _forge(bench: Bench, settings: Settings, desk: Desk) -> None:
    """A second answer, a result nobody asked for, a dead letter with other bytes: written by hand, and named."""

    def again(record: Record, role: str, value: bytes | None = None) -> None:
        bench.send(value or record.value, key=record.key, headers=list(record.headers), role=role)
        bench.flush()

    results = await asyncio.to_thread(list, scan(settings, bench.names.results))
    letters = await asyncio.to_thread(list, scan(settings, bench.names.dlq))
    bench.send(
        b'{"request_id":"stranger","status":"completed"}', key=b"stranger", headers=[("headrace_status", b"completed")], role="results"
    )
    bench.flush()
    assert await desk.broken() == {Rule.NEVER_SENT}
    again(next(record for record in results if record.key == b"r5"), "results")
    assert await desk.broken() == {Rule.NEVER_SENT, Rule.ONE_COMPLETED, Rule.EXACTLY_ONE}
    letter = next(record for record in letters if record.value and b"r51" in record.value)
    again(letter, "dlq", (letter.value or b"").replace(b"hello", b"other"))
    assert Rule.UNALTERED in await desk.broken()
    code, text = await desk.show()
    assert code == 7
    assert all(part in text for part in ("completed", "failed", "Broken", "one_completed: r5"))
    code, text = await desk.show("--only", "broken")
    assert "r51" in text
    assert "r4" not in text.split("exactly_one")[0]


async def test_no_false_alarm_beside_a_busy_worker(bench: Bench, stub: StubLLM) -> None:
    """Audits while two thousand requests pass, with retries and deaths among them: open ones at their places, nothing broken, whenever it begins."""
    failing = {"name": "some", "match": {"first": 1, "share": 0.3}, "action": "server_error"}
    dying = {"name": "few", "match": {"share": 0.1}, "action": "invalid_request"}
    slow = {"name": "slow", "action": {"latency": Latency(fixed_ms=15).model_dump()}}
    stub.set_rules([StubRule.model_validate(rule) for rule in (failing, dying, slow)])
    settings = bench.settings(stub.base_url, limits={"concurrency": 32})
    ids = [f"b{number}" for number in range(2_000)]
    places: set[str] = set()
    async with Engine(settings) as engine:
        feeding = asyncio.create_task(_feed(bench, ids))
        audits = 0
        while not feeding.done() or audits < 3:
            verdict = await asyncio.to_thread(audit, settings)
            assert verdict.violations == ()
            places |= set(verdict.open_at)
            audits += 1
        await feeding
        await bench.finished(ids, timeout_s=60)
        await bench.until_drained()
        verdict = await audited(bench, stub, History())
        await engine.stop()
    assert places, "no audit met a busy worker"
    assert verdict.open == 0
    assert verdict.extra_calls == 0


async def _feed(bench: Bench, ids: list[str]) -> None:
    """In portions, with a copy in each."""
    for start in range(0, len(ids), 100):
        portion = ids[start : start + 100]
        await asyncio.to_thread(bench.ask, *portion, portion[0])
        await asyncio.sleep(0.1)


async def test_empty_topics_are_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 3, as for every command that finds nothing."""
    code, lines = await Desk(bench.settings("http://127.0.0.1:1/v1"), monkeypatch).run()
    assert (code, lines) == (3, [])

"""Progress, watched: a lane made to stall fails its liveness within the bound and names what stands; one that waits for a reason does not."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from headrace import oversight, source, topics
from headrace.build import built
from headrace.config import Settings
from headrace.ending import cancelled
from headrace.errors import ConfigError, Exit
from headrace.local.stub import Rule, StubLLM
from headrace.process import _Process
from headrace.source import Source
from headrace.topics.drift import fit
from headrace.watch import judgement
from tests.support import stalling
from tests.support.bench import Bench
from tests.support.engine import Engine
from tests.support.servers import own_redis
from tests.support.worker import Worker

pytest_plugins = ["tests.support.fixtures"]

CALL_S = 1.0
TRANSACTION_MS = 2_000
BOUND_S = CALL_S + 2 * TRANSACTION_MS / 1000
SLACK_S = 5.0  # for a slow machine, where nothing may be taken for a stall


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shorten what a takeover may take, which these tests have none of: the bound is then BOUND_S."""
    monkeypatch.setattr(oversight, "TAKEOVER_S", 0.0)
    monkeypatch.setattr(judgement, "MARGIN_S", 2.0)
    stalling.let_go.clear()
    yield
    stalling.let_go.set()


@pytest.fixture
def slack(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that a slow machine does not reach by itself."""
    monkeypatch.setattr(oversight, "TAKEOVER_S", SLACK_S)


def settings_of(bench: Bench, stub: StubLLM, **changes: Any) -> Settings:
    values: dict[str, Any] = {"timeout_s": CALL_S, "kafka_settings": {"transaction_timeout_ms": TRANSACTION_MS}, "grace_s": 1.0}
    return bench.settings(stub.base_url, **(values | changes))


class Probe:
    """Asks a worker's probes."""

    def __init__(self, engine: Engine | Worker) -> None:
        self._engine = engine

    def ask(self, path: str = "/livez") -> tuple[int, dict[str, Any]]:
        """Ask once. Blocking."""
        address = self._engine.named("health_listening")[0]["address"]
        try:
            with urllib.request.urlopen(f"{address}{path}", timeout=20) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    async def until(self, path: str, status: int, part: str | None = None, timeout_s: float = 40) -> dict[str, Any]:
        """The answer, once it has this status, and something to say in this part of it."""
        deadline = time.monotonic() + timeout_s
        while True:
            found, body = await asyncio.to_thread(self.ask, path)
            if found == status and (part is None or body.get(part)):
                return body
            assert time.monotonic() < deadline, f"{path} is {found} after {timeout_s} s: {body}"
            await asyncio.sleep(0.2)

    async def until_busy(self) -> None:
        """Until a call is under way."""
        while not (await asyncio.to_thread(self.ask, "/status"))[1]["lanes"].get("main", {}).get("busy"):  # noqa: ASYNC110  of another process
            await asyncio.sleep(0.2)

    async def stays(self, seconds: float, path: str = "/livez", status: int = 200) -> None:
        """The status does not change for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found, body = await asyncio.to_thread(self.ask, path)
            assert found == status, body
            await asyncio.sleep(0.2)


def paused(body: dict[str, Any], lane: str) -> set[str | None]:
    """Why the partitions of a lane wait that have something to do."""
    found = [one for one in body["lanes"][lane]["partitions"] if one["lag"]]
    return {one["paused"] and one["paused"]["why"] for one in found}


async def test_a_call_that_never_returns_fails_liveness_and_is_named(bench: Bench, stub: StubLLM) -> None:
    """A handler swallows its deadline: 503 with topic, partition and offset, told once; SIGTERM ends the worker all the same, and says what it left."""
    settings = settings_of(bench, stub, handler="tests.support.stalling:clings", handler_timeout_s=CALL_S)
    async with Engine(settings, "main") as engine:
        probe = Probe(engine)
        bench.ask("fine", partition=1)
        bench.ask("stuck", partition=1)
        await bench.finished(["fine"])
        body = await probe.until("/livez", 503, "stalled")
        (stalled,) = body["stalled"]
        assert (stalled["lane"], stalled["topic"], stalled["partition"]) == ("main", bench.names.main, 1)
        assert "offset 1 has been called for" in stalled["held_by"]
        assert stalled["for_s"] >= BOUND_S
        assert (await engine.event("stalled"))["partition"] == 1
        assert (await engine.event("call_overdue", timeout_s=40))["offset"] == 1
        assert len(engine.named("stalled")) == 1
        assert await engine.stop() is Exit.DONE
        stalling.let_go.set()
        await cancelled([task for task in asyncio.all_tasks() if "call" in task.get_name()], 20)
    assert any("call" in name for name in engine.named("cancel_ignored")[0]["tasks"])


async def test_a_worker_whose_handler_ignores_everything_ends_by_itself(bench: Bench, stub: StubLLM) -> None:
    """SIGTERM to a real process with a call that ignores cancellation: it leaves within its bounds, by itself, and the partition is free."""
    settings = settings_of(bench, stub, handler="tests.support.stalling:clings", handler_timeout_s=CALL_S)
    bench.ask("stuck", partition=0)
    with Worker(settings, "main") as worker:
        await worker.event("reading", timeout_s=40)
        await Probe(worker).until_busy()
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code(60) == 0
        assert worker.named("cancel_ignored")
        assert worker.named("stopped")[0]["cut_off"]


async def test_outcomes_the_broker_refuses_fail_liveness_until_it_takes_them(bench: Bench, stub: StubLLM) -> None:
    """The results topic is gone: nothing can be settled, the partition is named, and so is what waits; with the topic it goes on by itself."""
    async with Engine(settings_of(bench, stub), "main") as engine:
        probe = Probe(engine)
        bench.ask("before", partition=0)
        await bench.finished(["before"])
        bench.delete(bench.names.results)
        bench.ask("waits", partition=0)
        body = await probe.until("/livez", 503, "stalled")
        assert [(one["topic"], one["partition"]) for one in body["stalled"]] == [(bench.names.main, 0)]
        assert body["stalled"][0]["held_by"] == "1 outcomes wait for a settle"
        bench.create(replace(fit(topics.wanted(settings_of(bench, stub)), 1, None)["results"], partitions=1))
        await probe.until("/livez", 200)
        assert (await engine.event("progressing"))["partition"] == 0
        await bench.until_drained(["main"], timeout_s=40)
        await engine.stop()


async def test_a_source_thread_that_hangs_fails_liveness(bench: Bench, stub: StubLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes round no more, whatever there is to do: the thread is named, with where it stands, and again when it turns."""
    monkeypatch.setattr(source, "SLOW_S", 0.0)
    hangs, goes_on = threading.Event(), threading.Event()
    apply_pauses = cast("Callable[[Source], None]", Source._apply_pauses)

    def stuck(self: Source) -> None:
        if hangs.is_set():
            goes_on.wait(60)
        apply_pauses(self)

    monkeypatch.setattr(Source, "_apply_pauses", stuck)
    kafka = {"transaction_timeout_ms": TRANSACTION_MS, "max_poll_interval_ms": 10_000}
    async with Engine(settings_of(bench, stub, kafka_settings=kafka), "main") as engine:
        probe = Probe(engine)
        await engine.event("reading")
        hangs.set()
        body = await probe.until("/livez", 503, "hung")
        goes_on.set()
        assert [one["thread"] for one in body["hung"]] == [f"{bench.namespace}.main-source"]
        assert "stuck" in (await engine.event("thread_hung"))["at"]
        await engine.event("thread_turns")
        await probe.until("/livez", 200)
        await engine.stop()


async def test_a_blocked_event_loop_fails_liveness(bench: Bench, stub: StubLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that blocks: the probe is answered all the same, by its own thread, and says that it is the loop."""
    monkeypatch.setattr(oversight, "LOOP_PATIENCE_S", 1.0)
    settings = settings_of(bench, stub, handler="tests.support.stalling:blocks", handler_timeout_s=CALL_S)
    async with Engine(settings, "main") as engine:
        await engine.event("reading")
        found: list[tuple[int, dict[str, Any]]] = []

        def watch() -> None:
            """Probe until it fails, then let the loop go: which this test stands on too."""
            until = time.monotonic() + 40
            while time.monotonic() < until and not any(status == 503 for status, _ in found):
                found.append(Probe(engine).ask())
                time.sleep(0.1)
            stalling.let_go.set()

        bench.ask("stuck")
        watching = threading.Thread(target=watch)
        watching.start()
        await bench.finished(["stuck"])
        watching.join(20)
        assert [one["thread"] for one in found[-1][1]["hung"]] == ["event loop"]
        assert "stalling.py" in engine.named("thread_hung")[0]["at"]
        await engine.stop()


@pytest.mark.usefixtures("slack")
async def test_every_target_shut_is_no_stall(bench: Bench, stub: StubLLM) -> None:
    """The key is refused: the lane waits beyond its bound with a backlog, alive, and says why; it goes on when the key is good."""
    stub.set_rules([Rule.model_validate({"name": "out", "action": "insufficient_quota"})])
    settings = settings_of(bench, stub, pause={"first_s": 15.0}, limits={"concurrency": 1})
    async with Engine(settings, "main", "retry") as engine:
        ids = [f"r{number}" for number in range(20)]
        bench.ask(*ids)
        await engine.event("target_shut")
        stub.set_rules([])
        await Probe(engine).stays(BOUND_S + SLACK_S + 1)
        assert paused((await asyncio.to_thread(Probe(engine).ask, "/status"))[1], "main") == {"every target is shut"}
        await bench.finished(ids, timeout_s=60)
        assert not engine.named("stalled")
        await engine.stop()


@pytest.mark.usefixtures("slack")
async def test_redis_away_is_no_stall_and_not_ready(kafka: str, namespace: str, stub: StubLLM, tmp_path: Path) -> None:
    """With `on_outage: pause` the lane waits beyond its bound, alive and not ready; and is ready again with Redis."""
    with own_redis(tmp_path) as redis:
        bench = Bench(kafka, redis.url, namespace)
        try:
            async with Engine(settings_of(bench, stub), "main") as engine:
                probe = Probe(engine)
                await probe.until("/readyz", 200)
                redis.freeze()
                bench.ask("waits")
                body = await probe.until("/readyz", 503)
                assert body["for"] == ["main: Redis is out of reach"]
                await probe.stays(BOUND_S + SLACK_S + 1)
                redis.thaw()
                await bench.finished(["waits"])
                await probe.until("/readyz", 200)
                assert not engine.named("stalled")
                await engine.stop()
        finally:
            bench.close()


@pytest.mark.usefixtures("slack")
async def test_what_is_not_due_and_what_waits_its_turn_is_no_stall(bench: Bench, stub: StubLLM) -> None:
    """A healthy fleet of one under load for longer than its bound, a retry far away, then idle: alive and ready all the time, nothing told."""
    stub.set_rules([Rule.model_validate({"name": "slow", "action": {"latency": {"uniform_ms": [300, 600]}}})])
    settings = settings_of(bench, stub, limits={"concurrency": 4})
    async with Engine(settings, "main", "retry", "dlq") as engine:
        probe = Probe(engine)
        await probe.until("/readyz", 200)
        bench.ask("far", next_retry_at=time.time() + 3_600)
        ids = [f"r{number}" for number in range(110)]
        bench.ask(*ids, partition=0)
        bench.ask("last", partition=1)
        await asyncio.gather(probe.stays(BOUND_S + SLACK_S + 1), probe.stays(BOUND_S + SLACK_S + 1, "/readyz"))
        await bench.finished([*ids, "last"], timeout_s=60)
        await probe.stays(2)
        body = (await asyncio.to_thread(probe.ask, "/status"))[1]
        assert set(body["lanes"]) == {"main", "retry", "dlq", "wheels"}
        assert all(one["lag"] == 0 for lane in body["lanes"].values() for one in lane["partitions"])
        assert not any(engine.named(name) for name in ("stalled", "thread_hung", "call_overdue", "window_full"))
        await engine.stop()


async def test_a_spare_worker_is_ready_and_a_stopping_one_is_not(bench: Bench, stub: StubLLM) -> None:
    """More workers than partitions: the one without any has joined all the same. Asked to stop, a worker says so while calls end."""
    stub.set_rules([Rule.model_validate({"name": "slow", "action": {"latency": {"uniform_ms": [4_000, 4_000]}}})])
    settings = settings_of(bench, stub, timeout_s=20.0, grace_s=20.0)
    async with Engine(settings, "dlq") as first, Engine(settings, "dlq") as second, Engine(settings, "main") as third:
        for engine in (first, second, third):
            await Probe(engine).until("/readyz", 200)
        assert len({one for engine in (first, second) for told in engine.named("assigned") for one in told["partitions"]}) == 1
        bench.ask("r")
        await stub.wait_calls(1)
        third.ask_to_stop()
        body = await Probe(third).until("/readyz", 503)
        assert body["for"] == ["the worker stops"]
        assert (await asyncio.to_thread(Probe(third).ask))[0] == 200
        for engine in (first, second, third):
            await engine.stop()


async def test_a_full_window_is_named_and_no_stall(bench: Bench, stub: StubLLM) -> None:
    """A slow head with its window full behind it: an event with the remedy; alive, since the head is within its time-out."""
    slow = {"name": "slow", "match": {"request_ids": ["head"]}, "action": {"latency": {"uniform_ms": [6_000, 6_000]}}}
    stub.set_rules([Rule.model_validate(slow)])
    settings = settings_of(bench, stub, timeout_s=30.0, limits={"window": 100})
    async with Engine(settings, "main") as engine:
        bench.ask("head", *[f"r{number}" for number in range(300)], partition=0)
        told = await engine.event("window_full")
        assert (told["head"], told["behind"], told["remedy"]) == (0, 100, "more partitions, or a shorter time-out")
        await Probe(engine).stays(1)
        await bench.finished(["head"], timeout_s=40)
        await engine.stop()


class Kept(Engine):
    """An engine whose main topic keeps records for so long."""

    kept_ms = 100_000

    async def _run(self) -> Exit:
        async with built(self.settings, self.lanes, tell=self._tell) as shared:
            kept = replace(shared, retention_ms={self.settings.topics.main: self.kept_ms})
            return await _Process(kept, self.lanes).run(self._stop, self._hurry)


async def test_a_record_near_its_retention_is_told(bench: Bench, stub: StubLLM) -> None:
    """Unsettled at 80 % of what the topic keeps: once, by topic and partition, with the remedy; a young one is not."""
    stub.set_rules([Rule.model_validate({"name": "slow", "action": {"latency": {"uniform_ms": [5_000, 5_000]}}})])
    async with Kept(settings_of(bench, stub, timeout_s=30.0), "main") as engine:
        now_ms = int(time.time() * 1000)
        for partition, age_ms in ((0, 1_000), (1, 85_000)):
            value = json.dumps({"request_id": f"r{partition}", "prompt": "x"}).encode()
            bench.producer.produce(bench.names.main, value, b"k", partition, timestamp=now_ms - age_ms)
        bench.flush()
        told = await engine.event("retention_near")
        assert (told["topic"], told["partition"], told["retention_s"]) == (bench.names.main, 1, 100)
        assert told["oldest_s"] >= 85
        await bench.finished(["r0", "r1"], timeout_s=40)
        assert len(engine.named("retention_near")) == 1
        await engine.stop()


async def test_a_port_that_is_taken_stops_the_start(bench: Bench, stub: StubLLM) -> None:
    """The variable and the remedy are named, and nothing was joined or read."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = settings_of(bench, stub, http={"host": "127.0.0.1", "metrics_port": taken.getsockname()[1]})
        engine = Engine(settings, "main")
        with pytest.raises(ConfigError, match="HEADRACE_METRICS_PORT"):
            await engine.start()
    assert not any(engine.named(name) for name in ("started", "group_protocol", "assigned"))

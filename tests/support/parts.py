"""Every part of Headrace that talks to the broker, each doing all its work once as a user of its own: what `rights.PARTS` is held to."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from headrace.config import Settings
from headrace.local.stub import Rule, StubLLM
from tests.support.bench import Bench
from tests.support.cli import environment, headrace
from tests.support.engine import Engine
from tests.support.secured import PASSWORD, SecuredKafka

LANES = ("main", "retry", "dlq")
COMMANDS: dict[str, tuple[str, ...]] = {
    "produce": ("produce", "-"),
    "replay": ("dlq", "replay", "--execute"),
    "audit": ("audit",),
    "status": ("status",),
    "apply": ("topics", "apply", "--execute", "--local"),  # last: it begins with the topics away
}
FAULTY = Rule.model_validate({"name": "faulty", "match": {"prompt_contains": "[busy]"}, "action": "server_error"})
PATIENCE_S = 50.0
FAR_S = 4.6  # beyond what the heap of the retry lane holds


def by_plain(user: str, **more: Any) -> dict[str, Any]:
    """What gets this user in at the listener SASL."""
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": PASSWORD, **more}


class Parts:
    """The parts on one bench, which is at the broker's open door."""

    def __init__(self, kafka: SecuredKafka, bench: Bench, stub: StubLLM, folder: Path) -> None:
        self._kafka, self._bench, self._stub, self._folder = kafka, bench, stub, folder
        self._count = 0

    def settings(self, user: str) -> Settings:
        """Of a worker that comes in as this user."""
        return self._bench.settings(
            self._stub.base_url, kafka=self._kafka.address("SASL"), kafka_settings={"config": by_plain(user)}, instance=f"of-{user}"
        )

    async def work(self, part: str, user: str, patience_s: float = PATIENCE_S) -> None:
        """All that this part does. Raises where it does not get through."""
        self._count += 1
        done: dict[str, Callable[[str, float], Awaitable[None]]] = {
            "main": self._main,
            "retry": self._retry,
            "dlq": self._dlq,
            "client": self._client,
            "apply": self._apply,
        }
        if part in {"replay", "status"}:
            self._letter()
        await (done[part](user, patience_s) if part in done else self._command(part, user, patience_s))

    async def _command(self, part: str, user: str, patience_s: float) -> None:
        given = b'{"request_id": "p%d", "prompt": "x"}\n' % self._count
        ended = await headrace(self._variables(user), *COMMANDS[part], given=given, timeout_s=patience_s)
        assert ended.returncode in {0, 3, 5, 7}, (ended.returncode, ended.stdout[-500:], ended.stderr[-900:])

    def _letter(self) -> None:
        """One that can be replayed."""
        value = json.dumps({"request_id": f"d{self._count}", "prompt": "x"}).encode()
        origin = f"{self._bench.names.main}/0/{self._count}".encode()
        self._bench.send(value, role="dlq", headers=[("headrace_error_class", b"timeout"), ("headrace_origin", origin)])
        self._bench.flush()

    async def _apply(self, user: str, patience_s: float) -> None:
        """The topics are created; and, found with fewer partitions and another retention, mended."""
        await asyncio.to_thread(self._bench.away)
        await self._command("apply", user, patience_s)
        await asyncio.to_thread(self._bench.away, retention_ms=9_000_000)
        await self._command("apply", user, patience_s)

    async def until_ended(self, lane: str) -> None:
        """Until a worker of this lane, by its own user, ends by itself. Raises what ended it."""
        async with Engine(self.settings(lane), lane) as engine:
            assert engine.task is not None, "started"
            await asyncio.wait_for(engine.task, PATIENCE_S)

    def _variables(self, user: str) -> dict[str, str]:
        return environment(
            self._bench, self._folder, HEADRACE_KAFKA_BOOTSTRAP=self._kafka.address("SASL"), HEADRACE_KAFKA_CONFIG=json.dumps(by_plain(user))
        )  # fmt: skip

    async def _main(self, user: str, patience_s: float) -> None:
        """A result, a retry and a dead letter."""
        results, retries, dead = (len(self._bench.read(role)) for role in ("results", "retry", "dlq"))
        async with Engine(self.settings(user), "main"):
            self._bench.ask(f"a{self._count}")
            self._bench.ask(f"b{self._count}", prompt="[busy]")
            self._bench.send(b"{broken")
            self._bench.flush()
            await self._bench.until("results", results + 2, patience_s)
            await self._bench.until("retry", retries + 1, patience_s)
            await self._bench.until("dlq", dead + 1, patience_s)

    async def _retry(self, user: str, patience_s: float) -> None:
        """An answer to what is due, a way over a wheel and back, a retry, a dead letter."""
        dead = len(self._bench.read("dlq"))
        given = {"r": {}, "w": {"next_retry_at": time.time() + FAR_S}, "x": {"prompt": "[busy]"}}
        async with Engine(self.settings(user), "retry"):
            for name, fields in given.items():
                self._bench.send(json.dumps({"request_id": f"{name}{self._count}", "prompt": "hello", **fields}).encode(), role="retry")
            self._bench.send(b"{broken", role="retry")
            self._bench.flush()
            await self._bench.finished([f"{name}{self._count}" for name in given], timeout_s=patience_s)
            await self._bench.until("dlq", dead + 2, patience_s)

    async def _dlq(self, user: str, patience_s: float) -> None:
        """A letter is read, and its offset committed; the open ones are counted."""
        self._bench.send(b"a dead letter", role="dlq", headers=[("headrace_error_class", b"timeout"), ("headrace_origin", b"t/0/1")])
        self._bench.flush()
        async with Engine(self.settings(user), "dlq"):
            await self._bench.until_drained(("dlq",), patience_s)

    async def _client(self, user: str, patience_s: float) -> None:
        """A request is sent, and its answer, which a worker of nobody's concern gives, comes back."""
        from headrace import AsyncClient

        async with Engine(self._bench.settings(self._stub.base_url), "main"), AsyncClient(self.settings(user)) as client:
            answer = await client.ask({"request_id": f"c{self._count}", "prompt": "x"}, timeout=patience_s)
            assert answer.status == "completed"

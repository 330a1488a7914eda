"""The stub as an object: start, change and ask it from a test, over a real socket on a loopback address."""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.errors import ConfigError, StackError
from headrace.local.stub.admin import Admin
from headrace.local.stub.capacity import Capacity, CapacitySpec
from headrace.local.stub.connection import Connection, Parts
from headrace.local.stub.ledger import Entry, Ledger
from headrace.local.stub.provider import Provider
from headrace.local.stub.rule import Latency, Rule

_BACKLOG = 4096


@dataclass(frozen=True, slots=True)
class _Running:
    server: asyncio.Server
    capacity: Capacity
    admin: Admin


class StubLLM:
    """An OpenAI-compatible server with scripted faults. `async with StubLLM(rules=[...], seed=1) as stub`.

    `beyond_loopback` lets it listen where other machines can reach it, as a container must.
    Raises `ConfigError` where rules or host cannot work, `StackError` on start if the address cannot be had.
    """

    def __init__(
        self,
        rules: Sequence[Rule] = (),
        *,
        seed: int = 0,
        latency: Latency | None = None,
        capacity: CapacitySpec | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        log_path: Path | None = None,
        beyond_loopback: bool = False,
    ) -> None:
        if not beyond_loopback:
            _require_loopback(host)
        self._rules = tuple(rules)
        self._seed = seed
        self._latency = latency
        self._capacity_spec = capacity or CapacitySpec()
        self._host = host
        self._asked_port = port
        self._log_path = log_path
        self._log_fd: int | None = None
        self._open: set[Connection] = set()
        self._running: _Running | None = None
        self._ledger = Ledger(self._write_log if log_path is not None else None)
        self._provider = Provider(self._ledger, None, seed=seed, latency=latency)
        self._provider.set_rules(self._rules)

    async def start(self) -> None:
        """Listen. Raises `StackError` naming the address or file that cannot be had."""
        loop = asyncio.get_running_loop()
        capacity = Capacity(loop, self._capacity_spec)
        admin = Admin(self._provider, self._ledger, capacity)
        self._provider.capacity = capacity
        parts = Parts(self._provider, self._ledger, admin, self._open)
        try:
            if self._log_path is not None:
                self._log_fd = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            server = await loop.create_server(lambda: Connection(parts), self._host, self._asked_port, backlog=_BACKLOG)
        except OSError as error:
            self._close_log()
            wanted = f"{self._host}:{self._asked_port}, or its log file"
            raise StackError(f"the stub LLM cannot have {wanted}: {error.strerror}; choose another") from error
        self._running = _Running(server, capacity, admin)

    async def stop(self) -> None:
        """Drop every connection and stop listening."""
        running, self._running = self._running, None
        if running is None:
            return
        running.server.close()
        for connection in list(self._open):
            connection.abort()
        running.capacity.close()
        await running.server.wait_closed()
        self._close_log()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        """The port it listens on. Raises `RuntimeError` before the start."""
        return int(self._now.server.sockets[0].getsockname()[1])

    @property
    def base_url(self) -> str:
        """What a client takes as its base URL, `/v1` included."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/v1"

    @property
    def calls(self) -> dict[str, int]:
        """How often each request id was called."""
        return dict(self._ledger.calls)

    @property
    def total_calls(self) -> int:
        """All calls, those without a request id included."""
        return self._ledger.total

    @property
    def log(self) -> list[Entry]:
        """The calls still kept, oldest first."""
        return list(self._ledger.entries(0, self._ledger.total))

    def stats(self) -> dict[str, object]:
        """The same as `GET /_stub/stats`."""
        return self._now.admin.stats()

    def set_rules(self, rules: Sequence[Rule]) -> None:
        """Replace the rules from the next call on. Raises `ConfigError` if their shares do not fit."""
        self._provider.set_rules(rules)

    def heal(self) -> None:
        """Remove every rule. What already hangs goes on hanging."""
        self._provider.set_rules(())

    def set_capacity(self, spec: CapacitySpec) -> None:
        """Change the capacity from now on."""
        self._now.capacity.set(spec)

    def reset(self) -> None:
        """Forget counts and log, and begin the rules' clock anew."""
        self._ledger.clear()

    async def wait_calls(self, n: int) -> None:
        """Return once `n` calls were seen since the start or the last reset."""
        await self._ledger.wait(lambda: self._ledger.total >= n)

    async def wait_in_flight(self, n: int) -> None:
        """Return once exactly `n` calls are under way."""
        await self._ledger.wait(lambda: self._ledger.in_flight == n)

    @property
    def _now(self) -> _Running:
        if self._running is None:
            raise RuntimeError("the stub is not started")
        return self._running

    def _write_log(self, line: bytes) -> None:
        # Unbuffered, and before the answer leaves: a call somebody had an answer to is in the file, whatever kills us.
        if self._log_fd is not None:
            os.write(self._log_fd, line)

    def _close_log(self) -> None:
        if self._log_fd is not None:
            os.close(self._log_fd)
            self._log_fd = None


def _require_loopback(host: str) -> None:
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConfigError(
            [f"host: {host!r} is not a loopback address; the stub listens on this machine only, unless --beyond-loopback says so"]
        )

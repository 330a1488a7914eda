"""The demo's processes: the stack, a stub LLM with the demo's faults, the topics, and workers that can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import yaml

from headrace.config import Settings
from headrace.errors import StackError
from headrace.loading import load
from headrace.local import process
from headrace.local.demo.plan import RULES, Planned
from headrace.local.process import Leashed, Startup
from headrace.local.stack import Stack
from headrace.log import Writer
from headrace.outcome import Output

CALL_TIMEOUT_S = 2.0
_STUB_READY_S = 30.0
_WORKER_READY_S = 60.0
_COMMAND = [sys.executable, "-m", "headrace"]


class Stage:
    """`with Stage(folder, …) as stage:` everything runs, and all of it ends with the block."""

    def __init__(self, folder: Path, *, seed: int, workers: int, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._seed = seed
        self._count = workers
        self._say = say
        self._exit = contextlib.ExitStack()
        self.workers: list[Leashed] = []
        self.killed = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as exit_stack:
            self.stack = exit_stack.enter_context(Stack(say=self._say))
            self._stub = exit_stack.enter_context(contextlib.closing(_Stopped(self._start_stub())))
            self._environment = self._configure()
            self.settings: Settings = load(self._environment)
            self._run("topics", "apply", "--execute")
            exit_stack.callback(self.stop_workers)
            for _ in range(self._count):
                self.start_worker()
            self._exit = exit_stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def send(self, plans: list[Planned]) -> None:
        """Every record, to the main topic."""
        with Writer(self.settings) as writer:
            for planned in plans:
                writer.send(Output(self.settings.topics.main, planned.key.encode(), planned.value))

    def start_worker(self) -> None:
        """One more process that runs all lanes; ready when it says so."""
        number = len(self.workers) + 1
        self._say(f"Starting worker {number}")
        log = self._folder / f"worker-{number}.log"
        worker = process.start(f"worker {number}", [*_COMMAND, "worker", "all", "--json"], log, grace_s=20.0, env=self._environment)
        self.workers.append(worker)
        worker.wait_for(r'"event": "started"', log, Startup(self._say), _WORKER_READY_S)

    def kill_worker(self) -> None:
        """`kill -9` the first worker, as a lost machine would."""
        os.kill(self.workers[0].pid, signal.SIGKILL)
        self.killed += 1

    def stop_workers(self) -> None:
        """SIGTERM to all of them, and wait."""
        for worker in self.workers:
            worker.stop()

    def dead_workers(self) -> int:
        """How many have ended, but for those that were killed here."""
        return sum(worker.exit_code() is not None for worker in self.workers) - self.killed

    def heal(self) -> None:
        """From now on the model answers everything."""
        self._ask("heal", method="POST")

    def calls(self) -> dict[str, int]:
        """How often the model was called, by request id, by its own count."""
        return dict(self._ask("calls"))

    def call_log(self) -> list[dict[str, Any]]:
        """Every call the model saw, in order."""
        with urllib.request.urlopen(f"{self._stub_url}/_stub/log?since=0&limit=100000", timeout=10) as reply:  # noqa: S310  our own stub
            return [json.loads(line) for line in reply.read().splitlines()]

    def replay_timeouts(self) -> str:
        """`headrace dlq replay --class timeout --execute`, as an operator would; what it printed."""
        return self._run("dlq", "replay", "--class", "timeout", "--execute")

    def _start_stub(self) -> Leashed:
        rules = self._folder / "rules.json"
        rules.write_text(json.dumps([rule.model_dump(mode="json", exclude_defaults=True) for rule in RULES]), encoding="utf-8")
        log = self._folder / "stub.log"
        command = [sys.executable, "-u", "-m", "headrace.local.stub_llm", "--port", "0", "--seed", str(self._seed), "--rules", str(rules)]
        stub = process.start("the stub LLM", command, log)
        self._base_url = stub.wait_for(r"listening on (http://\S+)", log, Startup(self._say), _STUB_READY_S)[1]
        self._stub_url = self._base_url.removesuffix("/v1")
        return stub

    def _configure(self) -> dict[str, str]:
        """A configuration of the demo's own: nothing of the caller's HEADRACE_* or OPENAI_* is used."""
        path = self._folder / "headrace.yaml"
        provider = {
            "name": "stub",
            "base_url": self._base_url,
            "default_model": "stub-1",
            "timeout_s": CALL_TIMEOUT_S,
        }
        path.write_text(yaml.safe_dump({"providers": [provider], "limits": {"concurrency": 48}}), encoding="utf-8")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "OPENAI_", "SENTRY_"))}
        return inherited | {
            "HEADRACE_KAFKA_BOOTSTRAP": self.stack.kafka.bootstrap,
            "HEADRACE_REDIS_URL": self.stack.redis.url,
            "HEADRACE_CONFIG": str(path),
            "HEADRACE_NAMESPACE": "demo",
            "OPENAI_API_KEY": "stub",
        }

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([*_COMMAND, *arguments], env=self._environment, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise StackError(f"headrace {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr.strip()[-2000:]}")
        return done.stdout + done.stderr

    def _ask(self, what: str, *, method: str = "GET") -> dict[str, Any]:
        request = urllib.request.Request(f"{self._stub_url}/_stub/{what}", method=method)  # noqa: S310  our own stub
        with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310
            return dict(json.loads(reply.read() or b"{}"))


class _Stopped:
    """A leashed process as something to close."""

    def __init__(self, leashed: Leashed) -> None:
        self._leashed = leashed

    def close(self) -> None:
        self._leashed.stop()

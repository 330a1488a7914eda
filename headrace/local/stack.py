"""The local stack as one thing: Kafka, Redis and, if wanted, the stub LLM, started together and stopped together."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from headrace.local import process
from headrace.local.folder import Folder, open_folder
from headrace.local.kafka import Kafka, start_kafka
from headrace.local.process import Leashed, Startup
from headrace.local.redis import Redis, start_redis

_STUB_READY_S = 30.0


@dataclass(frozen=True, slots=True)
class Model:
    """An OpenAI-compatible server at `base_url`; `how` says which it is; `process` is None where it is not ours."""

    base_url: str
    how: str
    process: Leashed | None = None

    def stop(self) -> None:
        """End the stub if it is ours."""
        if self.process is not None:
            self.process.stop()


class Service(Protocol):
    """What the stack starts."""

    def stop(self) -> None:
        """End it, and wait for its end."""


_S = TypeVar("_S", bound=Service)


class Stack:
    """`with Stack() as stack:` a broker at `stack.kafka.bootstrap`, a store at `stack.redis.url`, a model.

    Without `data_dir` the data is temporary. The stub follows the file `rules`, or the `scenario` of that name. `say` is
    told of the progress, from several threads. Entering raises StackError with the remedy, and then nothing is left running.
    """

    kafka: Kafka
    redis: Redis
    stub: Model | None

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        docker: bool = False,
        stub: bool = False,
        rules: Path | None = None,
        scenario: str | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._data_dir = data_dir
        self._docker = docker
        self._with_stub = stub
        self._script = _script(rules, scenario)
        self._say = say
        self._exit = contextlib.ExitStack()

    @property
    def openai_base_url(self) -> str | None:
        """The model's base URL, or None if no stub was asked for."""
        return self.stub.base_url if self.stub else None

    def __enter__(self) -> Self:
        startup = Startup(self._say) if self._say else Startup()
        with contextlib.ExitStack() as exit_stack:
            folder = exit_stack.enter_context(open_folder(self._data_dir))
            self._start(folder, startup, exit_stack)
            self._exit = exit_stack.pop_all()
        return self

    def _start(self, folder: Folder, startup: Startup, exit_stack: contextlib.ExitStack) -> None:
        """Start all at once; if one fails or we are interrupted, the others are told to give up, and are stopped."""
        pool = exit_stack.enter_context(ThreadPoolExecutor(3, thread_name_prefix="stack"))
        kafka = _launch(pool, exit_stack, lambda: start_kafka(folder, startup, docker=self._docker))
        redis = _launch(pool, exit_stack, lambda: start_redis(folder, startup))
        stub = _launch(pool, exit_stack, lambda: start_stub(folder, startup, self._script)) if self._with_stub else None
        starting: list[Future[Any]] = [future for future in (kafka, redis, stub) if future is not None]
        try:
            for future in wait(starting, return_when="FIRST_EXCEPTION").done:
                future.result()
        except BaseException:
            startup.cancelled.set()
            raise
        self.kafka, self.redis, self.stub = kafka.result(), redis.result(), stub.result() if stub else None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._exit.close()


def _script(rules: Path | None, scenario: str | None) -> tuple[str, ...]:
    if rules is not None:
        return "--rules", str(rules.absolute())
    return ("--scenario", scenario) if scenario is not None else ()


def start_stub(folder: Folder, startup: Startup, script: Sequence[str] = ()) -> Model:
    """Return a model that is ready: HEADRACE_TEST_OPENAI_BASE_URL, else the stub LLM with `script` as options. Never reads OPENAI_BASE_URL."""
    if given := os.environ.get("HEADRACE_TEST_OPENAI_BASE_URL"):
        return Model(given, "HEADRACE_TEST_OPENAI_BASE_URL")
    port = folder.ports("stub")["stub"]
    command = [sys.executable, "-u", "-m", "headrace.local.stub_llm", "--port", str(port)]
    startup.step("Starting the stub LLM")
    stub = process.start(
        "the stub LLM",
        [*command, *script],
        folder.path / "stub.log",
        keep=(folder.lock_fd,),
    )
    try:
        match = stub.wait_for(r"listening on (http://\S+)", stub.log, startup, _STUB_READY_S)
    except BaseException:
        stub.stop()
        raise
    return Model(match[1], "the stub LLM", stub)


def _launch(pool: ThreadPoolExecutor, exit_stack: contextlib.ExitStack, start: Callable[[], _S]) -> Future[_S]:
    future = pool.submit(start)

    def stop() -> None:
        if not future.cancel() and future.exception() is None:  # waits for a start that is under way
            future.result().stop()

    exit_stack.callback(stop)
    return future

"""The body of `headrace up`: the stack in a persistent folder until Ctrl-C. Leaves the options to the command line."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from rich.console import Console

from headrace.errors import ConfigError, StackError
from headrace.local.process import Leashed
from headrace.local.stack import Stack
from headrace.local.stub import load_rules
from headrace.local.stub import scenario as known_scenario
from headrace.local.stub.ruleset import RuleSet

DEFAULT_DATA_DIR = Path(".headrace")
_LOOK_S = 1.0


def run(
    data_dir: Path = DEFAULT_DATA_DIR, *, docker: bool = False, stub: bool = True, rules: Path | None = None, scenario: str | None = None
) -> None:
    """Start everything, print the exports on stdout, wait for Ctrl-C or SIGTERM, stop everything.

    Raises ConfigError for a script of the stub that cannot work, StackError if the stack cannot start, or if one of its
    servers ends by itself.
    """
    _check_script(rules, scenario, stub=stub)
    console = Console(stderr=True, highlight=False, markup=False)
    with _terminations_interrupt():
        try:
            with contextlib.ExitStack() as running:
                with console.status("Starting") as status:
                    say = status.update if console.is_terminal else console.print
                    stack = running.enter_context(Stack(data_dir, docker=docker, stub=stub, rules=rules, scenario=scenario, say=say))
                _tell(stack, console)
                _wait(stack)
        except KeyboardInterrupt:
            console.print("Stopped; the data stays in", str(data_dir))


def _check_script(rules: Path | None, scenario: str | None, *, stub: bool) -> None:
    """Before Kafka starts, which takes seconds."""
    if rules is not None and scenario is not None:
        raise ConfigError(["--rules and --scenario: both are given; keep one"])
    if not stub and (rules is not None or scenario is not None):
        raise ConfigError(["--no-stub: there is no stub to follow --rules or --scenario; leave one out"])
    if rules is not None:
        RuleSet(load_rules(rules), seed=0)
    if scenario is not None:
        known_scenario(scenario)


def _tell(stack: Stack, console: Console) -> None:
    console.print(f"Kafka  {stack.kafka.bootstrap}  ({stack.kafka.how})")
    console.print(f"Redis  {stack.redis.how}")
    exports = {"HEADRACE_KAFKA_BOOTSTRAP": stack.kafka.bootstrap, "HEADRACE_REDIS_URL": stack.redis.url}
    if stack.stub is not None:
        console.print(f"Model  {stack.stub.base_url}  ({stack.stub.how})")
        exports |= {"OPENAI_BASE_URL": stack.stub.base_url, "OPENAI_API_KEY": "stub"}
    for name, value in exports.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
    sys.stdout.flush()
    console.print("Ready. Paste these lines into another terminal; Ctrl-C stops the stack.")


def _wait(stack: Stack) -> None:
    """Return never, unless a server ends: then say which, and what it said last."""
    services = (stack.kafka, stack.redis, stack.stub)
    servers: list[Leashed] = [s.process for s in services if s is not None and s.process is not None]
    while True:
        for server in servers:
            if (code := server.exit_code()) is not None:
                raise StackError(f"{server.name} ended by itself with code {code}; its last words are in {server.log}")
        time.sleep(_LOOK_S)


@contextlib.contextmanager
def _terminations_interrupt() -> Iterator[None]:
    """Make SIGTERM and SIGHUP act like Ctrl-C, so that there is one way to stop.

    SIGINT too is set anew: a shell without job control starts what it puts behind with SIGINT ignored.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

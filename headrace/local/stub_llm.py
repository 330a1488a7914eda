"""The stub LLM as a process: `python -m headrace.local.stub_llm --scenario trade`. The server itself is in `stub/`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from headrace.errors import ConfigError, Exit, HeadraceError
from headrace.local.stub import (
    SCENARIOS,
    Action,
    CapacitySpec,
    Entry,
    Latency,
    Match,
    Rule,
    StubLLM,
    fault_for,
    load_rules,
    scenario,
)
from headrace.local.stub.faults import field_faults
from headrace.local.stub.manual import manual

__all__ = ["Action", "CapacitySpec", "Entry", "Latency", "Match", "Rule", "StubLLM", "fault_for", "main", "scenario"]


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code: 0, 1 (no address), 2 (a fault in what was given)."""
    options = _parser().parse_args(argv)
    try:
        stub = _build(options)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(stub))
    except HeadraceError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)
    return int(Exit.DONE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace stub-llm",
        description="An OpenAI-compatible server with scripted faults.",
        epilog=manual(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="a loopback address (default: %(default)s)")
    parser.add_argument(
        "--beyond-loopback", action="store_true", help="any --host will do: in a container, which publishes its port itself"
    )
    parser.add_argument("--port", type=_port, default=0, metavar="N", help="0 is any free port (default)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of shares and latencies (default: 0)")
    parser.add_argument("--latency-ms", metavar="MS", type=float, default=0.0, help="before every answer whose rule names no other")
    parser.add_argument("--log", type=Path, metavar="FILE", help="append each call as a line of NDJSON")
    script = parser.add_mutually_exclusive_group()
    script.add_argument("--rules", type=Path, metavar="FILE", help="rules, as YAML or JSON (see below)")
    script.add_argument(
        "--scenario", default="healthy", metavar="NAME", help=f"one of {', '.join(SCENARIOS)} (see below; default: %(default)s)"
    )
    parser.add_argument("--slots", metavar="N", type=int, help="calls served at once (default: no bound)")
    parser.add_argument("--token-rate", metavar="N", type=float, help="tokens per second, of the whole server (default: no bound)")
    parser.add_argument("--queue", metavar="N", type=int, help="calls that may wait for a slot (default: no bound)")
    return parser


def _port(text: str) -> int:
    try:
        port = int(text)
    except ValueError:
        port = -1
    if not 0 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no port: give 1 to 65535, or 0 for any free one")
    return port


def _build(options: argparse.Namespace) -> StubLLM:
    rules = scenario(options.scenario) if options.rules is None else load_rules(options.rules)
    try:
        latency = Latency(fixed_ms=options.latency_ms) if options.latency_ms else None
    except ValidationError as error:
        raise ConfigError([f"--latency-ms: {options.latency_ms:g} is not a time in ms from 0 to 3600000"]) from error
    try:
        capacity = CapacitySpec(slots=options.slots, token_rate=options.token_rate, queue=options.queue)
    except ValidationError as error:
        raise ConfigError([f"--{fault.replace('_', '-', 1)}" for fault in field_faults(error)]) from error
    return StubLLM(
        rules,
        seed=options.seed,
        latency=latency,
        capacity=capacity,
        host=options.host,
        port=options.port,
        log_path=options.log,
        beyond_loopback=options.beyond_loopback,
    )


async def _serve(stub: StubLLM) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with stub:
        sys.stdout.write(f"listening on {stub.base_url}\n")
        sys.stdout.flush()
        await stop.wait()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    if sys.platform == "win32":
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop


if __name__ == "__main__":
    raise SystemExit(main())

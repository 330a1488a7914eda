"""The command `headrace`: finds the subcommand, and turns Headrace's own errors into a line and an exit code.

Only the module of the command that runs is imported, so that `headrace --help` needs none of them.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from headrace.errors import ConfigError, Exit, HeadraceError
from headrace.redact import visible

# name: (module, attribute, what it does)
COMMANDS: Mapping[str, tuple[str, str, str]] = {
    "up": ("headrace.cli.local", "up", "Start Kafka, Redis and a stub LLM on this machine."),
    "demo": ("headrace.cli.local", "demo", "The main job on a stack of its own, with faults, every request accounted for."),
    "config": ("headrace.cli.config", "app", "Show the configuration, check it, and print its reference."),
    "topics": ("headrace.cli.topics", "app", "Compare the broker's topics with topics.yaml, and apply the difference."),
    "produce": ("headrace.cli.produce", "produce", "Send requests from a JSONL file or stdin."),
    "load": ("headrace.cli.load", "load", "Send a synthetic load at a steady rate, and measure."),
    "worker": ("headrace.cli.worker", "worker", "Run lanes: main, retry, dlq or all."),
    "dlq": ("headrace.cli.dlq", "app", "Dead letters: count, list, show and replay them."),
    "status": ("headrace.cli.status", "status", "The fleet on one screen: lag, workers, pauses, dead letters, Redis."),
    "pause": ("headrace.cli.control", "pause", "Call nothing of a provider, model, agent, channel or id, fleet-wide."),
    "resume": ("headrace.cli.control", "resume", "End a pause, or take back a cancellation."),
    "cancel": ("headrace.cli.control_cancel", "cancel", "End requests without a call."),
    "audit": ("headrace.cli.audit", "run", "Check from the topics alone that every promise was kept."),
    "stub-llm": ("headrace.cli.local", "stub_llm", "An OpenAI-compatible server with scripted faults."),
}
_FORWARDED = {"stub-llm": {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; ends by SystemExit with a code of `headrace.errors.Exit`. HEADRACE_DEBUG=1 shows tracebacks."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = next((argument for argument in arguments if not argument.startswith("-")), None)
    try:
        build(name)(arguments, prog_name="headrace")
    except HeadraceError as error:
        if os.environ.get("HEADRACE_DEBUG") == "1":
            raise
        say(error)
        raise SystemExit(int(error.exit_code)) from None
    except KeyboardInterrupt:
        raise SystemExit(int(Exit.INTERRUPTED)) from None


def build(name: str | None) -> typer.Typer:
    """The application with the command `name` ready to run; the others are there by name and help only."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="LLM inference over Kafka.")
    app.callback()(_options)
    for command, (module, attribute, text) in COMMANDS.items():
        target: Any = getattr(importlib.import_module(module), attribute) if command == name else _named(text)
        if isinstance(target, typer.Typer):
            for registered in target.registered_commands:
                registered.help = unwrapped(registered.callback.__doc__ if registered.callback else None)
            app.add_typer(target, name=command)
        else:
            app.command(command, help=unwrapped(target.__doc__), context_settings=_FORWARDED.get(command))(target)
    return app


def unwrapped(text: str | None) -> str:
    """The text with a line per paragraph: it is broken for the terminal it is shown on, not for the source."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text or "").split("\n\n"))


def say(error: HeadraceError) -> None:
    """The error on stderr, a line per fault."""
    for line in error.faults if isinstance(error, ConfigError) else [str(error)]:
        sys.stderr.write(f"headrace: {visible(line)}\n")


def _named(text: str) -> Callable[[], None]:
    def command() -> None:
        raise AssertionError("stands for a command that is not run")

    command.__doc__ = text
    return command


def _version(wanted: bool) -> None:
    if wanted:
        from headrace import __version__

        sys.stdout.write(f"headrace {__version__}\n")
        raise typer.Exit


def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)] = False,
) -> None:
    """Settle every LLM request on Kafka exactly once."""

"""`headrace config`: what is in force and where it came from, whether it can work, and what may be set."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from headrace.errors import Exit

if TYPE_CHECKING:
    from headrace.loading.shown import Shown

app = typer.Typer(help="Show the configuration, check it, and print its reference.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="NDJSON instead of text.")]


@app.command()
def show(
    prefix: Annotated[
        str, typer.Argument(metavar="FIELD", help="Only this field, or the section of this name: limits, policy.timeout.")
    ] = "",
    *,
    json: Json = False,
) -> None:
    """Show the values in force, each with the variable, the line or the default it came from. Secrets are hidden.

    Exit codes: 0 shown; 2 the configuration is wrong; 3 there is no such field.
    """
    from headrace.loading import load_all
    from headrace.loading.shown import effective
    from headrace.redact import visible

    loaded = load_all()
    found = [one for one in effective(loaded) if not prefix or one.field == prefix or one.field.startswith(f"{prefix}.")]
    for one in found:
        sys.stdout.write(_json(one) if json else visible(f"{one.field}: {_text(one.value)}  # {one.origin}\n"))
    for note in loaded.notes:
        sys.stderr.write(f"{note}\n")
    raise typer.Exit(int(Exit.DONE if found else Exit.NOTHING))


@app.command()
def check(
    *,
    connect: Annotated[
        bool, typer.Option("--connect", help="Also ask the broker and Redis: topics, rights, group protocol, eviction.")
    ] = False,
    lanes: Annotated[
        list[str] | None,
        typer.Option("--for", metavar="PART", help="With --connect: whose rights; main, retry, dlq by default. Repeat it."),
    ] = None,
) -> None:
    """Name every fault of the configuration at once, by field, with the line or variable and the remedy.

    Of rights the broker tells those on topics and groups; those on transactional ids show when a worker starts. Exit codes: 0
    nothing is wrong; 2 something is; 1 the broker or Redis cannot be asked, and nothing else is wrong.
    """
    from headrace.cli.config_connect import connected
    from headrace.loading import load_all, missing_keys

    loaded = load_all()
    for note in (*loaded.notes, *missing_keys(loaded.settings)):
        sys.stderr.write(f"note: {note}\n")
    sys.stdout.write("configuration: ok\n")
    if connect:
        raise typer.Exit(int(connected(loaded.settings, lanes or ["main", "retry", "dlq"])))


@app.command("reference")
def print_reference() -> None:
    """Print every field with type, bounds, default, variables and meaning, as Markdown: docs/configuration.md."""
    from headrace.loading.reference import reference

    sys.stdout.write(reference())


@app.command("example")
def print_example() -> None:
    """Print a headrace.yaml to begin with: every field commented out, with its default."""
    from headrace.loading.example import example

    sys.stdout.write(example())


def _json(one: Shown) -> str:
    return orjson.dumps({"field": one.field, "value": one.value, "from": one.origin}).decode() + "\n"


def _text(value: object) -> str:
    return value if isinstance(value, str) and value else orjson.dumps(value).decode()

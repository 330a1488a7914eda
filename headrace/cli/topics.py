"""`headrace topics`: the broker's topics beside `topics.yaml`. Comparing and changing is `headrace.topics`' work."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from headrace.errors import Exit

if TYPE_CHECKING:
    from headrace.config import Settings
    from headrace.topics.drift import Change
    from headrace.topics.file import Role, Shape

app = typer.Typer(help="Compare the broker's topics with topics.yaml, and apply the difference.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="NDJSON instead of a table.")]
Replicas = Annotated[int | None, typer.Option(min=1, max=100, metavar="N", help="Replication of every topic, whatever the file says.")]
Local = Annotated[bool, typer.Option("--local", help="The same as --replicas 1, for a development broker.")]
_COLOURS = {"create": "green", "partitions": "yellow", "config": "yellow", "refused": "red"}


@app.command()
def diff(*, replicas: Replicas = None, local: Local = False, json: Json = False) -> None:
    """Show what differs between the broker and topics.yaml; change nothing.

    Exit codes: 0 nothing differs; 4 something differs, and `apply --execute` would mend it; 5 something differs that
    is never done for you (it would shrink); 1 the broker cannot be asked; 2 topics.yaml or the configuration is wrong.
    """
    _apply(1 if local else replicas, execute=False, json=json)


@app.command()
def apply(
    *,
    execute: Annotated[bool, typer.Option("--execute", help="Do it. Without this, only show what would be done.")] = False,
    replicas: Replicas = None,
    local: Local = False,
    json: Json = False,
) -> None:
    """Create topics, add partitions and set configuration as topics.yaml says. Deletes nothing, shrinks nothing.

    A dry run until --execute, with the exit codes of `diff`. With --execute: 0 the broker now is as the file says;
    4 some changes failed, each with the broker's reason; 5 all was done but what is refused; 1 and 2 as for `diff`.
    """
    _apply(1 if local else replicas, execute=execute, json=json)


@app.command()
def show(*, json: Json = False) -> None:
    """Show the five topics as the broker has them, and what is wrong with them for a worker.

    Exit codes: 0 a worker can start; 2 it would refuse to, for the reasons shown; 1 the broker cannot be asked.
    """
    from headrace.loading import load
    from headrace.topics import Topics, check
    from headrace.topics.file import ROLES

    settings = load()
    names: dict[Role, str] = {role: getattr(settings.topics, role) for role in ROLES}
    shapes = Topics(settings).shapes(names.values())
    facts = check(settings)
    if json:
        for role, name in names.items():
            shape = shapes.get(name)
            _line({"role": role, "topic": name, "exists": shape is not None, **(dataclasses.asdict(shape) if shape else {})})
    else:
        _print_shapes(names, shapes)
    for text in (*facts.faults, *facts.notes):
        sys.stderr.write(f"{text}\n")
    raise typer.Exit(int(Exit.USAGE if facts.faults else Exit.DONE))


@app.command()
def acls(
    part: Annotated[str, typer.Argument(metavar="PART", help="main, retry, dlq, produce, client, apply, replay, audit or status.")],
    *,
    user: Annotated[str, typer.Option(metavar="NAME", help="Whom to allow it: the principal without `User:`.")] = "headrace",
    json: Json = False,
) -> None:
    """Print the smallest rights a part needs, as arguments of Kafka's own kafka-acls.sh, a line each. Asks no broker."""
    from headrace.loading import load
    from headrace.topics.rights import PARTS, command, rights_of

    if part not in PARTS:
        raise typer.BadParameter(f"known: {', '.join(PARTS)}", param_hint="PART")
    for right in rights_of(part, load()):
        if json:
            _line({"principal": f"User:{user}", **dataclasses.asdict(right)})
        else:
            sys.stdout.write(f"{command(right, user)}\n")


def _apply(replicas: int | None, *, execute: bool, json: bool) -> None:
    from headrace.loading import load
    from headrace.topics import Topics, compare

    settings = load()
    topics = Topics(settings)
    changes, fitted, cluster = compare(settings, topics, replicas=replicas)
    _judge(settings, fitted)
    if cluster.brokers == 1 and replicas is None:
        sys.stderr.write("One broker is up, so replication is 1 and min.insync.replicas 1: a development broker.\n")
    errors: dict[Change, str | None] = {}
    if execute:
        errors = {done.change: done.error for done in topics.apply(changes, fitted)}
    if json:
        for change in changes:
            _line({**dataclasses.asdict(change), "done": errors.get(change, "") is None, "error": errors.get(change)})
    else:
        _print_changes(changes, errors, execute=execute)
    _groups(settings, execute=execute)
    raise typer.Exit(int(_exit(changes, errors, execute=execute)))


def _groups(settings: Settings, *, execute: bool) -> None:
    """Take-over after a kill -9, where the broker lets a group say how long it takes. Never a reason for another exit code."""
    from headrace.topics.groups import Groups

    groups = Groups(settings)
    for change in groups.apply(found) if (found := groups.differences()) and execute else found:
        if change.error is not None:
            note = f"stays {change.before}: {change.error}; partitions of a killed worker are taken over that much later"
        else:
            note = f"{change.before} -> {change.after}" + ("" if execute else " with --execute")
        sys.stderr.write(f"group {change.group}: {change.field} {note}\n")


def _judge(settings: Settings, wanted: dict[Role, Shape]) -> None:
    """A file that breaks the rules is never applied: the workers would refuse its topics."""
    from headrace.errors import ConfigError
    from headrace.topics.file import broken_rules

    if faults := broken_rules(wanted, settings.limits.longest_delay_s):
        raise ConfigError([f"topics.yaml: {fault}" for fault in faults])


def _exit(changes: list[Change], errors: dict[Change, str | None], *, execute: bool) -> Exit:
    refused = any(change.kind == "refused" for change in changes)
    if any(errors.values()):
        return Exit.PARTIAL
    if refused:
        return Exit.REFUSED
    return Exit.PARTIAL if changes and not execute else Exit.DONE


def _print_changes(changes: list[Change], errors: dict[Change, str | None], *, execute: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    console = Console(soft_wrap=False)
    if not changes:
        console.print("The broker's topics are as topics.yaml says.")
        return
    noted = bool(errors) or any(change.note for change in changes)
    fold = [Column(name, overflow="fold") for name in ("topic", "field", "now", "wanted", *(("note",) if noted else ()))]
    table = Table("change", *fold, box=box.SIMPLE, pad_edge=False, show_edge=False)
    for change in changes:
        note = escape(change.note)
        if change in errors:
            note = f"[red]failed: {escape(errors[change] or '')}[/]" if errors[change] else "[green]done[/]"
        colour = _COLOURS[change.kind]
        cells = (change.topic, change.field, change.before or "–", change.after, *((note,) if noted else ()))
        table.add_row(f"[{colour}]{change.kind}[/]", *cells)
    console.print(table)
    if not execute and any(change.kind != "refused" for change in changes):
        but = " all but what is refused" if any(change.kind == "refused" for change in changes) else " it"
        sys.stderr.write(f"Nothing was changed. `headrace topics apply --execute` does{but}.\n")


def _print_shapes(names: dict[Role, str], shapes: dict[str, Shape]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table

    names_of = ("role", Column("topic", overflow="fold"), "parts", "repl", "isr", "kept", "max bytes", "stamps")
    table = Table(*names_of, box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for role, name in names.items():
        shape = shapes.get(name)
        if shape is None:
            table.add_row(role, name, "[red]missing[/]")
            continue
        retention = shape.number("retention.ms") or 0
        days = "for ever" if retention < 0 else f"{retention / 86_400_000:g} d"
        config = shape.config
        isr, size, stamps = (config.get(key, "") for key in ("min.insync.replicas", "max.message.bytes", "message.timestamp.type"))
        table.add_row(role, name, str(shape.partitions), str(shape.replication), isr, days, size, stamps)
    Console().print(table)


def _line(fields: dict[str, object]) -> None:
    sys.stdout.write(orjson.dumps(fields, default=dict).decode() + "\n")

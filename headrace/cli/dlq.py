"""`headrace dlq`: what died and why, one letter in full, and sending letters back."""

from __future__ import annotations

import getpass
from typing import Annotated

import orjson
import structlog
import typer

from headrace.cli import dlq_options as options
from headrace.cli.dlq_replay import replay_letters
from headrace.dlq.console import iso
from headrace.dlq.display import as_json, line, page, table
from headrace.dlq.filters import Filters
from headrace.dlq.letter import Letter
from headrace.dlq.stats import Group, group
from headrace.envelope import Position
from headrace.errors import Exit
from headrace.instrument import log
from headrace.loading import load

app = typer.Typer(help="Dead letters: count, list, show and replay them.", no_args_is_help=True, pretty_exceptions_show_locals=False)
app.command("replay")(replay_letters)


@app.command()
@options.filtered
def stats(
    filters: Filters,
    *,
    as_ndjson: options.Json = False,
) -> None:
    """Count dead letters by class, provider and model. Exits 3 if there is none."""
    groups = group(found for found in options.letters(load(), filters) if filters.match(found))
    if not groups:
        _nothing()
    if as_ndjson:
        for cause in groups:
            _print_json(_group_json(cause))
        return
    rows = [(g.error_class, g.provider, g.model, f"{g.count:,}", iso(g.first_ms), iso(g.last_ms)) for g in groups]
    for row in table(("CLASS", "PROVIDER", "MODEL", "COUNT", "FIRST", "LAST"), rows):
        typer.echo(row)
    typer.echo(f"{sum(g.count for g in groups):,} dead letters", err=True)


@app.command("list")
@options.filtered
def list_letters(
    filters: Filters,
    *,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many.")] = None,
    as_ndjson: options.Json = False,
) -> None:
    """List dead letters, one line each, without their requests. Exits 3 if there is none."""
    shown = 0
    for found in options.letters(load(), filters):
        if not filters.match(found):
            continue
        if as_ndjson:
            _print_json(as_json(found))
        else:
            typer.echo(line(found))
        shown += 1
        if shown == limit:
            break
    if not shown:
        _nothing()


@app.command()
def show(
    which: Annotated[
        str, typer.Argument(metavar="POSITION|REQUEST_ID", help="topic/partition/offset as `list` prints it, or a request id.")
    ],
    *,
    reveal: Annotated[bool, typer.Option("--reveal", help="Show key, value and the producer's headers too. This is logged.")] = False,
    full: Annotated[bool, typer.Option("--full", help="With --reveal: all of the value, not only its first 64 KiB.")] = False,
    as_ndjson: options.Json = False,
) -> None:
    """Show one dead letter in full; of several with the same request id the newest. Exits 3 if there is none."""
    filters = _meant(which)
    newest: Letter | None = None
    count = 0
    for found in options.letters(load(), filters):
        if filters.match(found):
            count += 1
            if newest is None or (found.trail.hop, found.dead_at_ms) >= (newest.trail.hop, newest.dead_at_ms):
                newest = found
            if filters.position is not None:
                break
    if newest is None:
        _nothing()
        return
    if count > 1:
        typer.echo(
            f"{count} dead letters have this id; this is the newest. `headrace dlq list --id {newest.request_id}` lists all.", err=True
        )
    if reveal:
        if not structlog.is_configured():
            log.configure()
        structlog.get_logger("headrace.dlq").warning("dead_letter_revealed", position=str(newest.position), user=_user())
    if as_ndjson:
        _print_json(as_json(newest, reveal=reveal))
        return
    for shown in page(newest, reveal=reveal, full=full):
        typer.echo(shown)


def _meant(which: str) -> Filters:
    try:
        return Filters(position=Position.parse(which))
    except ValueError:
        return Filters(request_id=which)


def _group_json(cause: Group) -> dict[str, object]:
    return {
        "error_class": cause.error_class,
        "provider": cause.provider,
        "model": cause.model,
        "count": cause.count,
        "first_at": iso(cause.first_ms),
        "last_at": iso(cause.last_ms),
    }


def _print_json(fields: dict[str, object]) -> None:
    typer.echo(orjson.dumps(fields))


def _nothing() -> None:
    typer.echo("no dead letter matches", err=True)
    raise typer.Exit(Exit.NOTHING)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"

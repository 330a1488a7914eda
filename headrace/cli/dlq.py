"""`headrace dlq`: what died and why, one letter in full, and sending letters back."""

from __future__ import annotations

import heapq
from typing import Annotated, NamedTuple

import orjson
import typer

from headrace.cli import dlq_options as options
from headrace.cli.dlq_replay import replay_letters
from headrace.cli.dlq_show import show_letter
from headrace.dlq.console import iso
from headrace.dlq.display import NARROW, WIDE, as_json, cells, moment, table
from headrace.dlq.filters import Filters
from headrace.dlq.letter import Letter
from headrace.dlq.stats import Group, group
from headrace.envelope import Position
from headrace.errors import Exit
from headrace.loading import load

app = typer.Typer(help="Dead letters: count, list, show and replay them.", no_args_is_help=True, pretty_exceptions_show_locals=False)
app.command("show")(show_letter)
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
        _nothing(filters)
    if as_ndjson:
        for cause in groups:
            _print_json(_group_json(cause))
        return
    rows = [(g.error_class, g.provider, g.model, f"{g.count:,}", moment(g.first_ms)[:16], moment(g.last_ms)[:16]) for g in groups]
    for row in table(("CLASS", "PROVIDER", "MODEL", "COUNT", "FIRST (UTC)", "LAST (UTC)"), rows):
        typer.echo(row)
    total = sum(g.count for g in groups)
    typer.echo(f"{total:,} dead letter{'' if total == 1 else 's'}", err=True)


@app.command("list")
@options.filtered
def list_letters(
    filters: Filters,
    *,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the newest so many.")] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Also the provider's code, provider and model.")] = False,
    as_ndjson: options.Json = False,
) -> None:
    """List dead letters by time of death, without their requests. Exits 3 if there is none.

    A letter stays until the topic's retention removes it, also after a replay of it that succeeded.
    """
    found = (_Listed.of(letter, wide=wide, as_ndjson=as_ndjson) for letter in options.letters(load(), filters) if filters.match(letter))
    listed = sorted(found) if limit is None else sorted(heapq.nlargest(limit, found))
    if not listed:
        _nothing(filters)
    if as_ndjson:
        for one in listed:
            typer.echo(one.shown[0])
        return
    for row in table(WIDE if wide else NARROW, [one.shown for one in listed]):
        typer.echo(row)


class _Listed(NamedTuple):
    """What is kept of a letter until all are read and sorted: not its value, which may be large."""

    dead_at_ms: int
    position: Position
    shown: tuple[str, ...]

    @classmethod
    def of(cls, letter: Letter, *, wide: bool, as_ndjson: bool) -> _Listed:
        shown = (orjson.dumps(as_json(letter)).decode(),) if as_ndjson else cells(letter, wide=wide)
        return cls(letter.dead_at_ms, letter.position, shown)


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


def _nothing(filters: Filters) -> None:
    typer.echo("there are no dead letters" if filters == Filters() else "no dead letter matches", err=True)
    raise typer.Exit(Exit.NOTHING)
